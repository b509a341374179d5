"""Judges a variant beside the baseline: the metric of both, the drop with its interval, and the verdict."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hasten.errors import Failed, HastenError, InvalidInput
from hasten.goal import Drop
from hasten.measure.choice import formula, metric
from hasten.workload import Metric

if TYPE_CHECKING:
    import numpy as np

    from hasten.measure.statistics import Interval

RESAMPLES = 2000
USER_METRIC_S = 20.0
"""A user's metric that is slow is resampled less often, so that the bootstrap ends within about this long."""
LEAST_RESAMPLES = 200
VERDICT_LEVEL = 0.90
"""Non-inferiority asks about one side: the upper end of the two-sided 90% interval is the one-sided 95% bound."""


@dataclass(frozen=True)
class Judgement:
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
    bound: float

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
            "drop_bound": self.bound if math.isfinite(self.bound) else None,
            "verdict": self.verdict,
            "text": self.text,
            "samples_needed": self.samples_needed,
            "kind": self.kind,
            "samples": self.samples,
        }


def compare(
    name: str, baseline: Any, variant: Any, labels: Any, allowed: Drop, *, seed: int = 0, resamples: int = RESAMPLES
) -> Judgement:
    """The paired judgement behind `evaluate`, on outputs in memory (arrays, lists of arrays, or dicts of either)."""
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
        drop = tight = Interval(0.0, 0.0, 0.0)
    elif relative and whole == 0:
        raise InvalidInput(
            f"the baseline's {name} is 0, and a drop in % is relative to it", "give the allowed drop in pt, such as 1pt"
        )
    else:
        drop = sides.drop_interval(relative, seed, resamples).scaled(factor)
        tight = sides.drop_interval(relative, seed, resamples, VERDICT_LEVEL).scaled(factor)
    verdict = non_inferior((tight.low, tight.high), allowed.amount)
    needed = None
    if verdict == "undecided":
        needed = samples_needed(
            drop.value, (tight.low, tight.high), allowed.amount, sides.count, sides.changed(), VERDICT_LEVEL
        )
    return Judgement(
        name,
        value,
        whole,
        drop,
        allowed,
        verdict,
        needed,
        sides.kind,
        sides.count,
        "fraction" if sides.scale != 1 else "",
        _text(name, drop.value, tight, allowed, verdict, needed, sides.count, identical),
        tight.high,
    )


@dataclass
class _Sides:
    """Both sides of a judgement, as a score over sample numbers: 0..n-1 is the baseline, n..2n-1 the variant."""

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

    def drop_interval(self, relative: bool, seed: int, resamples: int, level: float = 0.95) -> Interval:
        import numpy as np

        from hasten.measure.statistics import bootstrap_score, paired_bootstrap

        if self.means is not None:
            return paired_bootstrap(
                *self.means,
                higher_is_better=self.higher_is_better,
                relative=relative,
                seed=seed,
                resamples=resamples,
                level=level,
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
            level=level,
        )

    def fewer(self, resamples: int) -> int:
        """As many resamples as `USER_METRIC_S` allows, at least `LEAST_RESAMPLES`."""
        # A resample scores the variant once for its own interval, and both sides once for each interval of the drop.
        affordable = int(USER_METRIC_S / (5 * self.seconds)) if self.seconds else resamples
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
    found, kind = formula(name)
    if kind == "labels" and found.labels and labels is None:
        raise InvalidInput(f"{name} needs labels, and the samples have none", "give labels, or use top1-agreement")
    truth = labels if kind == "labels" else baseline
    with _told(name, variant, truth):
        rows = (np.asarray(found.reduce(baseline, truth)), np.asarray(found.reduce(variant, truth)))
        both = np.concatenate(rows)

        def score(index: Any) -> float:
            picked = None if kind == "fidelity" or labels is None else _pick(labels, index % count)
            return found.final(both[index], picked)

        numbers = np.arange(count)
        for index in (numbers, numbers + count):
            _finite(score(index))
    return _Sides(
        count,
        kind,
        found.higher_is_better,
        found.scale,
        found.bounds or (-math.inf, math.inf),
        score,
        (rows[0].astype(np.float64), rows[1].astype(np.float64)) if found.mean else None,
        rows=rows,
    )


def _user_sides(name: str, baseline: Any, variant: Any, labels: Any, count: int) -> _Sides:
    import numpy as np

    described = metric(name)
    if described.per_sample is not None:
        return _mean_sides(described, baseline, variant, labels)

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
    kind: Literal["labels", "fidelity"] = "fidelity" if labels is None else "labels"
    return _Sides(count, kind, described.higher_is_better, scale, bounds, score, seconds=seconds)


def _mean_sides(described: Metric, baseline: Any, variant: Any, labels: Any) -> _Sides:
    """Sides of a user's metric that says what each sample scores; those that it leaves out do not count."""
    import numpy as np

    per_sample = described.per_sample
    assert per_sample is not None
    with _told(described.name, variant, labels):
        rows = [np.asarray(per_sample(side, labels), dtype=np.float64) for side in (baseline, variant)]
        if rows[0].ndim != 1 or rows[0].shape != rows[1].shape or not rows[0].size:
            raise InvalidInput(
                f"{described.name}.per_sample gives {rows[0].shape} and {rows[1].shape}", "give one score a sample"
            )
        both = np.concatenate(rows)
        _finite(float(both.sum()))
    fraction = bool((both >= 0).all() and (both <= 1).all())
    return _Sides(
        len(rows[0]),
        "fidelity" if labels is None else "labels",
        described.higher_is_better,
        0.01 if fraction else 1.0,
        (0.0, 1.0) if fraction else (-math.inf, math.inf),
        lambda index: float(both[index].mean()),
        (rows[0], rows[1]),
    )


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
    name: str,
    drop: float,
    tight: Interval,
    allowed: Drop,
    verdict: str,
    needed: int | None,
    count: int,
    identical: bool,
) -> str:
    """The verdict in a sentence, for the reason of a trial."""
    unit = allowed.unit
    if identical:
        return f"outputs equal the original's to within rounding on {count} samples"
    found = f"{name} is {abs(drop):.3g}{unit} {'better' if drop < 0 else 'worse'}"
    most = f", with 95% confidence at most {tight.high:.3g}{unit}" if math.isfinite(tight.high) else ""
    if verdict == "non-inferior":
        return f"{found}{most}: within the {allowed} allowed"
    if verdict == "inferior":
        return f"{found}, with 95% confidence at least {tight.low:.3g}{unit}: more than the {allowed} allowed"
    found += most
    more = f"about {needed:,} samples would decide" if needed else "more samples are needed"
    return f"{found}: {count:,} samples cannot tell whether it is within the {allowed} allowed; {more}"
