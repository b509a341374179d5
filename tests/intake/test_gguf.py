"""GGUF files that cannot be read; real ones are in tests/e2e/test_language.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten import intake
from hasten.errors import HastenError, InvalidInput


def test_a_file_that_is_called_so_and_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"nothing")
    with pytest.raises(InvalidInput, match="no GGUF file"):
        intake.load(path)
    assert intake.program(path) == "generate"


def test_a_file_that_was_cut_off_is_an_error_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino_genai")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(64))
    with pytest.raises(HastenError):
        intake.load(path)
    assert [p for p in (tmp_path / "cache").rglob("*.part")] == []
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "cache") == ["model.gguf"]


def test_only_language_models_have_a_length_of_answer(tmp_path: Path) -> None:
    from hasten.search.prepare import prepare

    with pytest.raises(InvalidInput, match="only a language model"):
        prepare(tmp_path / "model.onnx", None, scenario="offline", new_tokens=3)
