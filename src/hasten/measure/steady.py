"""Whether a model's answer depends on the sample alone: not on chance, earlier calls, or what shares its batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hasten.errors import HastenError
from hasten.intake.module import difference

if TYPE_CHECKING:
    import numpy as np

    from hasten.runner.runner import Runner

    Sample = Mapping[str, np.ndarray]
    Outputs = Mapping[str, np.ndarray]

TOLERANCE = 0.05
"""A smaller difference, as a share of an output's largest magnitude, is how sums in another order turn out in bf16."""


def look(runner: Runner, samples: Sequence[Sample], alone: Sequence[Outputs]) -> dict[str, str]:
    """What is wrong, in words, each empty where nothing is. `alone` is what `runner` made of each sample by itself.

    `chance`: the same sample gives another answer each time. `mixed`: the answers to a batch cannot be told apart.
    `company`: they can, and are others than those to the samples alone.
    """
    import dataclasses

    found = dict.fromkeys(("chance", "mixed", "company"), "")
    again = runner.run(samples[:1])
    name, worst = apart(again, alone[:1])
    if worst > TOLERANCE:
        found["chance"] = f"output {name} of one sample {_by(worst)} from one call to the next"
        return found
    settings = runner.settings
    runner.settings = dataclasses.replace(settings, batch=len(samples))
    try:
        together = runner.run(samples)
    except HastenError as error:
        found["mixed"] = error.cause
        return found
    finally:
        runner.settings = settings
    name, worst = apart(together, alone)
    if worst == float("inf"):
        found["mixed"] = f"output {name} has another shape when samples run together"
    elif worst > TOLERANCE:
        found["company"] = f"output {name} {_by(worst)} when samples run together"
    return found


def apart(found: Sequence[Outputs], wanted: Sequence[Outputs]) -> tuple[str, float]:
    """The output that differs most, and by how much of its largest magnitude; text is not looked at."""
    import numpy as np

    worst = ("", 0.0)
    for ours, theirs in zip(found, wanted, strict=True):
        for name, value in theirs.items():
            value = np.asarray(value)  # text of one sample may come as it is
            if value.dtype.kind in "fiub":
                worst = max(worst, (name, difference({name: ours[name]}, {name: value})), key=lambda each: each[1])
    return worst


def _by(worst: float) -> str:
    return "changes its shape" if worst == float("inf") else f"differs by {worst:.2g} of its magnitude"
