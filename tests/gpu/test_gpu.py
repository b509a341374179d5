"""On an NVIDIA GPU: every device and precision computes what the CPU does, there, and the whole loop tries them.

`make test-gpu` installs what these tests need and runs them; without a CUDA device they are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import hasten
from hasten.errors import Failed, GateRefused
from hasten.measurement import Trial
from hasten.model import Model, Tensor
from hasten.recipe import Recipe
from hasten.runtimes import Settings, devices_of, runtime
from hasten.runtimes.nvidia import gpus
from onnx_files import save

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not gpus() or not torch.cuda.is_available(), reason="no CUDA device is here"),
]

IN, WIDTH, OUT = 64, 512, 8
TOLERANCE = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 5e-2, "fp16": 1e-2}
"""Of the largest output: a few units in the last place of each format's fraction, over two sums of 512 terms."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("HASTEN_STORE", raising=False)


@pytest.fixture
def onnx_model(tmp_path: Path) -> Model:
    draw = np.random.default_rng(0)
    weights = {
        "first": (draw.normal(size=(IN, WIDTH)) / 8).astype(np.float32),
        "second": (draw.normal(size=(WIDTH, OUT)) / 16).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["h"], name="product"),
        helper.make_node("Relu", ["h"], ["r"], name="clip"),
        helper.make_node("MatMul", ["r", "second"], ["y"], name="head"),
    ]
    inputs, outputs = [Tensor("x", "float32", ("n", IN))], [Tensor("y", "float32", ("n", OUT))]
    return save(tmp_path / "mlp.onnx", nodes, inputs, outputs, weights)


def batch(rows: int = 32, seed: int = 1) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).normal(size=(rows, IN)).astype(np.float32)}


def close(found: Any, wanted: Any, precision: str) -> None:
    assert np.abs(np.asarray(found) - wanted).max() <= TOLERANCE[precision] * np.abs(wanted).max()


def usable(name: str, device: str) -> None:
    found = devices_of(runtime(name))[device]
    if not found.usable:
        pytest.skip(f"{name} on {device}: {found.reason}; run: {found.command}")


def opened(model: Model, name: str, precision: str | None, **options: Any) -> Iterator[Any]:
    session = runtime(name).load(model, Settings(precision, options=options))
    try:
        yield session
    finally:
        session.close()


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "inductor"])
def test_pytorch_computes_on_the_gpu(tmp_path: Path, precision: str, compiled: bool) -> None:
    from hasten.intake.module import export

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(IN, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, OUT))
    model = export(module, [{"input": batch(rows)["x"]} for rows in (2, 3)], tmp_path, "mlp")
    x = {"input": batch()["x"]}
    for session in opened(model, "torch", "fp32"):
        wanted = session.run(x)["output"]
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.max_memory_allocated()
    for session in opened(model, "torch", precision, device="cuda", compile=compiled):
        close(session.run(x)["output"], wanted, precision)
        assert torch.cuda.max_memory_allocated() > before
        assert all(time.executed == "CUDA aten" and time.microseconds > 0 for time in session.operators(x, 2))


def test_what_a_program_makes_itself_is_made_on_the_gpu(tmp_path: Path) -> None:
    from hasten.intake.module import export

    class Places(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.arange(x.shape[1], device=x.device)

    probes = [{"x": np.zeros((2, length), np.float32)} for length in (3, 5)]
    model = export(Places(), probes, tmp_path, "places")
    for session in opened(model, "torch", None, device="cuda"):
        np.testing.assert_array_equal(session.run({"x": np.zeros((2, 4), np.float32)})["output"], [[0, 1, 2, 3]] * 2)


@pytest.mark.parametrize("graph", [False, True], ids=["launched", "captured"])
@pytest.mark.parametrize(
    ("device", "precision"),
    [
        ("cuda", "fp32"),
        ("cuda", "tf32"),
        ("tensorrt", "fp32"),
        ("tensorrt", "tf32"),
        ("tensorrt", "bf16"),
        ("tensorrt", "fp16"),
    ],
)
def test_onnx_runtime_computes_on_the_gpu(onnx_model: Model, device: str, precision: str, graph: bool) -> None:
    usable("onnxruntime", device)
    batches = [batch(seed=1), batch(seed=2), batch(rows=5), batch(seed=3)]
    for session in opened(onnx_model, "onnxruntime", "fp32"):
        wanted = [session.run(each)["y"] for each in batches]
    for session in opened(onnx_model, "onnxruntime", precision, device=device, cuda_graph=graph):
        found = [session.run(each)["y"] for each in batches]
        for ours, theirs in zip(found, wanted, strict=True):
            # This process has loaded the libraries before: whether they may use TF32 is settled when they load.
            close(ours, theirs, "tf32" if (device, precision) == ("tensorrt", "fp32") else precision)
        where = {time.executed.partition(" ")[0] for time in session.operators(batches[0], 2)}
        assert where <= ({"Tensorrt", "CUDA"} if device == "tensorrt" else {"CUDA"})
        assert device != "tensorrt" or "Tensorrt" in where


def test_engines_of_tensorrt_are_kept(onnx_model: Model, tmp_path: Path) -> None:
    usable("onnxruntime", "tensorrt")
    for session in opened(onnx_model, "onnxruntime", "fp16", device="tensorrt"):
        session.run(batch())
    assert list((tmp_path / "XDG_CACHE_HOME" / "hasten" / "tensorrt" / "fp16").glob("*.engine"))


def test_a_batch_that_the_device_cannot_hold_is_a_failure_that_says_so(onnx_model: Model) -> None:
    usable("onnxruntime", "cuda")
    limit = {"CUDAExecutionProvider": {"gpu_mem_limit": 4 << 20}}
    for session in opened(onnx_model, "onnxruntime", None, device="cuda", provider_options=limit):
        with pytest.raises(Failed, match="memory is too small"):
            session.run(batch(rows=100_000))


def test_the_whole_loop_tries_the_gpu_and_ships_what_runs_there(onnx_model: Model, tmp_path: Path) -> None:
    usable("onnxruntime", "cuda")
    np.savez(tmp_path / "data.npz", x=batch(rows=400)["x"])
    study = hasten.optimize(
        str(onnx_model.path), str(tmp_path / "data.npz"), budget="90s", only=("runtime",), runtime=("onnxruntime",)
    )
    tried_on_the_gpu(study.trials, "cuda")
    recipe = Recipe(runtime={"name": "onnxruntime", "device": "cuda", "precision": "fp32"}, runner={"batch": 256})
    try:
        hasten.build(str(onnx_model.path), recipe, tmp_path / "b", str(tmp_path / "data.npz"), budget="30s")
    except GateRefused:
        pytest.skip("the CPU is faster at this little arithmetic, and nothing was shipped")
    with hasten.load(tmp_path / "b") as bundle:
        for session in opened(onnx_model, "onnxruntime", "fp32"):
            close(bundle(batch())["y"], session.run(batch())["y"], "fp32")


def test_a_hugging_face_folder_is_tried_on_the_gpu(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
        max_position_embeddings=64, num_labels=3,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "folder")
    draw = np.random.default_rng(0)
    with open(tmp_path / "data.jsonl", "w", encoding="utf-8") as file:
        for length in draw.integers(4, 40, size=120):
            ids = draw.integers(1, 100, size=length).tolist()
            file.write(json.dumps({"input_ids": ids, "attention_mask": [1] * len(ids)}) + "\n")
    study = hasten.optimize(
        str(tmp_path / "folder"), str(tmp_path / "data.jsonl"), budget="120s", only=("runtime",), runtime=("torch",)
    )
    tried_on_the_gpu(study.trials, "cuda")


def tried_on_the_gpu(trials: tuple[Trial, ...], device: str) -> None:
    """Every trial there was measured, fp32 lost nothing, and the GPU's memory was taken where NVML can tell."""
    there = [trial for trial in trials if trial.recipe.runtime.get("device") == device and trial.rounds]
    assert there, [(trial.recipe.describe(), trial.reason) for trial in trials]
    assert [trial.reason for trial in there if trial.status == "failed"] == []
    full = [trial for trial in there if trial.recipe.runtime.get("precision") == "fp32"]
    for trial in full:
        assert trial.measurement.quality is not None
        assert trial.measurement.quality.drop.value < 0.1
    try:
        import pynvml  # noqa: F401
    except ImportError:
        return
    assert all("device_memory_mb" in trial.measurement.figures for trial in there)
