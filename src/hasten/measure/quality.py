"""How good a variant is beside the baseline on the same samples, and whether that is shown to be good enough."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hasten.errors import Failed, HastenError, InvalidInput
from hasten.goal import Drop
from hasten.isolate import Scope, resolve
from hasten.model import Signature
from hasten.workload import Metric

if TYPE_CHECKING:
    import numpy as np

    from hasten.measure.metrics import Formula
    from hasten.measure.statistics import Interval

RESAMPLES = 2000
USER_METRIC_S = 20.0
"""A user's metric that is slow is resampled less often, so that the bootstrap ends within about this long."""
LEAST_RESAMPLES = 200


def metric(name: str) -> Metric:
    """The metric called `name`: a name of hasten's, or `module:function` from (outputs, labels) to a number.

    A function of the user's is better when higher unless it has an attribute `higher_is_better = False`. It gets the
    chosen output of every sample, samples first (a list where sizes differ), or a dict of them where the model has
    several outputs and none was chosen; labels are None without labels. Raises `InvalidInput` for an unknown name.
    """
    if ":" in name:
        function = resolve(name)
        return Metric(name, bool(getattr(function, "higher_is_better", True)), function)
    formula, kind = _formula(name)
    return Metric(
        name,
        formula.higher_is_better,
        lambda outputs, labels: formula.final(formula.reduce(outputs, labels), labels),
        formula.reduce if formula.mean else None,
        kind,
    )


def names() -> tuple[str, ...]:
    """Every metric that hasten has, those against labels first."""
    from hasten.measure.fidelity import FIDELITIES
    from hasten.measure.metrics import FORMULAS

    return (*FORMULAS, *FIDELITIES)


def default_metric(
    signature: Signature, has_labels: bool, output: np.ndarray | Mapping[str, np.ndarray], labels: Any = None
) -> str:
    """The metric that fits one sample's `output` (the first output of the signature, of a dict of them).

    With labels: accuracy, or rmse where the labels (if given) are not whole numbers. Without: top1-agreement for class
    scores, cosine for embeddings, normalised-error for the rest. Class scores are told by the output's name, by summing
    to one, or by a size that no embedding has; this is a guess, and `--metric` overrides it.
    """
    import numpy as np

    name = signature.outputs[0].name if signature.outputs else ""
    if isinstance(output, Mapping):
        name = name if name in output else next(iter(output))
        output = output[name]
    values = np.asarray(output)
    if has_labels:
        whole = labels is None or np.asarray(labels).dtype.kind in "iub"
        return "accuracy" if whole else "rmse"
    if values.dtype.kind != "f":
        return "top1-agreement"
    if values.ndim == 0 or values.shape[-1] == 1:
        return "normalised-error"
    words = name.casefold()
    rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
    if any(word in words for word in ("embed", "pooled", "pooler", "feature", "hidden", "vector")):
        return "cosine"
    if any(word in words for word in ("logit", "prob", "softmax", "class")):
        return "top1-agreement"
    if (rows >= 0).all() and np.allclose(rows.sum(axis=1), 1, atol=1e-3):
        return "top1-agreement"
    if values.ndim > 1:
        return "normalised-error"
    unit = math.isclose(float(np.linalg.norm(rows)), 1, abs_tol=1e-3)
    return "cosine" if unit or (values.size >= 64 and values.size % 32 == 0) else "top1-agreement"


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
    comparison = compare(
        payload["metric"],
        base,
        ours,
        labels,
        allowed,
        seed=int(payload.get("seed", 0)),
        resamples=int(payload.get("resamples") or RESAMPLES),
    )
    return comparison.to_json()


@dataclass(frozen=True)
class Comparison:
    """What `compare` found. `drop` is in `allowed`'s unit, positive where the variant is worse."""

    metric: str
    value: Interval
    baseline_value: float
    drop: Interval
    allowed: Drop
    verdict: Literal["non-inferior", "inferior", "undecided"]
    samples_needed: int | None
    kind: Literal["labels", "fidelity"]
    samples: int
    unit: str
    text: str

    def to_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "value": self.value.value,
            "unit": self.unit,
            "value_ci": _ends(self.value),
            "baseline_value": self.baseline_value,
            "drop": self.drop.value,
            "drop_unit": self.allowed.unit,
            "drop_ci": _ends(self.drop),
            "verdict": self.verdict,
            "text": self.text,
            "samples_needed": self.samples_needed,
            "kind": self.kind,
            "samples": self.samples,
        }


def compare(
    name: str, baseline: Any, variant: Any, labels: Any, allowed: Drop, *, seed: int = 0, resamples: int = RESAMPLES
) -> Comparison:
    """The paired comparison behind `evaluate`, on outputs in memory (arrays, lists of arrays, or dicts of either)."""
    from hasten.measure.fidelity import ITSELF, broken_samples, equal_to_rounding
    from hasten.measure.statistics import Interval, non_inferior, samples_needed

    pairs = [(_column(variant, key), _column(baseline, key)) for key in _keys(variant)]
    count = _count(baseline)
    broken = max(broken_samples(a, b) for a, b in pairs)
    if broken:
        raise Failed(f"the outputs are not finite on {broken} of {count} samples, where the original's are")
    sides = _sides(name, baseline, variant, labels)
    value, whole = sides.value_interval(seed, resamples)
    relative = allowed.unit == "%" and ITSELF.get(name) != 0.0
    factor = 100.0 if allowed.unit == "%" else 1 / sides.scale
    identical = all(equal_to_rounding(a, b) for a, b in pairs)
    if identical:
        drop = Interval(0.0, 0.0, 0.0)
    elif relative and whole == 0:
        raise InvalidInput(
            f"the baseline's {name} is 0, and a drop in % is relative to it", "give the allowed drop in pt, such as 1pt"
        )
    else:
        drop = sides.drop_interval(relative, seed, resamples).scaled(factor)
    verdict = non_inferior((drop.low, drop.high), allowed.amount)
    needed = None
    if verdict == "undecided":
        needed = samples_needed(drop.value, (drop.low, drop.high), allowed.amount, count, sides.changed())
    return Comparison(
        name,
        value,
        whole,
        drop,
        allowed,
        verdict,
        needed,
        sides.kind,
        count,
        "fraction" if sides.scale != 1 else "",
        _text(name, drop, allowed, verdict, needed, count, identical),
    )


@dataclass
class _Sides:
    """Both sides of a comparison, as a score over sample numbers: 0..n-1 is the baseline, n..2n-1 the variant."""

    count: int
    kind: Literal["labels", "fidelity"]
    higher_is_better: bool
    scale: float
    bounds: tuple[float, float]
    score: Callable[[Any], float]
    means: tuple[np.ndarray, np.ndarray] | None = None
    seconds: float = 0.0
    rows: tuple[Any, Any] | None = None

    def value_interval(self, seed: int, resamples: int) -> tuple[Interval, float]:
        """The variant's own score with its interval, and the baseline's score."""
        import numpy as np

        from hasten.measure.statistics import Interval, bootstrap_score, paired_bootstrap

        numbers = np.arange(self.count)
        whole = self.score(numbers)
        if self.means is not None:
            nothing = np.zeros(self.count)
            found = paired_bootstrap(nothing, self.means[1], higher_is_better=False, seed=seed, resamples=resamples)
        else:
            found = bootstrap_score(
                lambda index, _: 0.0 if index[0] < 0 else self.score(index + self.count),
                -1 - numbers,
                numbers,
                None,
                higher_is_better=False,
                seed=seed,
                resamples=self.fewer(resamples),
            )
        low, high = self.bounds
        return Interval(found.value, max(low, found.low), min(high, found.high)), whole

    def drop_interval(self, relative: bool, seed: int, resamples: int) -> Interval:
        import numpy as np

        from hasten.measure.statistics import bootstrap_score, paired_bootstrap

        if self.means is not None:
            return paired_bootstrap(
                *self.means,
                higher_is_better=self.higher_is_better,
                relative=relative,
                seed=seed,
                resamples=resamples,
            )
        numbers = np.arange(self.count)
        return bootstrap_score(
            lambda index, _: self.score(index),
            numbers,
            numbers + self.count,
            None,
            higher_is_better=self.higher_is_better,
            relative=relative,
            seed=seed,
            resamples=self.fewer(resamples),
        )

    def fewer(self, resamples: int) -> int:
        """As many resamples as `USER_METRIC_S` allows, at least `LEAST_RESAMPLES`."""
        affordable = int(USER_METRIC_S / (3 * self.seconds)) if self.seconds else resamples
        return min(resamples, max(LEAST_RESAMPLES, affordable))

    def changed(self) -> int | None:
        """How many samples score differently, or None where a sample has no score of its own."""
        import numpy as np

        sides = self.means or self.rows
        if sides is None:
            return None
        differs = np.asarray(sides[0] != sides[1]).reshape(self.count, -1)
        return int(differs.any(axis=1).sum())


def _sides(name: str, baseline: Any, variant: Any, labels: Any) -> _Sides:
    import numpy as np

    count = _count(baseline)
    if ":" in name:
        return _user_sides(name, baseline, variant, labels, count)
    formula, kind = _formula(name)
    if kind == "labels" and labels is None:
        raise InvalidInput(f"{name} needs labels, and the samples have none", "give labels, or use top1-agreement")
    truth = labels if kind == "labels" else baseline
    with _told(name, variant, truth):
        rows = (np.asarray(formula.reduce(baseline, truth)), np.asarray(formula.reduce(variant, truth)))
        both = np.concatenate(rows)

        def score(index: Any) -> float:
            picked = None if kind == "fidelity" else _pick(labels, index % count)
            return formula.final(both[index], picked)

        numbers = np.arange(count)
        for index in (numbers, numbers + count):
            _finite(score(index))
    return _Sides(
        count,
        kind,
        formula.higher_is_better,
        formula.scale,
        formula.bounds or (-math.inf, math.inf),
        score,
        (rows[0].astype(np.float64), rows[1].astype(np.float64)) if formula.mean else None,
        rows=rows,
    )


def _user_sides(name: str, baseline: Any, variant: Any, labels: Any, count: int) -> _Sides:
    import numpy as np

    described = metric(name)

    def score(index: Any) -> float:
        side, picked = (baseline, index) if index[0] < count else (variant, index - count)
        chosen = {k: _pick(v, picked) for k, v in side.items()} if isinstance(side, Mapping) else _pick(side, picked)
        return _finite(described.score(chosen, None if labels is None else _pick(labels, picked)))

    numbers = np.arange(count)
    with _told(name, variant, labels):
        start = time.perf_counter()
        found = [score(numbers), score(numbers + count)]
        seconds = (time.perf_counter() - start) / 2
    fraction = all(0 <= each <= 1 for each in found)
    bounds = (0.0, 1.0) if fraction else (-math.inf, math.inf)
    scale = 0.01 if fraction else 1.0
    return _Sides(count, "labels", described.higher_is_better, scale, bounds, score, seconds=seconds)


class _told:
    """A context in which whatever a metric throws becomes an error that names the metric and what it was given."""

    def __init__(self, name: str, outputs: Any, labels: Any) -> None:
        self.name, self.outputs, self.labels = name, outputs, labels

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, HastenError) or not isinstance(error, Exception):
            return
        labels = "no labels" if self.labels is None else f"labels {_shape(self.labels)}"
        raise InvalidInput(
            f"the metric {self.name} failed on outputs {_shape(self.outputs)} and {labels}: "
            f"{type(error).__name__}: {error}",
            "choose a metric that fits the model's output and the labels, or another output",
            "hasten optimize MODEL --metric NAME --output NAME",
        ) from None


def _formula(name: str) -> tuple[Formula, Literal["labels", "fidelity"]]:
    from hasten.measure.fidelity import FIDELITIES
    from hasten.measure.metrics import FORMULAS

    if name in FORMULAS:
        return FORMULAS[name], "labels"
    if name in FIDELITIES:
        return FIDELITIES[name], "fidelity"
    raise InvalidInput(f"there is no metric called {name!r}", f"use module:function or one of: {', '.join(names())}")


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


def _keys(outputs: Any) -> Sequence[str | None]:
    return list(outputs) if isinstance(outputs, Mapping) else [None]


def _column(outputs: Any, key: str | None) -> Any:
    return outputs if key is None else outputs[key]


def _count(outputs: Any) -> int:
    return len(next(iter(outputs.values()))) if isinstance(outputs, Mapping) else len(outputs)


def _pick(values: Any, index: Any) -> Any:
    return values[index] if hasattr(values, "ndim") else [values[i] for i in index]


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"the score is {number}")
    return number


def _shape(values: Any) -> str:
    if isinstance(values, Mapping):
        return ", ".join(f"{name} {_shape(value)}" for name, value in values.items())
    if isinstance(values, list):
        return f"of {len(values)} samples of different sizes, the first {getattr(values[0], 'shape', '?')}"
    return f"of shape {values.shape} and type {values.dtype}"


def _ends(interval: Interval) -> list[float] | None:
    return None if interval.ci95 is None else list(interval.ci95)


def _text(
    name: str, drop: Interval, allowed: Drop, verdict: str, needed: int | None, count: int, identical: bool
) -> str:
    """The verdict in a sentence, for the reason of a trial."""
    unit = allowed.unit
    if identical:
        return f"outputs equal the original's to within rounding on {count} samples"
    ends = f" (95% interval of the drop {drop.low:.3g} to {drop.high:.3g}{unit})" if drop.ci95 else ""
    found = f"{name} is {abs(drop.value):.3g}{unit} {'better' if drop.value < 0 else 'worse'}{ends}"
    if verdict == "non-inferior":
        return f"{found}: within the {allowed} allowed"
    if verdict == "inferior":
        return f"{found}: more than the {allowed} allowed"
    more = f"about {needed:,} samples would decide" if needed else "more samples are needed"
    return f"{found}: {count:,} samples cannot tell whether it is within the {allowed} allowed; {more}"
