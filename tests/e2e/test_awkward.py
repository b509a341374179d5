"""Awkward models: each is shipped with the right outputs, or refused with the reason; no failure ends a study."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e_case import Home

pytest.importorskip("torch")
pytest.importorskip("onnxscript")

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.inference.awkward import NAMES, handled

REFUSED = {
    "branches": "cannot be bundled",
    "custom": "cannot be bundled",
    "nonzero": "cannot be told apart",
    "stateful": "differently each time",
    "noisy": "differently each time",
}
"""What no bundle can hold or nothing can be compared with; all the others are shipped."""


@pytest.fixture(autouse=True)
def _home(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, folder in home.environment.items():
        monkeypatch.setenv(name, folder)
    monkeypatch.chdir(tmp_path)
    yield
    assert home.settled() == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_awkward_model_is_shipped_or_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    found = handled(name, tmp_path, 4.0)
    assert found.ended == ("refused" if name in REFUSED else "shipped"), found.how
    assert REFUSED.get(name, "") in found.how


@pytest.mark.slow
def test_exporters_that_fail_are_rows_with_their_reasons(tmp_path: Path) -> None:
    """An operator of the user's own: neither exporter knows it, and the study goes on to its end."""
    found = handled("custom", tmp_path, 60.0, only=("export",))
    assert found.study is not None
    tried = [trial for trial in found.study.trials if trial.recipe.has("export")]
    assert {trial.recipe.steps[0].options["to"] for trial in tried if trial.status == "failed"} == {"onnx", "openvino"}
    assert all("soft_clip" in trial.reason or "OpenVINO cannot convert" in trial.reason for trial in tried)
    assert "nothing that was tried is faster" in found.study.why
