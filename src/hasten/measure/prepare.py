"""Looks at a model and its samples together, before any trial: padding, lengths, repeats, and the fitting metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hasten.isolate import Scope
from hasten.model import Model
from hasten.recipe import Recipe
from hasten.runtimes import Settings, runtime
from hasten.variant import Variant

PROBE_SAMPLES = 8


def prepare(payload: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """Run the model as brought on a few samples and say what the loop must know.

    `payload`: model, runtime (name), samples (path), labels (bool), metric (or None), output (or None). Returns
    padding, lengths (of every sample along the variable axis, or None), duplicates (share of samples that repeat an
    earlier one), metric, and output.
    """
    import numpy as np

    from hasten.data import SampleSet
    from hasten.measure.quality import default_metric
    from hasten.runner import open_runner, padding

    model = Model.from_json(payload["model"])
    samples: Any = SampleSet.open(Path(payload["samples"]))
    few = [samples[i] for i in range(min(PROBE_SAMPLES, len(samples)))]
    scope.progress(None, "running the model as brought")
    engine = runtime(payload["runtime"])
    recipe = Recipe(runtime={"name": payload["runtime"]}, runner={"batch": 1})
    runner = open_runner(Variant({"main": model}), recipe, model.signature, None)
    try:
        outputs = runner.run(few)
    finally:
        runner.close()
    pad = padding.infer(model.signature, samples)
    lengths = None
    if pad is not None:
        session = engine.load(model, Settings(precision="fp32"))
        try:
            pad = padding.verify(pad, session.run, samples)
        finally:
            session.close()
        lengths = samples.lengths(pad.axis)
    names = [t.name for t in model.signature.outputs]
    output = payload.get("output") or _judged(outputs[0], names)
    first = {name: np.asarray(value) for name, value in outputs[0].items()}
    return {
        "padding": None if pad is None else pad.to_json(),
        "lengths": lengths,
        "duplicates": samples.duplicates(),
        "output": output,
        "metric": payload.get("metric") or default_metric(model.signature, payload["labels"], first[output]),
    }


def _judged(outputs: dict[str, Any], names: list[str]) -> str:
    """The first floating-point output, else the first."""
    floating = [name for name in names if name in outputs and outputs[name].dtype.kind == "f"]
    return (floating or names)[0]
