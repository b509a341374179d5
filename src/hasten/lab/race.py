"""Races contestants against a baseline in rounds that give each of them the same share of the machine's moods."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from hasten.errors import HastenError
from hasten.measure.statistics import improvement, is_noisy
from hasten.measurement import Figure

Stopped = Literal["narrow", "decided", "alone", "rounds", "budget", "baseline failed"]

SURE = 0.999
"""The level at which a contestant is given up: sixty looks at 0.05% on either side stay near 5% in all."""


class Contestant(Protocol):
    """`round` runs once and returns the goal's figure (positive); an exception takes the contestant out of the race."""

    @property
    def name(self) -> str: ...

    def round(self) -> float: ...


@dataclass(frozen=True)
class Race:
    """What a race found. All contestants start in round 0, so equal indices of `rounds` were taken side by side.

    `ratios` holds the improvement over the baseline (above 1 is better) of each other contestant that finished a
    round with it, also of those that failed or were eliminated later; `errors` says in a line why one failed. `seconds`
    is the time by the race's clock.
    """

    baseline: str
    rounds: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    ratios: Mapping[str, Figure] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    eliminated: tuple[str, ...] = ()
    seconds: float = 0.0
    stopped: Stopped | None = None

    def pairs(self, name: str) -> tuple[tuple[float, float], ...]:
        """The raw (baseline, contestant) rounds that a ratio came from."""
        return tuple(zip(self.rounds[self.baseline], self.rounds[name], strict=False))

    @property
    def running(self) -> tuple[str, ...]:
        """The contestants that neither failed nor were eliminated, the baseline among them."""
        return tuple(name for name in self.rounds if name not in self.errors and name not in self.eliminated)

    @property
    def noisy(self) -> bool:
        """Whether the baseline's own rounds vary too much to tell a difference of 5%."""
        return is_noisy(self.rounds[self.baseline]) if self.rounds[self.baseline] else True


def race(
    contestants: Sequence[Contestant],
    *,
    ratio: Callable[[float, float], float],
    clock: Callable[[], float],
    budget_s: float,
    least_rounds: int = 1,
    min_rounds: int = 5,
    max_rounds: int = 60,
    tolerance: float = 0.02,
    eliminate: bool = False,
    stop_when: Callable[[Race], bool] | None = None,
    seed: int = 0,
    on_round: Callable[[int], None] | None = None,
) -> Race:
    """Run every contestant once a round, in an order drawn from `seed`, until it is clear how they compare.

    The first contestant is the baseline; `ratio(baseline, variant)` is the improvement (`Goal.ratio`); `on_round` hears
    how many rounds are done. The race stops, from `min_rounds` on, when every interval was within `tolerance` of its
    estimate twice running, or `stop_when` says so; when no contestant is left beside the baseline; after `max_rounds`;
    or when another round would not fit into `budget_s` by `clock` (`least_rounds` are always run). With `eliminate`,
    contestants whose upper bound lies under the best lower bound leave the race (successive elimination: Even-Dar,
    Mannor and Mansour, JMLR 7, 2006); 1, the baseline itself, is one of these bounds.

    An order drawn anew for each round is what makes the intervals hold on any machine: see `improvement`.
    """
    names = [contestant.name for contestant in contestants]
    if not names or len(set(names)) != len(names):
        raise ValueError("a race needs contestants with names of their own")
    if not 1 <= min_rounds <= max_rounds or least_rounds > max_rounds:
        raise ValueError(f"{max(least_rounds, min_rounds)} to {max_rounds} rounds is not a range")
    start = clock()
    order = random.Random(seed)
    baseline = names[0]
    rounds: dict[str, list[float]] = {name: [] for name in names}
    errors: dict[str, str] = {}
    eliminated: list[str] = []
    cost: dict[str, float] = {}
    narrow = 0

    def state() -> Race:
        ratios = {}
        for name in names[1:]:
            both = [ratio(b, v) for b, v in zip(rounds[baseline], rounds[name], strict=False)]
            if both:
                ratios[name] = improvement(both)
        frozen = {name: tuple(values) for name, values in rounds.items()}
        return Race(baseline, frozen, ratios, dict(errors), tuple(eliminated), clock() - start)

    def verdict(now: Race) -> Stopped | None:
        done = len(now.rounds[baseline])
        if baseline in now.errors:
            return "baseline failed"
        if len(names) > 1 and now.running == (baseline,):
            return "alone"
        if done >= min_rounds:
            if stop_when is not None and stop_when(now):
                return "decided"
            if narrow >= 2:  # intervals that look narrow once are too narrow a little too often
                return "narrow"
        if done >= max_rounds:
            return "rounds"
        if done >= least_rounds and now.seconds + sum(cost[name] for name in now.running) > budget_s:
            return "budget"
        return None

    while True:
        running = [c for c in contestants if c.name not in errors and c.name not in eliminated]
        for contestant in order.sample(running, len(running)):
            name, began = contestant.name, clock()
            try:
                value = float(contestant.round())
                if 0 < value < math.inf:
                    rounds[name].append(value)
                else:
                    errors[name] = f"a round gave {value}; a figure must be positive and finite"
            except HastenError as error:
                errors[name] = error.cause
            except Exception as error:  # whatever one contestant does, the others race on
                errors[name] = f"{type(error).__name__}: {error}"
            # Later rounds count for half: the first one is slower, and a budget must not end the race for it.
            cost[name] = (cost.get(name, clock() - began) + clock() - began) / 2
        now = state()
        if eliminate and len(now.rounds[baseline]) >= min_rounds:
            eliminated += _hopeless(now, ratio)
            now = replace(now, eliminated=tuple(eliminated))
        within = len(now.running) > 1 and all(_half_width(now.ratios[name]) <= tolerance for name in now.running[1:])
        narrow = narrow + 1 if within else 0
        if on_round is not None:
            on_round(len(now.rounds[baseline]))
        if (stopped := verdict(now)) is not None:
            return replace(now, stopped=stopped)


def _half_width(figure: Figure) -> float:
    return math.inf if figure.ci95 is None else (figure.ci95[1] - figure.ci95[0]) / 2 / figure.value


def _hopeless(now: Race, ratio: Callable[[float, float], float]) -> list[str]:
    bounds = {}
    for name in now.running[1:]:
        ci = improvement([ratio(b, v) for b, v in now.pairs(name)], SURE).ci95
        if ci is not None:
            bounds[name] = ci
    best = max([1.0, *(low for low, _ in bounds.values())])
    return [name for name, (_, high) in bounds.items() if high < best]
