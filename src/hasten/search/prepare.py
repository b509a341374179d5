"""Makes a workload from what the user hands over, and gathers what the loop must know before it starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten import data as samples_of
from hasten import formats
from hasten.errors import HastenError, InvalidInput
from hasten.isolate import Limits, run
from hasten.measure.quality import metric as known_metric
from hasten.model import Model, Operator
from hasten.paths import cache_dir
from hasten.workload import SCENARIOS, Padding, Workload

RUNTIME_OF = {"onnx": "onnxruntime", "openvino": "openvino"}
"""The runtime that people who bring a format use today: what "as brought" means."""
OFFLINE_BATCH = 32


@dataclass(frozen=True)
class Prepared:
    """A workload with the arithmetic of a typical batch, the samples' lengths and the share of repeated samples."""

    workload: Workload
    operators: tuple[Operator, ...]
    lengths: tuple[int, ...]
    duplicates: float
    notes: tuple[str, ...]


def prepare(
    model: str | Path | Model,
    data: str | Path | None,
    *,
    scenario: str,
    metric: str | None = None,
    label: str | None = None,
    output: str | None = None,
    preprocess: str | None = None,
    batch_axis: Any = "auto",
    cpus: Sequence[int] | None = None,
    on_progress: Callable[[float | None, str], None] | None = None,
) -> Prepared:
    """Load the model, read the samples, verify padding, choose a metric; `InvalidInput` for whatever is wrong."""
    if scenario not in SCENARIOS or scenario == "train":
        raise InvalidInput(f"unknown scenario {scenario!r}", f"use one of: {', '.join(SCENARIOS[:-1])}")
    if metric is not None:
        known_metric(metric)
    loaded = model if isinstance(model, Model) else formats.load(model)
    if loaded.format not in RUNTIME_OF:
        raise InvalidInput(f"no runtime here executes {loaded.format} models", "export the model to ONNX")
    axis: Any = batch_axis
    samples = samples_of.ingest(
        data, loaded, cache_dir() / "samples", label=label, preprocess=preprocess, batch_axis=axis
    )
    if output is not None and output not in {t.name for t in loaded.signature.outputs}:
        names = ", ".join(t.name for t in loaded.signature.outputs)
        raise InvalidInput(f"the model has no output called {output!r}", f"use one of: {names}")
    try:
        found = run(
            "hasten.measure.prepare:prepare",
            {
                "model": loaded.to_json(),
                "runtime": RUNTIME_OF[loaded.format],
                "samples": str(samples.path),
                "labels": samples.labels,
                "metric": metric,
                "output": output,
            },
            Limits(seconds=600, cpus=tuple(cpus) if cpus else None),
            on_progress=on_progress,
        )
    except HastenError as error:
        if samples.kind != "synthetic" or not error.cause.startswith(f"{RUNTIME_OF[loaded.format]}:"):
            raise
        raise InvalidInput(
            f"the model does not run on samples made from its signature: {error.cause}", "give real ones with --data"
        ) from None
    workload = Workload(
        loaded, samples, found["metric"], scenario, found["output"], Padding.from_json(found["padding"])
    )
    notes = []
    if samples.kind == "synthetic":
        notes.append("no data was given: samples were made from the signature, and quality is fidelity to the model")
    elif not samples.labels:
        notes.append("the data has no labels: quality is fidelity to the model as brought")
    if workload.padding is not None and not workload.padding.verified:
        notes.append(f"samples of different lengths are not batched together: {workload.padding.reason}")
    if samples.count < 64:
        notes.append(f"only {samples.count} samples: a small loss of quality cannot be told from none")
    return Prepared(
        workload,
        formats.operators(loaded, typical_shapes(workload, found["lengths"])),
        tuple(found["lengths"] or ()),
        found["duplicates"],
        tuple(notes),
    )


def typical_shapes(workload: Workload, lengths: Sequence[int] | None) -> dict[str, tuple[int, ...]]:
    """Input shapes of one typical sample with its batch axis of 1: variable axes take the median length."""
    median = sorted(lengths)[len(lengths) // 2] if lengths else 1
    sample = {t.name: t for t in workload.samples.inputs}
    shapes = {}
    for tensor in workload.model.signature.inputs:
        inner = tuple(size if isinstance(size, int) else median for size in sample[tensor.name].shape or ())
        batched = tensor.shape is not None and len(tensor.shape) == len(inner) + 1
        first = tensor.shape[0] if batched and tensor.shape else 1
        shapes[tensor.name] = (first if isinstance(first, int) else 1, *inner) if batched else inner
    return shapes
