"""A function's name is looked up with a clear word on what is wrong with it."""

from __future__ import annotations

import os.path
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.errors import InvalidInput
from hasten.isolate import resolve


def test_functions_and_methods_are_found() -> None:
    assert resolve("os.path:join") is os.path.join
    assert resolve("pathlib:Path.exists") is Path.exists


@pytest.mark.parametrize(
    ("name", "cause", "fix"),
    [
        ("json", "does not name a function", "module:function"),
        ("json:", "does not name a function", "module:function"),
        (":loads", "does not name a function", "module:function"),
        ("a/b.py:f", "does not name a function", "module:function"),
        ("nowhere_at_all.inner:f", "no module 'nowhere_at_all'", "folder that holds nowhere_at_all"),
        ("json:load_s", "json has no 'load_s'", "did you mean 'loads'"),
        ("json:zzz", "json has no 'zzz'", "define zzz in json"),
        ("pathlib:Path.zzz", "pathlib.Path has no 'zzz'", "define zzz"),
        ("math:pi", "is a float", "name a function"),
    ],
)
def test_what_is_wrong_is_said(name: str, cause: str, fix: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        resolve(name)
    assert cause in caught.value.cause
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("def f(:", "cannot be imported: SyntaxError"),
        ("1 / 0", "cannot be imported: ZeroDivisionError"),
        ("import nowhere_at_all", "needs the module 'nowhere_at_all'"),
        ("from json import nothing_like_it", "cannot be imported: ImportError"),
    ],
)
def test_a_module_that_does_not_import_is_blamed(
    source: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_on_import.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InvalidInput, match=cause):
        resolve("broken_on_import:f")


@given(st.text(max_size=20).filter(lambda text: ":" not in text))
def test_text_without_a_colon_is_never_a_name(text: str) -> None:
    with pytest.raises(InvalidInput):
        resolve(text)
