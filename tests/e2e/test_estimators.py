"""Models of scikit-learn and XGBoost, from a file and a table to a bundle that runs without either."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from e2e_case import Said

for package in ("sklearn", "skl2onnx", "onnxmltools", "skops", "pandas"):
    pytest.importorskip(package)

Hasten = Callable[..., Said]


@pytest.fixture
def table(tmp_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Six hundred rows of three numbers with a class, in rows.csv, whose columns lie in another order."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(600, 3)) * [1, 50, 1]
    y = (x[:, 0] + x[:, 1] / 50 > 0).astype(int)
    lines = [f"{i},{c},{b},{a},{label}" for i, ((a, b, c), label) in enumerate(zip(x.tolist(), y, strict=True))]
    (tmp_path / "rows.csv").write_text("\n".join(["id,c,b,a,kind", *lines]) + "\n")
    return x, y


@pytest.mark.slow
def test_a_forest_is_optimised_and_its_bundle_needs_no_scikit_learn(
    hasten: Hasten, table: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    import pandas
    from sklearn.ensemble import RandomForestClassifier
    from skops import io

    x, y = table
    frame = pandas.DataFrame(x, columns=["a", "b", "c"])
    forest = RandomForestClassifier(20, random_state=0).fit(frame, y)
    io.dump(forest, tmp_path / "forest.skops")
    said = hasten(
        "optimize", "forest.skops", "--trust", "--data", "rows.csv", "--label", "kind", "--metric", "accuracy",
        "--budget", "30s", "--only", "runtime", "--only", "execution", "--out", "forest.bundle", "--json", "study.json",
    )  # fmt: skip
    assert said.code == 0, said.err
    study = json.loads((tmp_path / "study.json").read_text())
    told = [trial["reason"] for trial in study["trials"] if trial["recipe"]["runtime"]["name"] == "openvino"]
    assert len(told) == 1
    assert "it has no ai.onnx.ml.TreeEnsembleClassifier" in told[0] or told[0].startswith("not tried")  # a busy machine
    np.savez(tmp_path / "in.npz", X=x[:5].astype(np.float32))
    blocked = "import sys; sys.modules['sklearn'] = None; sys.argv = ['run.py', 'in.npz', 'out.npz']; "
    done = subprocess.run(
        [sys.executable, "-c", blocked + "import runpy; runpy.run_path('forest.bundle/run.py', run_name='__main__')"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "out.npz")["probabilities"]
    np.testing.assert_allclose(found, forest.predict_proba(frame[:5]), atol=1e-4)
    again = hasten("compare", "forest.skops", "forest.bundle", "--trust", "--data", "rows.csv", "--label", "kind",
                   "--budget", "3s", "--json", "both.json")  # fmt: skip
    assert again.code == 0, again.err
    quality = json.loads((tmp_path / "both.json").read_text())["quality"]
    assert quality["metric"] == "accuracy"
    assert quality["value"]["value"] > 0.95  # columns were found by their names


@pytest.mark.slow
def test_xgboost_is_profiled_and_benched_from_a_table(
    hasten: Hasten, table: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    xgboost = pytest.importorskip("xgboost")
    import pandas

    x, y = table
    xgboost.XGBClassifier(n_estimators=5).fit(pandas.DataFrame(x, columns=["a", "b", "c"]), y).save_model("trees.ubj")
    said = hasten("profile", "trees.ubj", "--data", "rows.csv", "--label", "kind")
    assert said.code == 0, said.err
    assert "TreeEnsembleClassifier" in said.out
    assert hasten("bench", "trees.ubj", "--data", "rows.csv", "--label", "kind", "--seconds", "0.3").code == 0


def test_a_pickle_is_refused_with_what_to_do_instead(hasten: Hasten, tmp_path: Path) -> None:
    (tmp_path / "model.joblib").write_bytes(b"\x80\x04.")
    said = hasten("optimize", "model.joblib", "--trust")
    assert said.code == 2
    assert "is a pickle" in said.err
    assert "skops.io.dump(model, 'model.skops')" in said.err
    assert said.plain
