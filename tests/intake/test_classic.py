"""Estimators of scikit-learn, XGBoost and LightGBM become ONNX files that answer as they do, or say why not."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for package in ("sklearn", "skl2onnx", "onnxmltools", "skops", "pandas"):
    pytest.importorskip(package)

import classic_models  # noqa: E402

from hasten import data, intake  # noqa: E402
from hasten.data.cast import cast  # noqa: E402
from hasten.errors import Failed, InvalidInput  # noqa: E402
from hasten.intake import agreement, classic, columns, conversion  # noqa: E402
from hasten.runtimes import Settings, runtime  # noqa: E402

needs_xgboost = pytest.mark.skipif(importlib.util.find_spec("xgboost") is None, reason="XGBoost is not installed")
needs_lightgbm = pytest.mark.skipif(importlib.util.find_spec("lightgbm") is None, reason="LightGBM is not installed")


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers find the models as a user's own file: beside where they are started."""
    monkeypatch.chdir(Path(__file__).parent)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def outputs(model: Any, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    session = runtime("onnxruntime").load(model, Settings())
    try:
        return session.run(batch)
    finally:
        session.close()


def saved(estimator: Any, path: Path) -> Path:
    from skops import io

    io.dump(estimator, path)
    return path


def shapes(tensors: Any) -> list[tuple[str, str, Any]]:
    return [(t.name, t.dtype, t.shape) for t in tensors]


# -- what comes in ----------------------------------------------------------------------------------------------------


def test_a_pipeline_from_skops_gives_label_and_probabilities(tmp_path):
    pipeline = classic_models.scaled()
    model = intake.load(saved(pipeline, tmp_path / "scaled.skops"), trust=True)
    assert (model.format, model.path.name, model.path.parent.name) == ("onnx", "scaled.onnx", model.sha256)
    assert shapes(model.signature.inputs) == [("X", "float32", ("batch", 4))]
    assert shapes(model.signature.outputs) == [
        ("label", "int64", ("batch",)),
        ("probabilities", "float32", ("batch", 3)),
    ]
    x, _ = classic_models.numbers()
    found = outputs(model, {"X": x.astype(np.float32)})
    np.testing.assert_allclose(found["probabilities"], pipeline.predict_proba(x), atol=1e-4)


def test_types_that_skops_does_not_trust_are_named(tmp_path):
    path = saved(classic_models.forest(), tmp_path / "forest.skops")
    with pytest.raises(InvalidInput, match=r"sklearn\.tree\._tree\.Tree") as refused:
        intake.load(path)
    assert "--trust" in refused.value.fix
    assert intake.load(path, trust=True).facts.kinds == {"TreeEnsembleClassifier": 1}


@pytest.mark.parametrize("suffix", [".pkl", ".pickle", ".joblib"])
def test_a_pickle_is_refused_and_never_opened(tmp_path, suffix):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(InvalidInput, match="opening one runs whatever code it holds") as refused:
        intake.load(path, trust=True)
    assert "skops.io.dump" in refused.value.fix


class Bomb:
    def __reduce__(self):
        return (sys.exit, ("a pickle ran",))


@needs_xgboost
@pytest.mark.parametrize("suffix", ["json", "ubj"])
def test_xgboosts_own_files(tmp_path, suffix):
    boosted = classic_models.boosted()
    boosted.save_model(tmp_path / f"trees.{suffix}")
    model = intake.load(tmp_path / f"trees.{suffix}")
    x, _ = classic_models.numbers()
    found = outputs(model, {"X": x.astype(np.float32)})
    assert (found["label"] == boosted.predict(x)).all()
    np.testing.assert_allclose(found["probabilities"], boosted.predict_proba(x), atol=1e-5)


@needs_xgboost
def test_a_booster_that_stopped_early_is_cut_to_its_best_iteration(tmp_path):
    from xgboost import XGBRegressor

    x, _ = classic_models.numbers()
    noise = np.random.default_rng(1).normal(size=len(x))
    model = XGBRegressor(n_estimators=40, early_stopping_rounds=3, learning_rate=0.9)
    model.fit(x[:200], noise[:200], eval_set=[(x[200:], noise[200:])], verbose=False)
    assert model.best_iteration + 1 < model.get_booster().num_boosted_rounds()
    found = outputs(intake.load(model), {"X": x.astype(np.float32)})
    np.testing.assert_allclose(found["prediction"][:, 0], model.predict(x), atol=1e-5)


@needs_lightgbm
def test_lightgbms_own_files(tmp_path):
    import lightgbm

    x, y = classic_models.numbers()
    settings = {"objective": "multiclass", "num_class": 3, "verbose": -1}
    booster = lightgbm.train(settings, lightgbm.Dataset(x, y), 5)
    booster.save_model(tmp_path / "trees.txt")
    model = intake.load(tmp_path / "trees.txt")
    assert [t.name for t in model.signature.outputs] == ["label", "probabilities"]
    found = outputs(model, {"X": x.astype(np.float32)})
    np.testing.assert_allclose(found["probabilities"], booster.predict(x.astype(np.float32)), atol=1e-5)


def test_a_text_file_that_is_no_model_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("not a tree in sight")
    with pytest.raises(InvalidInput, match="is not a readable ONNX file"):
        intake.load(tmp_path / "notes.txt")


@needs_xgboost
def test_damaged_files_are_refused(tmp_path):
    (tmp_path / "model.skops").write_bytes(b"PK nothing")
    with pytest.raises(InvalidInput, match=r"skops cannot read model\.skops"):
        intake.load(tmp_path / "model.skops")
    (tmp_path / "model.json").write_text('{"learner": {"trees": 1}}')
    with pytest.raises((InvalidInput, Failed)):
        intake.load(tmp_path / "model.json")


def test_a_function_that_makes_an_estimator():
    model = intake.load("classic_models:forest")
    assert model.path.name == "classic_models.forest.onnx"
    assert [t.name for t in model.signature.outputs] == ["label", "probabilities"]


def test_an_estimator_in_memory_leaves_no_pickle_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert intake.load(classic_models.scaled()).path.name == "Pipeline.onnx"
    assert not list(tmp_path.glob("hasten-*"))


def test_an_estimator_that_cannot_leave_the_process_says_what_to_do():
    from sklearn.preprocessing import FunctionTransformer

    with pytest.raises(Failed, match="cannot be handed to other processes") as refused:
        intake.load(FunctionTransformer(lambda x: x).fit(np.ones((2, 2))))
    assert "module:function" in refused.value.fix


def test_an_estimator_that_is_not_fitted_is_refused():
    with pytest.raises(InvalidInput, match="does not say how many features it takes"):
        intake.load("classic_models:unfitted")


def test_a_step_without_an_onnx_form_is_named(tmp_path):
    from sklearn.neighbors import KernelDensity

    with pytest.raises(Failed, match="cannot be converted to ONNX"):
        intake.load(KernelDensity().fit(np.ones((5, 2))))


@needs_lightgbm
def test_categories_of_pandas_are_refused_with_what_to_do_instead():
    from lightgbm import LGBMClassifier

    frame, labels = classic_models.mixed()
    estimator = LGBMClassifier(n_estimators=3, verbose=-1).fit(frame.assign(port=frame.port.astype("category")), labels)
    with pytest.raises(Failed, match="does not answer made-up samples") as refused:
        intake.load(estimator)
    assert "OrdinalEncoder" in refused.value.fix


def test_a_conversion_is_remembered(tmp_path, monkeypatch):
    path = saved(classic_models.scaled(), tmp_path / "scaled.skops")
    model = intake.load(path, trust=True)
    monkeypatch.setattr(classic, "run", lambda *_, **__: pytest.fail("it was converted again"))
    assert intake.load(path, trust=True) == model


def test_trust_once_given_is_not_remembered(tmp_path):
    path = saved(classic_models.forest(), tmp_path / "forest.skops")
    intake.load(path, trust=True)
    with pytest.raises(InvalidInput, match="does not trust"):
        intake.load(path)


def test_the_parent_imports_none_of_the_libraries(tmp_path):
    path = saved(classic_models.scaled(), tmp_path / "scaled.skops")
    code = (
        "import sys; from hasten import intake; intake.load(sys.argv[1], trust=True); "
        "loaded = {'sklearn', 'skops', 'skl2onnx', 'xgboost', 'lightgbm', 'onnx', 'pandas'} & set(sys.modules); "
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


# -- columns ----------------------------------------------------------------------------------------------------------


def test_columns_of_numbers_and_text_become_inputs_of_their_own():
    model = intake.load("classic_models:columns")
    assert shapes(model.signature.inputs) == [
        ("age", "float32", ("batch", 1)),
        ("fare", "float32", ("batch", 1)),
        ("port", "string", ("batch", 1)),
    ]
    frame, _ = classic_models.mixed()
    batch = {name: frame[[name]].to_numpy(np.float32 if name != "port" else object) for name in frame}
    wanted = classic_models.columns().predict_proba(frame)
    np.testing.assert_allclose(outputs(model, batch)["probabilities"], wanted, atol=1e-5)


def test_a_table_with_empty_cells_goes_to_a_model_that_takes_them(tmp_path):
    frame, labels = classic_models.mixed()
    frame.assign(survived=labels).to_csv(tmp_path / "few.csv", index=False)
    model = intake.load("classic_models:columns")
    told = intake.told(model)
    assert told["missing"] is True
    samples = data.ingest(
        tmp_path / "few.csv", model, tmp_path, label="survived", columns=told["columns"], missing=told["missing"]
    )
    found = data.SampleSet.open(samples.path)
    assert np.isnan(found[0]["age"]).all()
    assert found.labels.tolist() == labels.tolist()


def test_nan_is_refused_where_nobody_said_that_it_stands_for_what_is_missing():
    with pytest.raises(InvalidInput, match="1 NaN"):
        cast([1.0, float("nan")], "float32", "x")
    assert np.isnan(cast([1.0, float("nan")], "float32", "x", missing=True)[1])
    with pytest.raises(InvalidInput, match="1 infinite"):
        cast([float("inf"), float("nan")], "float32", "x", missing=True)


def test_columns_are_found_by_the_names_that_the_model_was_fitted_with(tmp_path):
    x, _ = classic_models.numbers(50)
    model = intake.load("classic_models:named")
    names = intake.told(model)["columns"]
    assert names == {"X": ["age", "fare", "size", "tax"]}
    rows = "\n".join(f"{n},{t},{s},{f},{a}" for n, (a, f, s, t) in enumerate(x))
    (tmp_path / "other.csv").write_text(f"number,tax,size,fare,age\n{rows}\n")
    samples = data.ingest(tmp_path / "other.csv", model, tmp_path, columns=names)
    assert "columns were found by the names" in samples.origin
    np.testing.assert_allclose(data.SampleSet.open(samples.path)[7]["X"], x[7].astype(np.float32))
    (tmp_path / "less.csv").write_text("age,fare,size,weight\n1,2,3,4\n")
    with pytest.raises(InvalidInput, match="has no column 'tax', which the model was fitted with"):
        data.ingest(tmp_path / "less.csv", model, tmp_path, columns=names)


def test_text_labels_are_judged_by_the_label_and_class_numbers_by_the_probabilities():
    from hasten.measure.prepare import _judged

    given = {"label": np.asarray("mid"), "probabilities": np.array([0.1, 0.9], np.float32)}
    names = list(given)
    assert _judged(given, names, np.array(["low", "mid"], object)) == "label"
    given["label"] = np.asarray(3)
    assert _judged(given, names, np.array([3, 7])) == "label"
    assert _judged(given, names, np.array([0, 1])) == "probabilities"
    assert _judged(given, names, None) == "probabilities"


def test_a_text_model_takes_one_text_a_sample():
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts = ["good fine day", "bad awful day", "great sun", "poor rain"] * 5
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, [1, 0, 1, 0] * 5)
    model = intake.load(pipeline)
    assert shapes(model.signature.inputs) == [("text", "string", ("batch",))]
    found = outputs(model, {"text": np.array(texts[:4], object)})
    np.testing.assert_allclose(found["probabilities"], pipeline.predict_proba(texts[:4]), atol=1e-5)


@pytest.mark.parametrize(
    "name", ["GradientBoostingRegressor", "HistGradientBoostingClassifier", "SVC", "KMeans", "PCA", "IsolationForest"]
)
def test_other_estimators_agree_with_their_onnx_form(name):
    import sklearn.cluster
    import sklearn.decomposition
    import sklearn.ensemble
    import sklearn.svm

    places = (sklearn.ensemble, sklearn.svm, sklearn.cluster, sklearn.decomposition)
    kind = next(getattr(place, name) for place in places if hasattr(place, name))
    x, y = classic_models.numbers(150)
    estimator = kind().fit(x, y % 2)
    inputs = columns.inputs_of(estimator)
    proto = conversion.to_onnx(estimator, inputs)
    batch = agreement.made_up(estimator, inputs, proto)
    agreement.check(estimator, inputs, proto, batch, "made-up samples")
    assert {value.name for value in proto.graph.output} <= set(conversion.names_of(estimator))


# -- agreement --------------------------------------------------------------------------------------------------------


def test_made_up_samples_lie_about_the_splits():
    forest = classic_models.forest()
    inputs = columns.inputs_of(forest)
    batch = agreement.made_up(forest, inputs, conversion.to_onnx(forest, inputs))
    assert len(set(forest.predict(batch["X"]).tolist())) == 3
    assert 300 < np.median(batch["X"][:, 1]) < 700


def test_a_conversion_that_answers_otherwise_is_refused():
    pipeline, inputs = classic_models.scaled(), (columns.Input("X", "float32", 4),)
    proto = conversion.to_onnx(pipeline, inputs)
    x, y = classic_models.numbers()
    pipeline.steps[-1][1].fit(pipeline.steps[0][1].transform(x), (y + 1) % 3)
    with pytest.raises(Failed, match="of 300 samples differently"):
        agreement.check(pipeline, inputs, proto, {"X": x.astype(np.float32)}, "samples")


def test_a_few_samples_beside_a_split_are_told_and_no_failure(monkeypatch):
    pipeline, inputs = classic_models.scaled(), (columns.Input("X", "float32", 4),)
    proto = conversion.to_onnx(pipeline, inputs)
    batch = {"X": classic_models.numbers()[0].astype(np.float32)}
    right = agreement.executed(proto, batch)
    flipped = {name: value.copy() for name, value in right.items()}
    flipped["label"][:2] = (flipped["label"][:2] + 1) % 3
    monkeypatch.setattr(agreement, "executed", lambda *_: flipped)
    (note,) = agreement.check(pipeline, inputs, proto, batch, "samples")
    assert note.startswith("2 of 300 samples are answered differently")


def test_the_users_samples_are_compared_too(tmp_path, monkeypatch):
    x, y = classic_models.numbers(40)
    np.savez(tmp_path / "few.npz", X=x.astype(np.float32), label=y)
    seen = []
    check = agreement.check
    monkeypatch.setattr(agreement, "check", lambda *args: seen.append(args[-1]) or check(*args))
    from hasten.isolate import Scope

    samples = {"spec": str(tmp_path / "few.npz")}
    classic.converted(classic_models.scaled(), "scaled", tmp_path, samples, Scope(lambda *_: None))
    assert seen == ["made-up samples", "samples"]


def test_a_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "skl2onnx", None)
    forest = classic_models.forest()
    with pytest.raises(InvalidInput, match="needs skl2onnx") as refused:
        conversion.to_onnx(forest, columns.inputs_of(forest))
    assert refused.value.command == "pip install 'hasten[classic]'"
