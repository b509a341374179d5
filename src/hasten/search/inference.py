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
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hasten.errors import HastenError
from hasten.events import Event, OnEvent, ignore
from hasten.lab.trial import Lab, quality_key
from hasten.levers import Case, Lever, Need, Prediction, Proposal
from hasten.measurement import Figure, Trial
from hasten.recipe import Recipe, Step
from hasten.search.answer import explained, front, unchanged, why
from hasten.search.candidates import (
    BASELINE,
    LATER,
    SETTINGS,
    STRUCTURE,
    Bias,
    Candidate,
    difference,
    loses_as,
    similar,
    structure,
)
from hasten.study import Study

FINAL_SHARE = 0.35
FINAL_S = 12.0
"""The share of the budget, and the least time, that is kept for the race and the confirmation."""
RACE_SHARE = 0.4
"""Of the time that is kept, the race takes this share."""
RACE_S = 15.0
"""With less time than this left, all of it goes to the confirmation."""
WORTH_EXPANDING = 0.6
"""A trial slower than this share of the best is not built upon."""
KEPT = 0.75
"""What a variant keeps of the speed of INT8 when its fragile operators are not in INT8, as a first guess."""
CANNOT_WIN = 0.9
"""A proposal predicted below this share of the best is not tried."""
HEADROOM = 1.8
"""A structure is tried while tuning its settings by this factor could make it the best."""
LARGE = 1.5
"""Settings that promise this factor, such as sorting very mixed lengths, are tried as early as structures are."""
PATIENCE = 12
DOUBT = 0.5
"""What follows a trial that misses a bound may mend it, but waits for what follows one that holds."""
IMPROVEMENT = 1.01
FINALISTS = 5
TIED = 0.98
"""A race of a minute does not tell differences smaller than this from none."""
RACE_WITHIN = 0.8
"""What screening found slower than this share of the best does not race."""
LATE_S = 5.0
CONFIRMATIONS = 4
UNTRIED = 40
OUT_OF_TIME = "not tried: the budget was spent"
NO_BETTER = "not tried: nothing had improved for a while"


HURRY_S = 30.0
"""After Ctrl-C the best so far is confirmed within this time."""


class Store(Protocol):
    """What a search asks of a store; every call is on disk when it returns."""

    def put_study(self, study: Study) -> None: ...
    def study(self, key: str) -> Study | None: ...
    def add_trial(self, key: str, trial: Trial) -> None: ...
    def trials(self, key: str) -> Sequence[Trial]: ...
    def put_state(self, key: str, name: str, value: Any) -> None: ...
    def state(self, key: str, name: str) -> Any: ...


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
        self.untried: dict[str, Trial] = {}
        self.notes: list[str] = list(self.study.notes)
        self.queue: list[Candidate] = []
        self.latest: dict[str, Candidate] = {}
        self.seconds: dict[bool, list[float]] = {True: [], False: []}
        self.lost: list[Recipe] = []
        self.blamed: dict[str, Trial] = {}
        self.proven: Trial | None = None
        self.unproven: set[str] = set()
        self.gains: dict[str, float] = {}
        self.used: dict[str, frozenset[str]] = {}
        self.counter = itertools.count()
        self.bias: dict[str, Bias] = {}
        self.profiles: dict[str, Mapping[str, float]] = {}
        self.tables: dict[str, Mapping[str, Any]] = {}
        self.started = self.measured = self.hurried = False
        self.start = self.deadline = self.lab.clock()
        budget_s = self.study.goal.budget_s
        self.reserve = max(FINAL_SHARE * budget_s, min(FINAL_S, budget_s / 2))

    # -- the whole ------------------------------------------------------------------------------------------------

    def run(self) -> Study:
        """Go on from whatever the store knows of this study, and end with an answer, also after Ctrl-C."""
        key = self.study.key
        self.before = self.store.study(key)
        # Until there is a new answer the old one stands, whatever happens to this process.
        self.store.put_study(self.study if self.before is None else replace(self.before, goal=self.study.goal))
        self.known = {trial.id: _as_screened(trial) for trial in self.store.trials(key)}
        self.tables = self.store.state(key, "sensitivity") or {}
        spent = sum(trial.seconds_spent for trial in self.known.values())
        self.start = self.lab.clock()
        self.deadline = self.start + max(0.0, self.study.goal.budget_s - spent)
        end = NO_BETTER
        try:
            if self.known:
                self._note(f"resumed with {len(self.known)} finished trials")
            self._open()
            end = self._explore()
        except KeyboardInterrupt:
            self._hurry()
            end = "not tried: stopped by the user"
        return self._finish(*self._answer(end))

    def left(self) -> float:
        """Seconds that one part of a trial may still take, so that the race and the confirmation keep their share."""
        return max(20.0, self.deadline - self.reserve / 2 - self.lab.clock())

    def _hurry(self) -> None:
        """The first Ctrl-C: what is left to do is to confirm the best so far, quickly."""
        self.hurried = True
        self.deadline = min(self.deadline, self.lab.clock() + HURRY_S)
        self._note("stopped by the user: confirming the best so far (Ctrl-C again to stop at once)")

    def _open(self) -> None:
        """Measure the model as brought, unless a stored trial did."""
        trial = self.known.get(self.brought.id) or self._keep(self._ready().baseline())
        self.trials[trial.id] = trial
        self.reserve = max(self.reserve, min(self.lab.final_s(), self.study.goal.budget_s / 1.5))
        for recipe in self.fixed:
            given = Proposal(recipe, Prediction(1.0, "given"), "the recipe as given", "recipe")
            self._push(given, self.brought, 1.0)
        self._expand(trial)

    def _ready(self) -> Lab:
        """The lab, started when something is to be measured: a study that was finished before needs none."""
        if not self.started:
            self._stage("measuring the model as brought", 0.02)
            self.lab.start(self.brought)
            self.started = True
        return self.lab

    # -- exploring ------------------------------------------------------------------------------------------------

    def _explore(self) -> str:
        """Screen candidates, best first, until nothing can win or improves, or the time is spent; say what ended it.

        What the store knows is taken from there, in its turn, so that a resumed study goes where it would have gone.
        """
        self._stage("trying what could help", 0.1)
        stale = 0
        spent = False
        everything = {"levers": sorted(self.levers), "runtimes": sorted(self.case.runtimes)}
        end = NO_BETTER if self.store.state(self.study.key, "explored") == everything else OUT_OF_TIME
        while self.queue or self.blamed:
            if self._time_to_blame():
                self._measure_sensitivity(self.blamed.pop(next(iter(self.blamed))))
                continue
            candidate = heapq.heappop(self.queue)
            recipe = candidate.proposal.recipe
            if not self._is_latest(candidate):
                continue  # proposed again, with better prospects
            best = self._best_speedup()
            trial = self.known.get(recipe.id)
            if trial is None:
                if self._out(candidate, self._sure_speedup(), stale):
                    continue
                spent = spent or end == NO_BETTER or not self._time_to_screen()
                fits = not spent and self._time_to_screen(candidate.builds)
                trial = self._screen(candidate) if fits else None
                if trial is None:
                    self._skip(candidate, end)
                    continue
            self._learn(candidate, trial)
            if self._counts(trial) and self._speed(trial) > best * IMPROVEMENT:
                stale = 0
            elif candidate.phase >= SETTINGS:
                stale += 1
            if trial.reason.startswith("quality"):
                if not similar(recipe):  # else it is not the operators that are to blame
                    self.blamed[str(recipe.runtime.get("name", ""))] = trial
                    self._repair(trial)
            elif trial.speedup is not None and (candidate.put_off or self._worth_expanding(trial)):
                self._expand(trial)
        if not spent:
            self.store.put_state(self.study.key, "explored", everything)
        return end if spent else NO_BETTER

    def _out(self, candidate: Candidate, best: float, stale: int) -> bool:
        """Whether a candidate is not to be tried now: it is skipped with the reason, or put off until the end.

        A structure that cannot win by tuning its settings could with the change that has brought most elsewhere; that
        is worth a trial only once nothing nearer improves.
        """
        recipe, phase = candidate.proposal.recipe, candidate.phase
        worse = next((lost for lost in self.lost if loses_as(recipe, lost)), None)
        if worse is not None:
            reason = f"not tried: {worse.describe()} lost too much quality, and this changes no less"
            self._skip(candidate, reason, structure(recipe))
            return True
        if stale >= {SETTINGS: PATIENCE, LATER: 2 * PATIENCE}.get(phase, math.inf):
            self._skip(candidate, NO_BETTER)
            return True
        predicted = candidate.base * candidate.proposal.gain.factor * self._bias(candidate.change).factor
        room = {BASELINE: math.inf, SETTINGS: 1 / CANNOT_WIN}.get(phase, HEADROOM)
        others = {name: gain for name, gain in self.gains.items() if name not in self.used[recipe.id]}
        helped = predicted * max(others.values(), default=1.0)
        if (helped if phase == LATER else predicted) * room >= best:
            return False
        if phase == STRUCTURE and helped * room >= best:
            later = replace(candidate, phase=LATER, rank=-helped)
            self.latest[recipe.id] = later
            heapq.heappush(self.queue, later)
        else:
            self._skip(candidate, f"not tried: predicted {predicted:.2f}x beside {best:.2f}x already reached")
        return True

    def _learn(self, candidate: Candidate, trial: Trial) -> None:
        """What a trial says of its change, and of what shares it."""
        self.trials[trial.id] = trial
        self.untried.pop(trial.id, None)
        self.seconds[candidate.builds].append(trial.seconds_spent)
        if trial.speedup is not None:
            found = trial.speedup.value / max(candidate.base, 1e-9)
            self._bias(candidate.change).learn(candidate.proposal.gain.factor, found)
            if candidate.phase != SETTINGS and self._counts(trial):
                name = candidate.proposal.lever
                self.gains[name] = max(found, self.gains.get(name, 1.0))
        if trial.reason.startswith("quality"):
            self.lost.append(trial.recipe)

    def _drain(self, end: str) -> None:
        """Say of all that is still queued why it was not tried; what an earlier run tried is a trial all the same."""
        while self.queue:
            candidate = heapq.heappop(self.queue)
            trial = self.known.get(candidate.proposal.recipe.id)
            if trial is not None:
                self.trials.setdefault(trial.id, trial)
            elif candidate.proposal.recipe.id not in self.trials:
                self._skip(candidate, end)

    def _screen(self, candidate: Candidate) -> Trial | None:
        recipe = candidate.proposal.recipe
        self.on_event(
            Event("progress", f"trying {recipe.describe()}", self._share(), None, {"why": candidate.proposal.why})
        )
        origin = "full-precision" if candidate.phase == BASELINE else "search"
        trial = self._ready().screen(recipe, origin, candidate.proposal.why)
        if trial.status == "failed" and self.lab.clock() > self.deadline - self.reserve / 2:
            return None  # cut off by the budget: a larger one may see it through
        return self._keep(trial)

    def _expand(self, trial: Trial) -> None:
        """Ask every lever what could follow this trial."""
        case = self._case(trial.recipe)
        for name, lever in self.levers.items():
            if Need.SENSITIVITY in lever.needs and case.sensitivity is None:
                continue
            try:
                proposals = list(lever.propose(case))
            except Exception as error:  # a stranger's lever must not end the study
                self._note(f"lever {name} failed to propose: {type(error).__name__}: {error}")
                continue
            for proposal in proposals:
                self._push(proposal, trial.recipe, self._speed(trial), 1.0 if self._counts(trial) else DOUBT)

    def _push(self, proposal: Proposal, parent: Recipe, base: float, trust: float = 1.0) -> None:
        recipe = proposal.recipe
        if recipe.id in self.trials:
            return
        change = f"{proposal.lever} {difference(parent, recipe)}"
        predicted = base * proposal.gain.factor * self._bias(change).factor
        before = self.latest.get(recipe.id)
        if before is not None and before.base * before.proposal.gain.factor >= base * proposal.gain.factor:
            return
        if self._full_precision(recipe):
            phase = BASELINE
        elif proposal.late:
            phase = LATER
        else:
            large = structure(recipe) != structure(parent) or proposal.gain.factor >= LARGE
            phase = STRUCTURE if large else SETTINGS
        candidate = Candidate(phase, -predicted * trust, next(self.counter), proposal, base, change)
        self.latest[recipe.id] = candidate
        self.used[recipe.id] = self.used.get(parent.id, frozenset()) | {proposal.lever}
        heapq.heappush(self.queue, candidate)

    def _is_latest(self, candidate: Candidate) -> bool:
        """Whether its recipe was not proposed again, with better prospects."""
        return self.latest[candidate.proposal.recipe.id] is candidate

    def _time_to_blame(self) -> bool:
        """Whether the operators of a trial that lost quality are now what promises most: they cost as much as trials.

        What keeps the fragile ones out of INT8 will be somewhat slower than INT8 was. Structures that need no building,
        such as another precision, cost a fraction of it and come first.
        """
        if not self.blamed or not self.queue:
            return bool(self.blamed)
        if any(c.phase <= STRUCTURE and not c.builds and self._is_latest(c) for c in self.queue):
            return False
        head, trial = self.queue[0], next(iter(self.blamed.values()))
        return (STRUCTURE, -KEPT * self._speed(trial)) <= (head.phase, head.rank)

    def _measure_sensitivity(self, trial: Trial) -> None:
        """A trial lost too much quality: learn which operators are to blame, so that the rest can stay quick."""
        # It takes about what two builds take, and what it proposes must then be built.
        late = self.lab.clock() + 3 * self._expected_seconds(builds=True) > self.deadline - self.reserve
        name = str(trial.recipe.runtime.get("name", ""))
        if self.sensitivity is None or name in self.tables or late:
            return
        self._stage("measuring which operators are sensitive", None)
        try:
            table = self.sensitivity(self._case(trial.recipe))
        except HastenError as error:
            self._note(f"the sensitivity of operators could not be measured: {error.cause}")
            return
        if table is not None:
            self.tables[name] = table
            self.store.put_state(self.study.key, "sensitivity", self.tables)
            for parent in [*self.trials.values()]:
                same = parent.recipe.runtime.get("name") == trial.recipe.runtime.get("name")
                if same and self._worth_expanding(parent) and not parent.reason.startswith("quality"):
                    self._expand(parent)

    def _repair(self, lost: Trial) -> None:
        """Ask anew what could follow without the last step of what lost: levers that see the loss keep more."""
        if not self.tables or not lost.recipe.steps:
            return
        before = structure(replace(lost.recipe, steps=lost.recipe.steps[:-1]))
        for parent in [*self.trials.values()]:
            if structure(parent.recipe) == before and not parent.reason.startswith("quality"):
                self._expand(parent)

    def _case(self, recipe: Recipe) -> Case:
        name = str(recipe.runtime.get("name", ""))
        if name not in self.profiles:
            stored = self.store.state(self.study.key, f"profile {name}")
            self.profiles[name] = self._profile(recipe, name) if stored is None else stored
        return replace(
            self.case,
            recipe=recipe,
            profile=self.profiles[name],
            trials=tuple(self.trials.values()),
            sensitivity=self.tables.get(name),
        )

    def _profile(self, recipe: Recipe, name: str) -> Mapping[str, float]:
        try:
            rows = self._ready().operators(recipe)
        except HastenError as error:
            self._note(f"no profile of {recipe.describe()}: {error.cause}")
            return {}
        total = sum(row["microseconds"] for row in rows) or 1.0
        shares: dict[str, float] = {}
        for row in rows:
            shares[row["kind"]] = shares.get(row["kind"], 0.0) + row["microseconds"] / total
        self.store.put_state(self.study.key, f"profile {name}", shares)
        return shares

    # -- deciding -------------------------------------------------------------------------------------------------

    def _answer(self, end: str) -> tuple[Trial | None, str]:
        """The choice and why; after a second Ctrl-C, what was confirmed before, else the model as brought."""
        try:
            self._drain(end)
            return self._decide()
        except KeyboardInterrupt:
            if self.hurried:
                return self._undecided()
        try:
            self._hurry()
            return self._decide()
        except KeyboardInterrupt:
            return self._undecided()

    def _undecided(self) -> tuple[Trial | None, str]:
        best = None if self.before is None else self.before.best
        if self.before is not None and best is not None:
            return self.trials.setdefault(best.id, best), self.before.why
        return self.trials.get(self.brought.id), "stopped by the user before anything was confirmed: run again to go on"

    def _decide(self) -> tuple[Trial | None, str]:
        """Race the finalists, then confirm the quickest that holds; the model as brought if none does."""
        brought = self.trials.get(self.brought.id)
        if brought is None:
            return self._undecided()
        settled = self._settled()
        if settled is not None:
            return settled
        reasons: list[str] = []
        while True:
            able = [t for t in self.trials.values() if self._counts(t) and self._speed(t) > 1.0 and t.id != brought.id]
            ranked = sorted(able, key=lambda t: (self._doubtful(t), -self._speed(t)))
            if not ranked:
                break
            lost = len(self.lost)
            winner = self._confirm(brought, ranked if self.hurried else self._race(ranked), reasons)
            if winner is not None:
                return winner, why(winner, self.study.goal)
            if self.hurried or len(self.lost) == lost or len(reasons) >= CONFIRMATIONS or not self._time_to_screen():
                break
            self._explore_again()
        if self.proven is not None:
            return self.proven, why(self.proven, self.study.goal)
        if not reasons and len(self.trials) == 1:
            return brought, "the budget was too short to try anything: give a larger one with --budget"
        if not reasons:
            return brought, "nothing that was tried is faster than the model as brought and as good"
        return self.trials[brought.id], (
            "no variant held when it was confirmed on fresh samples: " + "; ".join(dict.fromkeys(reasons))
        )

    def _settled(self) -> tuple[Trial, str] | None:
        """The winner that an earlier run confirmed, where this one measured nothing that could beat it."""
        best = None if self.before is None else self.before.best
        if self.before is None or best is None or self.measured or best.id == self.brought.id:
            return None
        if not best.final or best.status != "ok" or best.id not in self.trials:
            return None
        self._note("this study was finished before and nothing was left to try: its answer stands")
        return self.trials[best.id], self.before.why

    def _race(self, ranked: list[Trial]) -> list[Trial]:
        alike = [t for t in ranked if self._doubtful(t) == self._doubtful(ranked[0])]
        near = [t for t in alike if self._speed(t) >= RACE_WITHIN * self._speed(ranked[0])]
        finalists = self._finalists(near)
        if len(finalists) < 2:
            return ranked
        left = self._time_to_decide()
        if left < RACE_S:
            return ranked
        self._stage(f"racing {len(finalists)} finalists", 0.65)
        try:
            ratios = self._ready().race([t.recipe for t in finalists], left * RACE_SHARE)
        except HastenError as error:
            self._note(f"the final race failed, and the screened speed-ups decide: {error.cause}")
            return ranked
        raced = [t for t in finalists if t.id in ratios]
        if not raced:
            self._note("no finalist lived through the final race, and the screened speed-ups decide")
            return ranked
        for trial in finalists:
            if trial.id not in ratios:
                self._keep(replace(trial, status="failed", reason="failed in the final race"))
        raced.sort(key=lambda t: -ratios[t.id].value)
        if self.study.workload.scenario != "single-stream":
            raced = _steadiest(raced, ratios)
        return [*raced, *(t for t in ranked if t not in finalists)]

    def _finalists(self, near: list[Trial]) -> list[Trial]:
        """The best of each division of the cores, as screening tells these apart the least, then the best of all."""
        heads: dict[tuple[Any, Any], Trial] = {}
        for trial in near:
            heads.setdefault((trial.recipe.runtime.get("streams"), trial.recipe.runtime.get("threads")), trial)
        chosen = [*heads.values()][: FINALISTS - 1]
        chosen += [trial for trial in near if trial not in chosen][: FINALISTS - len(chosen)]
        return [trial for trial in near if trial in chosen]

    def _confirm(self, brought: Trial, ranked: Sequence[Trial], reasons: list[str]) -> Trial | None:
        """Fresh rounds, fresh samples: the first that holds; why the others did not is added to `reasons`.

        What shares its outputs with a variant that lost quality is not asked again; while there is time to screen, such
        a loss ends the round, so that what is left can be tuned as the loser was. Once time is short, one more is
        asked whose outputs are those of the model as brought: only its speed is in doubt.
        """
        for trial in ranked:
            left = self._time_to_decide()
            late = bool(reasons) and left < LATE_S
            if self.proven is not None and trial.id == self.proven.id:
                return self.proven
            if len(reasons) >= CONFIRMATIONS:
                break
            if trial.id in self.unproven or (late and not unchanged(trial)):
                continue
            self._stage(f"confirming {trial.recipe.describe()}", 0.8)
            beside = [brought, *self._full_precision_beside(trial)]
            try:
                confirmed = self._ready().confirm(trial, beside, max(8.0, left * (0.9 if reasons else 0.7)))
            except HastenError as error:
                confirmed = [replace(trial, status="failed", reason=error.cause)]
            for again in confirmed:
                self._keep(again)
            winner = confirmed[-1]
            if winner.status == "ok":
                return winner
            self.proven = next((t for t in confirmed[1:-1] if t.status == "ok"), self.proven)
            reasons.append(winner.reason)
            self.unproven.add(winner.id)
            if winner.reason.startswith("quality"):
                self._disown(winner)
                if self._time_to_screen():
                    break
            if late:
                break
        return None

    def _disown(self, loser: Trial) -> None:
        """What gives the same outputs as a variant that lost quality has lost it too."""
        self.lost.append(loser.recipe)
        reason = f"quality: gives the outputs of {loser.recipe.describe()}, which did not hold when it was confirmed"
        for trial in [*self.trials.values()]:
            alike = quality_key(trial.recipe) == quality_key(loser.recipe) and trial.id != loser.id
            if alike and trial.origin != "brought" and self._counts(trial):
                self.unproven.add(trial.id)
                self._keep(replace(trial, status=loser.status, reason=reason))

    def _explore_again(self) -> None:
        """Look anew from all that still stands, now that what had been the best does not."""
        self.store.put_state(self.study.key, "explored", None)
        self.latest.clear()
        if not similar(self.lost[-1]):
            self.blamed.setdefault(str(self.lost[-1].runtime.get("name", "")), self.trials[self.lost[-1].id])
        for trial in [*self.trials.values()]:
            if self._counts(trial) and self._worth_expanding(trial):
                self._expand(trial)
        self._drain(self._explore())

    def _full_precision_beside(self, trial: Trial) -> list[Trial]:
        """The same runtime at full precision with nothing else changed: the second honest baseline."""
        place = _place(trial.recipe)
        return [
            t
            for t in self.trials.values()
            if t.origin == "full-precision" and _place(t.recipe) == place and t.status != "failed"
        ][:1]

    def _full_precision(self, recipe: Recipe) -> bool:
        """Whether this is some runtime at fp32 with the runner of the model as brought."""
        plain = all(step.lever == "export" or step == Step("ctranslate2") for step in recipe.steps)
        same = plain and recipe.runner == self.brought.runner and not recipe.cache
        return (
            same
            and set(recipe.runtime) <= {"name", "precision", "device"}
            and recipe.runtime.get("precision") == "fp32"
        )

    # -- small things ---------------------------------------------------------------------------------------------

    def _finish(self, best: Trial | None, why: str) -> Study:
        """Keep the answer; a Ctrl-C that comes now delays it once."""
        try:
            return self._ended(best, why)
        except KeyboardInterrupt:
            self.hurried = True
            return self._ended(best, why)

    def _ended(self, best: Trial | None, why: str) -> Study:
        trials = explained([*self.trials.values()], best)
        for before, after in zip(self.trials.values(), trials, strict=True):
            if after is not before:
                self.store.add_trial(self.study.key, after)
        same = self.before is not None and best is not None and self.before.best_id == best.id and not self.measured
        study = replace(
            self.study,
            profiles=self.before.profiles if self.before is not None and same else {},
            trials=(*trials, *[*self.untried.values()][:UNTRIED]),
            pareto=tuple(front([t for t in trials if t.status == "ok"], self.study.goal.figure)),
            best_id="" if best is None else best.id,
            why=why,
            notes=tuple(dict.fromkeys(self.notes)),
        )
        self.store.put_study(study)
        self.on_event(Event("done", why, 1.0, study.best, {"interrupted": self.hurried}))
        return study

    def _keep(self, trial: Trial) -> Trial:
        self.measured = True
        self.trials[trial.id] = trial  # first: a Ctrl-C may come while it is stored
        self.store.add_trial(self.study.key, trial)
        self.on_event(Event("trial", trial.reason, self._share(), trial))
        return trial

    def _share(self) -> float:
        """How much of the budget is spent."""
        return min(0.99, (self.lab.clock() - self.start) / max(1e-9, self.study.goal.budget_s))

    def _skip(self, candidate: Candidate, reason: str, name: str = "") -> None:
        """Note why a recipe was not tried; of those that share a `name` only the last is kept."""
        recipe = candidate.proposal.recipe
        self.untried[name or recipe.id] = Trial(recipe.id, recipe, "rejected", reason, why=candidate.proposal.why)

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
        """Whether a trial could be the answer. An earlier run may have left it undecided; this one asks only once."""
        return trial.status in ("ok", "undecided") and trial.speedup is not None and trial.id not in self.unproven

    def _doubtful(self, trial: Trial) -> bool:
        """Whether the screened loss is above the allowed one, though that is not certain: it will hardly hold."""
        quality = trial.measurement.quality
        return quality is not None and quality.drop.value > self.study.goal.max_drop.amount

    def _worth_expanding(self, trial: Trial) -> bool:
        return self._speed(trial) >= WORTH_EXPANDING * self._best_speedup()

    def _best_speedup(self) -> float:
        counted = (t for t in self.trials.values() if self._counts(t) and not self._doubtful(t))
        return max((self._speed(t) for t in counted), default=1.0)

    def _sure_speedup(self) -> float:
        """What the best is worth at least: nothing is given up for a figure that may be a whim of the machine."""
        counted = (t.speedup for t in self.trials.values() if self._counts(t) and not self._doubtful(t) and t.speedup)
        return max((min(s.value, s.ci95[0]) if s.ci95 else s.value for s in counted), default=1.0)

    def _time_to_decide(self) -> float:
        """What is kept for it, and no more: a winner that does not hold sends the search back to look further."""
        return min(self.deadline - self.lab.clock(), self.reserve)

    def _time_to_screen(self, builds: bool = False) -> bool:
        # Without a race to come its time goes to settings, which are quick to try; a build would eat it all.
        kept = self.reserve if builds or self._rivals() else self.reserve * (1 - RACE_SHARE)
        if len(self.trials) < 2:
            kept = self.reserve / 2  # something should be tried
        return self.lab.clock() + self._expected_seconds(builds) <= self.deadline - kept

    def _rivals(self) -> bool:
        """Whether more than one trial so far would race for the answer."""
        able = [self._speed(t) for t in self.trials.values() if self._counts(t) and not self._doubtful(t)]
        return sum(speed >= RACE_WITHIN * max(able) for speed in able) > 1

    def _expected_seconds(self, builds: bool) -> float:
        """What one more trial will take: the slowest of the last five of its kind.

        Until there is one of its kind that is unknown, and hoped to be no more than the quickest so far.
        """
        same = self.seconds[builds]
        return max(same[-5:]) if same else min(self.seconds[not builds], default=0.0)


def _steadiest(raced: list[Trial], ratios: Mapping[str, Figure]) -> list[Trial]:
    """The same order, but of those that the race could not tell from the best the one with fewest threads to a stream
    first: threads that wait for each other lose most when anything else runs on the machine.
    """
    best = ratios[raced[0].id].value

    def tied(trial: Trial) -> bool:
        found = ratios[trial.id]
        high = found.value if found.ci95 is None else found.ci95[1]
        return found.value >= TIED * best or high >= best

    def threads(trial: Trial) -> float:
        runtime = trial.recipe.runtime
        return float(runtime.get("threads") or (math.inf if (runtime.get("streams") or 1) == 1 else 1))

    chosen = min((trial for trial in raced if tied(trial)), key=threads)
    return [chosen, *(trial for trial in raced if trial is not chosen)]


def _place(recipe: Recipe) -> tuple[object, object]:
    """What executes a recipe: the runtime, and the device that it names."""
    return recipe.runtime.get("name"), recipe.runtime.get("device")


def _as_screened(trial: Trial) -> Trial:
    """A stored trial without the reason that `explained` gave it beside an earlier answer."""
    return replace(trial, reason="") if trial.status == "ok" and trial.origin != "brought" else trial
