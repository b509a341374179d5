"""A small study, and the command line called in this process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hasten.cli import main
from hasten.device import Device
from hasten.goal import Goal
from hasten.measurement import Figure, Measurement, Quality, Trial
from hasten.model import Facts, Model, Signature, Tensor
from hasten.recipe import Recipe, Step
from hasten.study import Study
from hasten.workload import Samples, Workload


def measurement(throughput: float, drop: float | None = None) -> Measurement:
    figures = {
        "throughput_per_s": Figure(throughput, "/s", "measured", (throughput * 0.98, throughput * 1.02)),
        "peak_memory_mb": Figure(119.2, "MB", "measured: peak resident memory of the worker"),
        "size_mb": Figure(3.9, "MB", "measured: the model's files"),
        "energy_j_per_inference": Figure(0.0121, "J", "estimated: CPU time x published power"),
        "cost_per_million": Figure(0.0897, "USD", "published: a price list"),
    }
    quality = None
    if drop is not None:
        value = Figure(0.93 - drop / 100, "", "measured", (0.92, 0.94))
        quality = Quality("accuracy", value, Figure(drop, "pt", "measured", (drop - 0.2, drop + 0.2)), "labels", 900)
    return Measurement(figures, quality)


def speedup(value: float) -> Figure:
    return Figure(value, "x", "measured: 24 alternating rounds", (value * 0.97, value * 1.03))


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """As brought, full precision, a winner with a long recipe, one that broke the model, a crash, and one not tried."""
    ort, ov = Recipe(runtime={"name": "onnxruntime"}), Recipe(runtime={"name": "openvino", "precision": "fp32"})
    int8 = ov.with_step(Step("int8")).edit("runtime", streams=2, threads=1).edit("runner", batch=64, sort=True)
    broken, crash, untried = ort.with_step(Step("int8")), ov.edit("runner", batch=4096), ov.edit("runner", batch=2)
    trials = (
        Trial(ort.id, ort, "ok", "the model as brought", measurement(412), speedup(1.0), origin="brought"),
        Trial(ov.id, ov, "ok", "", measurement(540, 0.0), speedup(1.31), origin="full-precision"),
        Trial(int8.id, int8, "ok", "", measurement(2260, 0.13), speedup(5.48), final=True),
        Trial(broken.id, broken, "rejected", "quality: accuracy is 4.9pt worse", measurement(660, 4.9), speedup(1.6)),
        Trial(crash.id, crash, "failed", "memory limit of 2.0 GB exceeded"),
        Trial(untried.id, untried, "rejected", "not tried: the budget was spent"),
    )
    tensor = Tensor("image", "float32", ("batch", 1, 28, 28))
    model = Model(tmp_path / "cnn.onnx", "onnx", "a" * 64, Signature((tensor,), (tensor,)), Facts(1000, 4000, 17))
    samples = Samples(tmp_path / "samples", "b" * 64, 2000, (tensor,), "data", True)
    return Study(
        Workload(model, samples, "accuracy", "offline"),
        Goal.parse("throughput", "0.5pt", ("p99<20ms",), 60),
        Device("Some Processor", cpus=(0, 1), memory_bytes=1 << 34),
        {"hasten": "0.1.0"},
        trials=trials,
        pareto=(int8.id, ov.id),
        best_id=int8.id,
        why="5.48x better throughput than the model as brought (95% interval 5.32 to 5.64)",
        notes=("resumed with 2 finished trials",),
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user whose folders are empty, in a folder of their own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("HASTEN_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def hasten(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """`hasten("optimize", ...)` gives (exit code, standard output, standard error)."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hasten", *arguments])
        code = main()
        written = capsys.readouterr()
        return code, written.out, written.err

    return call
