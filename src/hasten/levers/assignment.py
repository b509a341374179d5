"""Chooses a precision for each group of operators: an exact solver under an additive model of loss and time.

A table is plain data: `{"groups": [{"name", "loss": {level: x}, "time_us": {level: t}}, ...], ...}`. Losses add up, as
independent errors' variances do; that is a model, so that the search verifies what comes out and `repair` tightens it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

Table = Mapping[str, Any]
Assignment = dict[str, str]

CUTS = 200
SAFETY = 0.9


def loss_of(table: Table, assignment: Mapping[str, str]) -> float:
    """The predicted loss: the sum over groups; measured noise below zero counts as none."""
    return sum(max(0.0, group["loss"][assignment[group["name"]]]) for group in table["groups"])


def time_of(table: Table, assignment: Mapping[str, str]) -> float:
    """The predicted time of the groups, in microseconds."""
    return float(sum(group["time_us"][assignment[group["name"]]] for group in table["groups"]))


def safest(table: Table) -> Assignment:
    """Each group at the level that loses least, the quickest of those."""
    return {
        group["name"]: min(group["loss"], key=lambda k: (max(0.0, group["loss"][k]), group["time_us"][k]))
        for group in table["groups"]
    }


def solve(table: Table, allowed_loss: float) -> Assignment:
    """The assignment of least time whose predicted loss is at most `allowed_loss`: exact, a MILP by HiGHS.

    Where even the safest assignment loses more than is allowed, that one is returned.
    """
    import numpy as np
    from scipy.optimize import LinearConstraint, milp
    from scipy.sparse import coo_matrix

    floor = safest(table)
    options = [
        (g, name, level, max(0.0, group["loss"][level]), float(group["time_us"][level]))
        for g, group in enumerate(table["groups"])
        for name in [group["name"]]
        for level in group["loss"]
    ]
    if not options or loss_of(table, floor) > allowed_loss:
        return floor
    columns = len(options)
    count = len(table["groups"])
    one_each = coo_matrix((np.ones(columns), ([o[0] for o in options], range(columns))), shape=(count, columns))
    # Scaled, as the solver's tolerance is absolute: losses to the allowed one, times to the longest.
    loss_scale = allowed_loss if allowed_loss > 0 else 1.0
    losses = np.array([min(o[3] / loss_scale, 1e6) for o in options])
    times = np.array([o[4] for o in options])
    times = times / (float(np.max(np.abs(times))) or 1.0)
    impossible = np.array([0.0 if o[3] > allowed_loss else 1.0 for o in options])
    constraints = [
        LinearConstraint(one_each.tocsr(), 1.0, 1.0),
        LinearConstraint(losses[np.newaxis], -np.inf, allowed_loss / loss_scale),
    ]
    from scipy.optimize import Bounds

    for _ in range(CUTS):
        with _unheard():
            found = milp(
                times,
                constraints=constraints,
                integrality=np.ones(columns),
                bounds=Bounds(0.0, impossible),
                options={"mip_rel_gap": 0.0},
            )
        if found.x is None:
            return floor
        picked = np.flatnonzero(found.x > 0.5)
        chosen: Assignment = {options[i][1]: options[i][2] for i in picked}
        if loss_of(table, chosen) <= allowed_loss:
            return chosen
        # Within the solver's tolerance but over the limit: forbid exactly this choice and solve again.
        cut = np.zeros((1, columns))
        cut[0, picked] = 1.0
        constraints.append(LinearConstraint(cut, -np.inf, len(picked) - 1))
    return floor


@contextmanager
def _unheard() -> Iterator[None]:
    """HiGHS 1.12 (in SciPy 1.17) prints lines of its own on standard output, which belongs to our answer alone."""
    import ctypes

    library = ctypes.CDLL(None)
    try:
        sys.stdout.flush()
        library.fflush(None)
        kept = os.dup(1)
    except (OSError, ValueError, AttributeError):  # there is no standard output to protect
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        library.fflush(None)  # what C has buffered goes nowhere too
        os.dup2(kept, 1)
        os.close(nowhere)
        os.close(kept)


def repair(table: Table, assignment: Mapping[str, str], measured_loss: float, allowed_loss: float) -> Assignment | None:
    """A tighter assignment after `assignment` lost more than predicted; None when nothing safer is left.

    All predictions are scaled by the error that was seen; where that changes nothing, the next lower loss is taken.
    """
    predicted = loss_of(table, assignment)
    if predicted <= loss_of(table, safest(table)):
        return None
    factor = max(1.0, measured_loss / predicted)
    tighter = solve(table, SAFETY * allowed_loss / factor)
    if loss_of(table, tighter) >= predicted:
        tighter = solve(table, predicted * (1.0 - 1e-6))
    return tighter if loss_of(table, tighter) < predicted else None


def kept(assignment: Mapping[str, str], level: str = "int8") -> Sequence[str]:
    """The groups that are not at `level`."""
    return [name for name, chosen in assignment.items() if chosen != level]
