"""The loop for inference: propose, screen, race, verify, choose.

Best-first search over recipes. Every measured recipe is expanded by all levers; a proposal's predicted speed-up is its
parent's measured one times the lever's predicted gain, corrected by how the same change has turned out so far. What
changes the structure (steps, runtime, precision) is tried before what only changes settings (streams, batches, shapes),
since settings are worth tuning only for structures that can win. Then the finalists race in fresh workers, and the
winner must hold in fresh rounds on samples that took no part in choosing it.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from hasten.errors import HastenError
from hasten.events import Event, OnEvent, ignore
from hasten.goal import HIGHER_IS_BETTER
from hasten.lab.trial import Lab, quality_key
from hasten.levers import Case, Lever, Need, Prediction, Proposal
from hasten.measure.statistics import pareto
from hasten.measurement import Trial
from hasten.recipe import SECTIONS, Recipe
from hasten.study import Study

FINAL_SHARE = 0.35
"""The share of the budget that is kept for the race and the confirmation."""
WORTH_EXPANDING = 0.6
"""A trial slower than this share of the best is not built upon."""
CANNOT_WIN = 0.9
"""A proposal predicted below this share of the best is not tried."""
HEADROOM = 1.8
"""A structure is tried while tuning its settings by this factor could make it the best."""
PATIENCE = 12
IMPROVEMENT = 1.01
FINALISTS = 4
CONFIRMATIONS = 4


class Store(Protocol):
    def put_study(self, study: Study) -> None: ...
    def add_trial(self, key: str, trial: Trial) -> None: ...
    def trials(self, key: str) -> Sequence[Trial]: ...


@dataclass(order=True)
class Candidate:
    """A proposal in the queue: honest baselines first, then structures, then settings; best predicted speed-up first."""

    phase: int
    rank: float
    number: int
    proposal: Proposal = field(compare=False)
    base: float = field(compare=False)
    change: str = field(compare=False)

    @property
    def predicted(self) -> float:
        return -self.rank


BASELINE, STRUCTURE, SETTINGS = range(3)


@dataclass
class Bias:
    """How one change turns out: the geometric mean of found over predicted gain, with one pseudo-observation of 1."""

    logs: list[float] = field(default_factory=list)

    @property
    def factor(self) -> float:
        return math.exp(sum(self.logs) / (len(self.logs) + 1))

    def learn(self, predicted: float, found: float) -> None:
        self.logs.append(math.log(max(found, 1e-3) / max(predicted, 1e-3)))


@dataclass
class Search:
    """One run of the loop over a study; `run` returns the finished study."""

    study: Study
    case: Case
    lab: Lab
    store: Store
    levers: Mapping[str, Lever]
    brought: Recipe
    on_event: OnEvent = ignore
    sensitivity: Callable[[Case], Mapping[str, Any] | None] | None = None
    fixed: Sequence[Recipe] = ()

    def __post_init__(self) -> None:
        self.trials: dict[str, Trial] = {}
        self.untried: list[Trial] = []
        self.notes: list[str] = list(self.study.notes)
        self.queue: list[Candidate] = []
        self.seen: set[str] = set()
        self.counter = itertools.count()
        self.bias: dict[str, Bias] = {}
        self.profiles: dict[str, Mapping[str, float]] = {}
        self.table: Mapping[str, Any] | None = None

    # -- the whole ------------------------------------------------------------------------------------------------

    def run(self) -> Study:
        key = self.study.key
        self.start = self.lab.clock()
        self.store.put_study(self.study)
        known = {trial.id: trial for trial in self.store.trials(key)}
        spent = sum(trial.seconds_spent for trial in known.values())
        self.deadline = self.start + max(0.0, self.study.goal.budget_s - spent)
        self.reserve = FINAL_SHARE * self.study.goal.budget_s
        if known:
            self._note(f"resumed with {len(known)} finished trials")
        interrupted = False
        try:
            self._open(known)
            self._explore(known)
        except KeyboardInterrupt:
            interrupted = True
            self._note("stopped by the user: confirming the best so far (Ctrl-C again to stop at once)")
            self.deadline = min(self.deadline, self.lab.clock() + 30)
        best, why = self._decide()
        return self._finish(best, why, interrupted)

    def _open(self, known: Mapping[str, Trial]) -> None:
        """Measure the model as brought, unless a stored trial did."""
        self._stage("measuring the model as brought", 0.02)
        self.lab.start(self.brought)
        self.seen.add(self.brought.id)
        trial = known.get(self.brought.id) or self._keep(self.lab.baseline())
        self.trials[trial.id] = trial
        for recipe in self.fixed:
            given = Proposal(recipe, Prediction(1.0, "given"), "the recipe as given", "recipe")
            self._push(given, self.brought, 1.0)
        self._expand(trial)

    # -- exploring ------------------------------------------------------------------------------------------------

    def _explore(self, known: Mapping[str, Trial]) -> None:
        """Screen candidates, best first, until nothing can win, nothing improves, or the time for it is spent."""
        self._stage("trying what could help", 0.1)
        stale = 0
        end = "not tried: nothing had improved for a while"
        while self.queue and stale < PATIENCE:
            candidate = heapq.heappop(self.queue)
            best = self._best_speedup()
            room = {BASELINE: math.inf, STRUCTURE: HEADROOM}.get(candidate.phase, 1 / CANNOT_WIN)
            predicted = candidate.base * candidate.proposal.gain.factor * self._bias(candidate.change).factor
            if predicted * room < best:
                self._skip(candidate, f"not tried: predicted {predicted:.2f}x beside {best:.2f}x already reached")
                continue
            trial = known.get(candidate.proposal.recipe.id)
            if trial is None:
                if self.lab.clock() + self._expected_seconds() > self.deadline - self.reserve:
                    end = "not tried: the budget was spent"
                    self._skip(candidate, end)
                    break
                trial = self._screen(candidate)
            self.trials[trial.id] = trial
            if trial.speedup is not None:
                found = trial.speedup.value / max(candidate.base, 1e-9)
                self._bias(candidate.change).learn(candidate.proposal.gain.factor, found)
            if candidate.phase == SETTINGS:
                stale = 0 if self._counts(trial) and self._speed(trial) > best * IMPROVEMENT else stale + 1
            if trial.reason.startswith("quality"):
                self._measure_sensitivity(trial)
            elif trial.speedup is not None:
                self._expand(trial)
        for candidate in sorted(self.queue):
            self._skip(candidate, end)
        self.queue = []

    def _screen(self, candidate: Candidate) -> Trial:
        recipe = candidate.proposal.recipe
        self.on_event(
            Event("progress", f"trying {recipe.describe()}", self._share(), None, {"why": candidate.proposal.why})
        )
        origin = "full-precision" if candidate.phase == BASELINE else "search"
        return self._keep(self.lab.screen(recipe, origin, candidate.proposal.why))

    def _expand(self, trial: Trial) -> None:
        """Ask every lever what could follow this trial."""
        if self._speed(trial) < WORTH_EXPANDING * self._best_speedup():
            return
        case = self._case(trial.recipe)
        for name, lever in self.levers.items():
            if Need.SENSITIVITY in lever.needs and self.table is None:
                continue
            try:
                proposals = list(lever.propose(case))
            except Exception as error:  # a stranger's lever must not end the study
                self._note(f"lever {name} failed to propose: {type(error).__name__}: {error}")
                continue
            for proposal in proposals:
                self._push(proposal, trial.recipe, self._speed(trial))

    def _push(self, proposal: Proposal, parent: Recipe, base: float) -> None:
        recipe = proposal.recipe
        if recipe.id in self.seen:
            return
        self.seen.add(recipe.id)
        change = f"{proposal.lever} {difference(parent, recipe)}"
        predicted = base * proposal.gain.factor * self._bias(change).factor
        if self._full_precision(recipe):
            phase = BASELINE
        else:
            phase = STRUCTURE if structure(recipe) != structure(parent) else SETTINGS
        heapq.heappush(self.queue, Candidate(phase, -predicted, next(self.counter), proposal, base, change))

    def _measure_sensitivity(self, trial: Trial) -> None:
        """A trial lost too much quality: learn which operators are to blame, so that the rest can stay quick."""
        late = self.lab.clock() > self.deadline - self.reserve
        if self.sensitivity is None or self.table is not None or late:
            return
        self._stage("measuring which operators are sensitive", None)
        try:
            self.table = self.sensitivity(self._case(trial.recipe))
        except HastenError as error:
            self._note(f"the sensitivity of operators could not be measured: {error.cause}")
            return
        if self.table is not None:
            for parent in [*self.trials.values()]:
                if parent.speedup is not None and not parent.reason.startswith("quality"):
                    self._expand(parent)

    def _case(self, recipe: Recipe) -> Case:
        name = str(recipe.runtime.get("name", ""))
        if name not in self.profiles:
            self.profiles[name] = self._profile(recipe)
        return replace(
            self.case,
            recipe=recipe,
            profile=self.profiles[name],
            trials=tuple(self.trials.values()),
            sensitivity=self.table,
        )

    def _profile(self, recipe: Recipe) -> Mapping[str, float]:
        try:
            rows = self.lab.operators(recipe)
        except HastenError as error:
            self._note(f"no profile of {recipe.describe()}: {error.cause}")
            return {}
        total = sum(row["microseconds"] for row in rows) or 1.0
        shares: dict[str, float] = {}
        for row in rows:
            shares[row["kind"]] = shares.get(row["kind"], 0.0) + row["microseconds"] / total
        return shares

    # -- deciding -------------------------------------------------------------------------------------------------

    def _decide(self) -> tuple[Trial | None, str]:
        """Race the finalists, then confirm the quickest that holds; the model as brought if none does."""
        brought = self.trials.get(self.brought.id)
        if brought is None:
            return None, "nothing was measured before the study was stopped"
        ranked = sorted((t for t in self.trials.values() if self._counts(t)), key=lambda t: -self._speed(t))
        ranked = [t for t in ranked if t.id != brought.id and self._speed(t) > 1.0]
        if not ranked:
            return brought, "nothing that was tried is faster than the model as brought and as good"
        try:
            ranked = self._race(ranked)
            return self._confirm(brought, ranked)
        except KeyboardInterrupt:
            return brought, "stopped by the user before anything was confirmed: run again to go on"

    def _race(self, ranked: list[Trial]) -> list[Trial]:
        finalists = ranked[:FINALISTS]
        if len(finalists) < 2:
            return ranked
        self._stage(f"racing {len(finalists)} finalists", 0.65)
        left = max(5.0, self.deadline - self.lab.clock())
        ratios = self.lab.race([t.recipe for t in finalists], left * 0.4)
        raced = [t for t in finalists if t.id in ratios]
        raced.sort(key=lambda t: -ratios[t.id].value)
        return [*raced, *ranked[FINALISTS:]]

    def _confirm(self, brought: Trial, ranked: Sequence[Trial]) -> tuple[Trial, str]:
        """Fresh rounds, fresh samples. What shares its outputs with a variant that lost quality is not asked again."""
        lost: set[str] = set()
        asked = 0
        reasons: list[str] = []
        for trial in ranked:
            left = self.deadline - self.lab.clock()
            if asked == CONFIRMATIONS or (asked and left < 5.0):
                break
            if quality_key(trial.recipe) in lost:
                continue
            self._stage(f"confirming {trial.recipe.describe()}", 0.8)
            beside = [brought, *self._full_precision_beside(trial)]
            try:
                confirmed = self.lab.confirm(trial, beside, max(8.0, left * (0.9 if asked else 0.7)))
            except HastenError as error:
                self._keep(replace(trial, status="failed", reason=error.cause))
                continue
            finally:
                asked += 1
            for again in confirmed:
                self.trials[again.id] = self._keep(again)
            winner = confirmed[-1]
            if winner.status == "ok":
                return winner, self._why(winner)
            reasons.append(winner.reason)
            if winner.reason.startswith("quality"):
                lost.add(quality_key(winner.recipe))
        return self.trials[brought.id], (
            "no variant held when it was confirmed on fresh samples: " + "; ".join(dict.fromkeys(reasons))
            if reasons
            else "no variant could be confirmed in the time left"
        )

    def _why(self, winner: Trial) -> str:
        speedup = winner.speedup
        if speedup is None or speedup.ci95 is None:
            return ""
        quality = winner.measurement.quality
        low, high = speedup.ci95
        name = self.study.goal.optimise
        text = f"{speedup.value:.2f}x better {name} than the model as brought (95% interval {low:.2f} to {high:.2f})"
        if quality is None:
            return text
        drop = quality.drop
        if drop.value == 0 and drop.ci95 == (0.0, 0.0):
            text += f", {quality.metric} unchanged"
        else:
            word = "down" if drop.value > 0 else "up"
            text += f", {quality.metric} {word} by {abs(drop.value):.2g} {drop.unit}"
        if drop.ci95 is not None:
            text += f" (drop at most {max(0.0, drop.ci95[1]):.2g} {drop.unit}, allowed {self.study.goal.max_drop})"
        return f"{text}, confirmed on {quality.samples} samples that took no part in choosing it"

    def _full_precision_beside(self, trial: Trial) -> list[Trial]:
        """The same runtime at full precision with nothing else changed: the second honest baseline."""
        name = trial.recipe.runtime.get("name")
        return [
            t
            for t in self.trials.values()
            if t.origin == "full-precision" and t.recipe.runtime.get("name") == name and t.status != "failed"
        ][:1]

    def _full_precision(self, recipe: Recipe) -> bool:
        """Whether this is some runtime at fp32 with the runner of the model as brought."""
        same = not recipe.steps and recipe.runner == self.brought.runner and not recipe.cache
        return same and set(recipe.runtime) <= {"name", "precision"} and recipe.runtime.get("precision") == "fp32"

    # -- small things ---------------------------------------------------------------------------------------------

    def _finish(self, best: Trial | None, why: str, interrupted: bool) -> Study:
        trials = (*self.trials.values(), *self.untried[:40])
        study = replace(
            self.study,
            trials=trials,
            pareto=tuple(front([t for t in self.trials.values() if t.status == "ok"], self.study.goal.figure)),
            best_id="" if best is None else best.id,
            why=why,
            notes=tuple(dict.fromkeys(self.notes)),
        )
        self.store.put_study(study)
        self.on_event(Event("done", why, 1.0, best, {"interrupted": interrupted}))
        return study

    def _keep(self, trial: Trial) -> Trial:
        self.store.add_trial(self.study.key, trial)
        self.on_event(Event("trial", trial.reason, self._share(), trial))
        return trial

    def _share(self) -> float:
        """How much of the budget is spent."""
        return min(0.99, (self.lab.clock() - self.start) / max(1e-9, self.study.goal.budget_s))

    def _skip(self, candidate: Candidate, reason: str) -> None:
        recipe = candidate.proposal.recipe
        self.untried.append(Trial(recipe.id, recipe, "rejected", reason, why=candidate.proposal.why))

    def _stage(self, text: str, fraction: float | None) -> None:
        self.on_event(Event("stage", text, fraction))

    def _note(self, text: str) -> None:
        self.notes.append(text)
        self.on_event(Event("note", text))

    def _bias(self, change: str) -> Bias:
        return self.bias.setdefault(change, Bias())

    def _speed(self, trial: Trial) -> float:
        return 0.0 if trial.speedup is None else trial.speedup.value

    def _counts(self, trial: Trial) -> bool:
        return trial.status in ("ok", "undecided") and trial.speedup is not None

    def _best_speedup(self) -> float:
        return max((self._speed(t) for t in self.trials.values() if self._counts(t)), default=1.0)

    def _expected_seconds(self) -> float:
        """What one more trial will take: the slowest of the last five."""
        recent = [t.seconds_spent for t in self.trials.values() if t.seconds_spent][-5:]
        return max(recent, default=0.0)


def structure(recipe: Recipe) -> str:
    """What a recipe is made of, whatever its settings: the steps, the runtime and its precision."""
    return Recipe(recipe.steps, {key: recipe.runtime.get(key) for key in ("name", "precision")}).id


def difference(parent: Recipe, child: Recipe) -> str:
    """What changed from one recipe to the next, so that the same change elsewhere is recognised."""
    changed: dict[str, Any] = {"steps": [step.to_json() for step in child.steps[len(parent.steps) :]]}
    if changed["steps"] or child.runtime.get("name") != parent.runtime.get("name"):
        changed["runtime"] = child.runtime.get("name")
    for section in SECTIONS:
        before, after = getattr(parent, section), getattr(child, section)
        changed[section + " keys"] = {k: after.get(k) for k in {*before, *after} if before.get(k) != after.get(k)}
    return json.dumps(changed, sort_keys=True)


def front(trials: Sequence[Trial], figure: str) -> list[str]:
    """Ids of the trials that no other beats in the goal's figure, peak memory, size and quality drop together."""
    names = list(dict.fromkeys([figure, "peak_memory_mb", "size_mb"]))
    rows, ids = [], []
    for trial in trials:
        figures = trial.measurement.figures
        if not all(name in figures for name in names):
            continue
        drop = 0.0 if trial.measurement.quality is None else trial.measurement.quality.drop.value
        rows.append([*(figures[name].value for name in names), drop])
        ids.append(trial.id)
    directions = [name in HIGHER_IS_BETTER for name in names] + [False]
    return [ids[i] for i in pareto(rows, directions)]
