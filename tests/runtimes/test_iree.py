"""IREE as a runtime: programs for any shape and for one, threads and streams, and what it says when it cannot."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper
from small_models import linear

pytest.importorskip("iree.compiler", reason="iree-base-compiler is not installed: it is not among all extras (400 MB)")
pytest.importorskip("iree.runtime", reason="iree-base-runtime is not installed: it is not among all extras (400 MB)")

from hasten.errors import Failed, InvalidInput
from hasten.model import Model, Tensor
from hasten.runtimes import Settings, runtime
from hasten.runtimes import iree as wrapper
from hasten.runtimes.iree_compiler import NotCompiled, compiled_program, told_by
from hasten.runtimes.iree_profile import kernel_times, kind_of_kernel
from onnx_files import save

ONE = Settings(threads=1)


def hashed(model: Model) -> Model:
    """With the hash of its content, by which compiled programs are kept."""
    return replace(model, sha256=hashlib.sha256(model.path.read_bytes()).hexdigest())


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory):
    """Programs are compiled once for this module, and nothing is left in the user's cache."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder / "hasten" / "iree"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, np.ndarray]:
    found, weight = linear(tmp_path_factory.mktemp("models"))
    return hashed(found), weight


def batch(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)


def answered(model: tuple[Model, np.ndarray], rows: int) -> np.ndarray:
    return np.maximum(batch(rows) @ model[1], 0)


def test_one_program_takes_batches_of_every_size(model, cache):
    session = runtime("iree").load(model[0], ONE)
    for rows in (1, 3, 8):
        found = session.run({"x": batch(rows)})
        assert list(found) == ["y"]
        np.testing.assert_allclose(found["y"], answered(model, rows), atol=1e-5)
    session.close()
    assert len(list(cache.glob("*.vmfb"))) == 1


def test_outputs_stay_what_they_were_when_others_follow(model):
    session = runtime("iree").load(model[0], ONE)
    found = [session.run({"x": batch(rows)})["y"] for rows in range(1, 40)]
    session.close()
    for rows, each in enumerate(found, 1):
        np.testing.assert_allclose(each, answered(model, rows), atol=1e-5)


def test_a_program_is_compiled_once(model, monkeypatch):
    made = compiled_program(model[0], None, None)
    monkeypatch.setattr("hasten.runtimes.iree_compiler._compile", lambda *_: pytest.fail("compiled again"))
    assert compiled_program(model[0], None, None) == made


def test_streams_answer_what_a_single_run_does(model):
    session = runtime("iree").load(model[0], Settings(threads=1, streams=2))
    futures = [session.submit({"x": batch(rows)}) for rows in range(1, 7)]
    for rows, future in enumerate(futures, 1):
        np.testing.assert_allclose(future.result()["y"], answered(model, rows), atol=1e-5)
    session.close()


THREADS = """
import json, os, sys
import numpy as np
from hasten.errors import Failed
from hasten.model import Model
from hasten.runtimes import Settings, runtime

model = Model.from_json(json.loads(sys.argv[1]))
session = runtime("iree").load(model, Settings(threads=2))
total = float(session.run({"x": np.ones((2, 4), np.float32)})["y"].sum())
started = len(os.listdir("/proc/self/task"))
try:
    runtime("iree").load(model, Settings(threads=3))
    refused = ""
except Failed as error:
    refused = str(error)
session.close()
print(json.dumps([total, started, refused]))
"""


def test_a_process_has_one_pool_of_threads(model):
    done = subprocess.run(
        [sys.executable, "-c", THREADS, json.dumps(model[0].to_json())],
        capture_output=True,
        text=True,
        env=dict(os.environ),
    )
    assert done.returncode == 0, done.stderr
    total, started, refused = json.loads(done.stdout)
    assert total == pytest.approx(float(np.maximum(np.ones((2, 4)) @ model[1], 0).sum()), rel=1e-5)
    assert started >= 3
    assert "iree runs 2 threads in this process" in refused


def test_fixed_shapes_get_a_program_of_their_own(model, cache):
    before = set(cache.glob("*.vmfb"))
    session = runtime("iree").load(model[0], Settings(threads=1, shapes={"x": (2, 4)}))
    np.testing.assert_allclose(session.run({"x": batch(2)})["y"], answered(model, 2), atol=1e-5)
    with pytest.raises(InvalidInput, match="dimension 0 mismatch"):
        session.run({"x": batch(3)})
    session.close()
    assert len(set(cache.glob("*.vmfb")) - before) == 1


def test_what_cannot_be_compiled_for_any_shape_is_compiled_for_each(model, monkeypatch):
    """As with operators that the compiler knows for known shapes alone."""
    asked = []

    def compiler(model, shapes, level):
        asked.append(shapes)
        if shapes is None:
            raise NotCompiled("iree cannot load it")
        return compiled_program(model, shapes, level)

    monkeypatch.setattr(wrapper, "compiled_program", compiler)
    monkeypatch.setattr(wrapper, "MOST_PROGRAMS", 1)
    session = runtime("iree").load(model[0], ONE)
    for rows in (2, 2, 5, 2):
        np.testing.assert_allclose(session.run({"x": batch(rows)})["y"], answered(model, rows), atol=1e-5)
    session.close()
    assert asked == [None, *((("x", (rows, 4)),) for rows in (2, 5, 2))]


def test_outputs_come_in_their_own_types_and_order(tmp_path):
    model = save(
        tmp_path / "types.onnx",
        [helper.make_node("Greater", ["a", "b"], ["more"]), helper.make_node("Cast", ["a"], ["half"], to=10)],
        [Tensor("a", "float32", ("n", 3)), Tensor("b", "float32", ("n", 3))],
        [Tensor("more", "bool", ("n", 3)), Tensor("half", "float16", ("n", 3))],
    )
    session = runtime("iree").load(hashed(model), ONE)
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 2.5, np.float32)
    found = session.run({"b": b, "a": a})
    session.close()
    assert {name: array.dtype for name, array in found.items()} == {"more": bool, "half": np.float16}
    np.testing.assert_array_equal(found["more"], a > b)
    np.testing.assert_array_equal(found["half"], a.astype(np.float16))


def test_what_the_compiler_cannot_do_is_a_failure_with_another_way_to_go(tmp_path):
    """IREE 3.13 dies of this one, and takes no one with it."""
    model = save(
        tmp_path / "unique.onnx",
        [helper.make_node("Unique", ["x"], ["y"])],
        [Tensor("x", "float32", (4,))],
        [Tensor("y", "float32", (None,))],
    )
    with pytest.raises(Failed, match=r"^iree cannot load unique\.onnx: its compiler ") as failure:
        runtime("iree").load(hashed(model), ONE)
    assert "onnxruntime" in failure.value.fix


def test_the_reason_names_the_operator_or_is_the_first_error():
    lacking = """m.mlir:4:1: error: failed to legalize operation 'torch.operator' that was explicitly marked illegal: \
%0 = "torch.operator"(%arg0) <{name = "onnx.Foo"}> : (!torch.vtensor<[1,4],f32>) -> !torch.vtensor<[1,4],f32>"""
    assert told_by(lacking) == "its compiler has no operator Foo for these types and shapes"
    large = "<unknown>:0: error: loc(\"norm\"): 'func.func' op exceeded stack allocation limit\n<unknown>:0: note: loc"
    assert told_by(large) == "'func.func' op exceeded stack allocation limit"
    assert told_by("Traceback\n  File x\nDecodeError: Error parsing message\n") == "DecodeError: Error parsing message"


def test_a_file_that_is_no_model_is_a_failure_with_a_reason(tmp_path, model):
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"\xff" * 64)
    broken = hashed(replace(model[0], path=path))
    with pytest.raises(Failed, match=r"^iree cannot load broken\.onnx: .*Error"):
        runtime("iree").load(broken, ONE)


def test_bad_batches_are_refused_and_the_session_goes_on(model, tmp_path):
    session = runtime("iree").load(model[0], ONE)
    with pytest.raises(InvalidInput, match="misses x"):
        session.run({})
    with pytest.raises(InvalidInput, match="dimension 1 mismatch; expected 4 but have 5"):
        session.run({"x": np.ones((2, 5), np.float32)})
    with pytest.raises(InvalidInput, match="expected f32"):
        session.run({"x": np.ones((2, 4))})
    np.testing.assert_allclose(session.run({"x": batch(2)})["y"], answered(model, 2), atol=1e-5)
    session.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(precision="bf16"), "no precision 'bf16'"),
        (Settings(options={"opt_level": "O9"}), "opt_level = 'O9'"),
        (Settings(options={"hint": "latency"}), "no option hint"),
        (Settings(threads=0), "threads = 0"),
    ],
)
def test_settings_that_it_does_not_have_are_refused(model, settings, message):
    with pytest.raises(InvalidInput, match=message):
        runtime("iree").load(model[0], settings)


def test_operators_are_the_kernels_that_it_made(model):
    session = runtime("iree").load(model[0], ONE)
    found = session.operators({"x": batch(64)}, repeats=3)
    session.close()
    assert "MatMul" in {time.kind for time in found}
    assert all(time.microseconds > 0 and time.executed == "llvm-cpu" for time in found)


def test_the_time_of_a_kernel_is_that_of_one_run_without_the_first():
    def event(key: str, start: int, took: int) -> dict[str, object]:
        return {"key": key, "duration_ns": took, "start_host_time_ns": start, "end_host_time_ns": start + took}

    kernels = ("0_slow_memcpy", "1_matmul_like_Dx4_f32", "0_slow_memcpy")
    runs = [(9000, 9000, 9000), (1000, 4000, 1000), (3000, 6000, 3000)]
    events = [
        event(f"main$async_dispatch_{kernel}", run * 10**6 + i * 10**5, took)
        for run, times in enumerate(runs)
        for i, (kernel, took) in enumerate(zip(kernels, times, strict=True))
    ]
    found = kernel_times(events, 3)
    assert [(time.kind, time.microseconds) for time in found] == [("MatMul", 5.0), ("slow_memcpy", 4.0)]
    assert kind_of_kernel("main$async_dispatch_2_reduction_DxDx384_f32") == "reduction"


def test_without_its_packages_it_says_how_to_get_them(monkeypatch):
    def absent(package: str) -> str:
        raise wrapper.PackageNotFoundError(package)

    monkeypatch.setattr(wrapper, "version", absent)
    found = wrapper.Iree()
    assert found.availability().command == "pip install 'hasten[iree]'"
    assert not found.availability().usable
