"""Bad input, through the command line: the right exit code, one readable message with its fix, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from e2e_case import FEATURES, Home, Said, classifier, fill

Run = Callable[..., Said]


@pytest.fixture
def refused(hasten: Run, home: Home, tmp_path: Path) -> Callable[..., str]:
    """Run `optimize` on bad input and return its message, after checking how it was refused."""

    def run(model: Path, *arguments: object, code: int = 2, says: str, command: str = "optimize") -> str:
        before = home.studies()
        out = tmp_path / "bundle"
        more = ("--budget", "20s", "--out", out) if command == "optimize" else ()
        said = hasten(command, model, *arguments, *more)
        assert said.code == code, said
        assert said.plain, said
        assert said.err.startswith("error: "), said
        assert said.err.count("error:") == 1
        assert "\n  Fix: " in said.err, said.err
        assert len(said.err.splitlines()) <= 3, said.err
        assert says in said.err
        assert not out.exists()
        assert home.studies() == before
        assert home.settled() == []
        return said.err

    return run


def samples(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path.with_name(path.name if path.suffix == ".npz" else path.name + ".npz")


GOOD = np.random.default_rng(3).normal(size=(64, FEATURES)).astype(np.float32)

# -- the model --------------------------------------------------------------------------------------------------------


def _text(path: Path) -> None:
    path.write_text("This is a letter, and no model at all.\n" * 40)


def _truncated(path: Path) -> None:
    whole = classifier(path).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _opset(version: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        model = onnx.load(str(classifier(path)))
        model.opset_import[0].version = version
        onnx.save(model, str(path))

    return make


def _operator(path: Path) -> None:
    model = onnx.load(str(classifier(path)))
    model.graph.node[0].op_type = "Frobnicate"
    onnx.save(model, str(path))


def _external_missing(path: Path) -> None:
    classifier(path, external="weights.bin")
    (path.parent / "weights.bin").unlink()


def _external_outside(location: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        classifier(path, external="weights.bin")
        (path.parent.parent / "secret.bin").write_bytes((path.parent / "weights.bin").read_bytes())
        model = onnx.load(str(path), load_external_data=False)
        for tensor in model.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location.format(folder=path.parent.parent)
        onnx.save(model, str(path))

    return make


MODELS = {
    "not an ONNX file": (_text, "is not a readable ONNX file"),
    "truncated": (_truncated, "truncated"),
    "empty": (_empty, "is empty"),
    "opset from the future": (_opset(999), "uses opset 999"),
    "opset from the past": (_opset(5), "uses opset 5"),
    "unknown operator": (_operator, "Frobnicate"),
    "external data missing": (_external_missing, "'weights.bin' (of 'w1', among others) is missing"),
    "external data outside": (_external_outside("../secret.bin"), "outside the model's folder"),
    "external data absolute": (_external_outside("{folder}/secret.bin"), "secret.bin"),
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_cannot_be_used(refused, tmp_path, data, kind):
    make, says = MODELS[kind]
    folder = tmp_path / "brought"
    folder.mkdir()
    make(folder / "model.onnx")
    refused(folder / "model.onnx", "--data", data, says=says)


@pytest.mark.parametrize("command", ["profile", "bench"])
def test_other_commands_refuse_such_a_model_alike(refused, tmp_path, data, command):
    _truncated(tmp_path / "model.onnx")
    refused(tmp_path / "model.onnx", "--data", data, says="truncated", command=command)


def test_a_model_that_is_not_there(refused, tmp_path, data):
    refused(tmp_path / "none.onnx", "--data", data, says="there is no model at")
    refused(tmp_path, "--data", data, says="is a folder, not a model file")


def test_models_of_different_inputs_are_not_compared(hasten, tmp_path, model, home):
    other = onnx.load(str(model))
    other.graph.input[0].name = other.graph.node[0].input[0] = "z"
    onnx.save(other, str(tmp_path / "other.onnx"))
    said = hasten("compare", model, tmp_path / "other.onnx", "--budget", "10s")
    assert said.code == 2
    assert said.plain
    assert "their inputs are x and z" in said.err
    assert home.settled() == []


# -- the samples ------------------------------------------------------------------------------------------------------

ONE_NAN = GOOD.copy()
ONE_NAN[3, 2] = np.nan
SAMPLES = {
    "wrong name": ({"z": GOOD}, "has no 'x'; found 'z'; the model expects x float32[batch, 16]"),
    "wrong dtype": ({"x": GOOD.astype(np.complex64)}, "input 'x' is complex64, the model takes float32"),
    "text": ({"x": np.array(["a"] * 64)}, "input 'x' is text, the model takes float32"),
    "wrong rank": ({"x": GOOD.reshape(64, 2, 2, 4)}, "'x' has 4 axes"),
    "wrong shape": ({"x": GOOD[:, :15]}, "input 'x' has the shape [15]"),
    "NaN": ({"x": ONE_NAN}, "sample 3: input 'x' has 1 NaN value(s)"),
    "infinity": ({"x": np.where(np.isnan(ONE_NAN), np.inf, ONE_NAN)}, "sample 3: input 'x'"),
    "no samples": ({"x": GOOD[:0]}, "holds no samples"),
    "too few labels": ({"x": GOOD, "label": np.zeros(10, int)}, "has 64 samples and 10 labels"),
    "labels of no class": ({"x": GOOD, "label": np.full(64, 99)}, "there are 4 classes"),
    "a late label of no class": ({"x": GOOD, "label": np.array([0] * 63 + [7])}, "labels go up to 7"),
    "labels of another kind": ({"x": GOOD, "label": np.array(["cat"] * 64)}, "text cannot be compared with numbers"),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_samples_that_do_not_fit(refused, tmp_path, model, kind):
    arrays, says = SAMPLES[kind]
    refused(model, "--data", samples(tmp_path / "samples.npz", **arrays), says=says)


def test_data_that_is_not_there_or_cannot_be_read(refused, tmp_path, model, data):
    refused(model, "--data", tmp_path / "nothing.npz", says="there are no samples at")
    refused(model, "--data", data, "--label", "kind", says="has no label key 'kind'; it has 'x', 'label'")
    (tmp_path / "letter.npz").write_text("no archive")
    refused(model, "--data", tmp_path / "letter.npz", says="letter.npz")
    refused(model, "--data", "nowhere:samples", says="there is no module 'nowhere'")


def test_a_pickle_in_the_samples_is_not_loaded(refused, tmp_path, model):
    trap = np.array([{"a": 1}] * 4, dtype=object)
    refused(model, "--data", samples(tmp_path / "trap.npz", x=trap), says="'x'")


METRICS = """
def throws(outputs, labels):
    raise ZeroDivisionError("no quality today")

def nothing(outputs, labels):
    return float("nan")
"""


def test_a_metric_that_cannot_judge(refused, tmp_path, model, data):
    (tmp_path / "my_metrics.py").write_text(METRICS)
    told = refused(model, "--data", data, "--metric", "my_metrics:throws", says="no quality today")
    assert "the metric my_metrics:throws cannot judge output 'logits'" in told
    refused(model, "--data", data, "--metric", "my_metrics:nothing", says="it gives nan")
    refused(model, "--data", data, "--metric", "my_metrics:missing", says="my_metrics has no 'missing'")
    refused(model, "--data", data, "--metric", "beauty", says="there is no metric called 'beauty'")


# -- the request ------------------------------------------------------------------------------------------------------

REQUESTS = {
    "an unknown flag": (["--bugdet", "5m"], "--bugdet"),
    "an unknown goal": (["--goal", "happiness"], "unknown goal 'happiness'"),
    "an unknown lever": (["--only", "magic"], "there is no lever called 'magic'"),
    "an unknown runtime": (["--runtime", "abacus"], "there is no runtime called 'abacus'"),
    "a bound that cannot be read": (["--where", "p99=20"], "cannot read the constraint 'p99=20'"),
    "a drop that cannot be read": (["--max-drop", "little"], "cannot read the drop 'little'"),
    "a memory limit that cannot be read": (["--memory", "lots"], "lots"),
    "more cores than there are": (["--cpus", "4096"], "4096"),
    "an unknown output": (["--output", "probabilities"], "the model has no output called 'probabilities'"),
    "an unknown output to drop": (["--drop-output", "features"], "the model has no output called 'features'"),
    "the output that is judged to drop": (["--drop-output", "logits"], "quality is judged by output logits"),
    "an unknown scenario": (["--scenario", "circus"], "circus"),
    "a store of an unknown kind": (["--store", "mongodb://here"], "a store cannot be kept in 'mongodb'"),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_request_that_makes_no_sense(refused, model, data, kind):
    arguments, says = REQUESTS[kind]
    refused(model, "--data", data, *arguments, says=says)


def test_an_output_in_the_way_is_not_overwritten(hasten, model, data, tmp_path, home):
    holiday = tmp_path / "photos"
    holiday.mkdir()
    (holiday / "beach.jpg").write_bytes(b"dear to someone")
    for out in (holiday, model, model / "bundle"):
        said = hasten("optimize", model, "--data", data, "--out", out, "--budget", "20s")
        assert said.code == 2
        assert said.plain
        assert "Fix: " in said.err
    assert (holiday / "beach.jpg").read_bytes() == b"dear to someone"
    assert home.settled() == []


# -- the disk ---------------------------------------------------------------------------------------------------------


def test_an_output_that_cannot_be_written_is_refused_before_anything_runs(hasten, disk, model, data, home):
    folder = disk("size=64k,ro")
    said = hasten("optimize", model, "--data", data, "--out", folder / "bundle", "--budget", "20s")
    assert said.code == 1
    assert said.plain
    assert f"the folder {folder} is not writable" in said.err
    assert said.out == ""
    assert home.settled() == []


def test_a_full_disk_under_the_samples(hasten, disk, model, data, home, monkeypatch):
    folder = disk("size=128k")
    fill(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    said = hasten("optimize", model, "--data", data, "--budget", "20s")
    assert said.code == 1
    assert said.plain
    assert "samples cannot be written" in said.err
    assert "No space left on device\n  Fix: free some space" in said.err
    assert [path.name for path in folder.rglob("*") if path.is_file() and path.name != "full"] == []
    assert home.settled() == []


def test_a_full_disk_under_the_store(hasten, disk, model, data, home):
    folder = disk("size=64k")
    fill(folder)
    said = hasten("optimize", model, "--data", data, "--budget", "20s", "--store", folder / "store.db")
    assert said.code == 1
    assert said.plain
    assert "the store" in said.err
    assert "Fix: " in said.err
    assert home.settled() == []


def test_a_full_disk_under_the_report(hasten, disk, tmp_path):
    folder = disk("size=16k")
    fill(folder)
    said = hasten("study", "list", "--json", folder / "list.json")
    assert said.code in (0, 1)
    if said.code:
        assert said.plain
        assert "cannot write" in said.err
