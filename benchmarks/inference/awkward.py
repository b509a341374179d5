"""Fifteen awkward models: how many `hasten optimize` ships with the right outputs, or refuses with the reason."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import Group, Run, Taken, at_least
from hasten import api
from hasten.errors import HastenError
from hasten.isolate import Limits, WorkerFailed
from hasten.isolate import run as in_worker
from hasten.study import Study

MODELS = "benchmarks.inference.awkward_models"
NAMES = (
    "branches",
    "in_place",
    "spectrum",
    "custom",
    "tied",
    "large",
    "mixed",
    "nested",
    "empty",
    "without_rows",
    "nonzero",
    "training",
    "stateful",
    "noisy",
    "recurrent",
)
BUDGET_S, FULL_S = 8.0, 40.0
"""The shorter shows that all ends well; in the longer most levers have their turn."""
MEMORY = "3GB"
"""Less than the large model, which a lever may only try to hold as a whole: that trial fails, and nothing else."""
OVERTIME_S = 900.0
"""For reading and exporting the model, and for the bundle; even on a busy machine, longer than this is a hang."""
TOLERANCE = 0.1
"""The norm of the difference over that of the module's outputs: INT8 may take a little, a wrong answer far more."""
PROBES = 12


@dataclass(frozen=True)
class Handled:
    """What became of one model: `ended` is shipped, refused or wrong, and `how` says it in words."""

    name: str
    ended: str
    how: str
    study: Study | None = None


def handled(name: str, folder: Path, budget_s: float = BUDGET_S, only: tuple[str, ...] = ()) -> Handled:
    """Optimise the model called `name`, ship it, and compare the bundle with the model itself.

    What is made lies in `folder`, and is removed again: it may be large.
    """
    try:
        return _handled(name, folder / name, budget_s, only)
    finally:
        shutil.rmtree(folder / name, ignore_errors=True)


def _handled(name: str, folder: Path, budget_s: float, only: tuple[str, ...]) -> Handled:
    start = time.monotonic()
    data = in_worker(f"{MODELS}:prepared", {"name": name, "folder": str(folder)})
    out = folder / "bundle"
    study: Study | None = None
    try:
        study = api.optimize(
            data["model"],
            data["data"],
            metric="normalised-error",
            max_drop="5pt",
            budget=budget_s,
            only=only,
            memory=MEMORY,
        )
        api.save(study, out)
    except HastenError as error:
        clear = bool(error.cause and error.fix) and "Traceback" not in error.cause
        found = Handled(name, "refused" if clear else "wrong", f"{error.cause}; fix: {error.fix or 'none'}", study)
    except Exception as error:  # whatever reaches the user like this is a defect
        found = Handled(name, "wrong", f"{type(error).__name__}: {error}", study)
    else:
        found = _compared(name, study, out, folder)
    silent = [t.recipe.describe() for t in (() if study is None else study.trials) if t.status != "ok" and not t.reason]
    if silent:
        return Handled(name, "wrong", f"no reason is given for {silent[0]}", study)
    seconds = time.monotonic() - start
    if seconds > budget_s + OVERTIME_S:
        return Handled(name, "wrong", f"took {seconds:.0f} s with a budget of {budget_s:g} s", study)
    return found


def _compared(name: str, study: Study, out: Path, folder: Path) -> Handled:
    best = study.best
    assert best is not None
    payload = {"name": name, "bundle": str(out), "folder": str(folder)}
    try:
        worst = in_worker(f"{MODELS}:judged", payload, Limits(seconds=120))
    except (HastenError, WorkerFailed) as error:
        return Handled(name, "wrong", f"the bundle does not run: {error.cause}", study)
    how = f"{best.recipe.describe()}, outputs within {worst:.2g}"
    return Handled(name, "shipped" if worst <= TOLERANCE else "wrong", how, study)


def models_handled(run: Run) -> Mapping[str, Taken]:
    found = []
    with tempfile.TemporaryDirectory(prefix="hasten-awkward-") as temporary:
        for name in NAMES:
            each = handled(name, Path(temporary), run.pick(FULL_S, BUDGET_S))
            run.say(f"  {name}: {each.ended}: {each.how}")
            found.append(each)
    ends = {end: [each.name for each in found if each.ended == end] for end in ("shipped", "refused", "wrong")}
    how = "; ".join(f"{end}: {', '.join(names)}" for end, names in ends.items() if names)
    return {"awkward.models.handled": Taken(float(len(found) - len(ends["wrong"])), how)}


GROUPS = [
    Group({"awkward.models.handled": "of 15"}, models_handled, {"awkward.models.handled": at_least(len(NAMES))}),
]
