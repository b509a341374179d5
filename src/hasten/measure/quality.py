"""How good a variant is beside the baseline on the same samples: the worker function, and the metrics by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, InvalidInput
from hasten.goal import Drop
from hasten.isolate import Scope
from hasten.measure.choice import default_metric, metric, names
from hasten.measure.judge import RESAMPLES, Judgement, compare

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Judgement", "compare", "default_metric", "evaluate", "metric", "names"]


def evaluate(payload: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """Compare the outputs of a variant with the baseline's on the same samples (a worker function).

    `payload`: metric, baseline and variant (files of `measure.outputs`), samples or labels (the path of the samples, or
    None), indices (which samples the outputs are of, in order), output (name, or None for the first), max_drop ("0.5pt"
    or "1%"), seed, resamples. Returns metric, value, unit, value_ci, baseline_value, drop, drop_unit, drop_ci,
    verdict, text, samples_needed, kind, samples; an interval that the data cannot bound is None.

    A point ("pt") is 0.01 of a metric that lives in 0..1 (accuracy 0.93 to 0.925 is a drop of 0.5pt; correlations, r2
    and fidelities count as such, and a user's metric whose two values lie there), and one unit of any other metric.
    "%" is relative to the baseline's value; for normalised-error, where that is 0, to the size of the original output.
    Outputs that equal the baseline's to within rounding compute the same function: no drop, however few the samples.
    """
    from hasten.measure.outputs import load

    baseline, variant = load(Path(payload["baseline"])), load(Path(payload["variant"]))
    if len(baseline) != len(variant) or not baseline:
        raise Failed(f"the baseline has outputs of {len(baseline)} samples, the variant of {len(variant)}")
    allowed = Drop.parse(payload["max_drop"])
    chosen = payload.get("output")
    if chosen is None and ":" not in payload["metric"]:
        chosen = next(iter(baseline[0]))
    base, ours = _choose(baseline, chosen), _choose(variant, chosen)
    labels = _labels(payload)
    if labels is not None and len(labels) != len(baseline):
        raise InvalidInput(f"there are {len(labels)} labels for {len(baseline)} samples", "give one label per sample")
    judgement = compare(
        payload["metric"],
        base,
        ours,
        labels,
        allowed,
        seed=int(payload.get("seed", 0)),
        resamples=int(payload.get("resamples") or RESAMPLES),
    )
    return judgement.to_json()


def _labels(payload: Mapping[str, Any]) -> Any:
    path = payload.get("labels") or payload.get("samples")
    if not path:
        return None
    from hasten.data import SampleSet

    labels = SampleSet.open(Path(path)).labels
    return None if labels is None else labels[list(payload["indices"])]


def _choose(outputs: Sequence[Mapping[str, np.ndarray]], output: str | None) -> Any:
    from hasten.measure.outputs import stacked

    if output is None and len(outputs[0]) > 1:
        return {name: stacked(outputs, name) for name in outputs[0]}
    name = output or next(iter(outputs[0]))
    if name not in outputs[0]:
        raise InvalidInput(f"the model has no output {name!r}", f"choose one of: {', '.join(outputs[0])}")
    return stacked(outputs, name)
