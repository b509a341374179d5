"""Sets up a study and runs the loop on this machine."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from hasten.costs.tariff import Tariff
from hasten.device import Device
from hasten.errors import Failed, HastenError, InvalidInput
from hasten.events import Event, OnEvent, ignore
from hasten.goal import Goal
from hasten.isolate import Limits, run
from hasten.lab.store import Store
from hasten.lab.trial import LocalLab
from hasten.levers import Case, Lever, Proposal, all_levers, programs_of
from hasten.levers.weight_only import IN_FOUR
from hasten.measurement import Figure
from hasten.paths import cache_dir
from hasten.recipe import Recipe, Step
from hasten.runtimes import DEFAULT_RUNTIMES, all_runtimes
from hasten.runtimes.base import runs
from hasten.search.build import Builder, size_limit
from hasten.search.inference import Search
from hasten.search.prepare import CLIPS_TOGETHER, OFFLINE_BATCH, Prepared
from hasten.study import Study
from hasten.versions import versions

STORE_LIMIT = "1GB"


@dataclass(frozen=True)
class Plan:
    """Everything a run of the loop needs, decided before anything is measured."""

    study: Study
    case: Case
    levers: Mapping[str, Lever]
    brought: Recipe
    builder: Builder
    fixed: tuple[Recipe, ...] = ()
    unsteady: str = ""
    store_limit_bytes: int = field(default_factory=lambda: size_limit("HASTEN_STORE_LIMIT", STORE_LIMIT))


def plan(
    prepared: Prepared,
    goal: Goal,
    device: Device,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    runtimes: Sequence[str] = (),
    memory_bytes: int | None = None,
    seed: int = 0,
) -> Plan:
    """Choose levers and runtimes, and lay out the study. Raises `InvalidInput` for names that do not exist."""
    check_names(only, skip, runtimes)
    program = prepared.workload.program
    levers = {name: each for name, each in choose(all_levers(), only, skip).items() if program in programs_of(each)}
    usable = usable_runtimes(within_reach(prepared.workload.model.format, levers), runtimes, prepared.workload.program)
    study = Study(prepared.workload, goal, device, versions(), seed, notes=prepared.notes)
    folder = cache_dir() / "studies" / study.key[:24]
    case = Case(
        workload=prepared.workload,
        goal=goal,
        device=device,
        recipe=Recipe(),
        workdir=folder,
        split=prepared.workload.split(seed),
        operators=prepared.operators,
        lengths=prepared.lengths,
        duplicates=prepared.duplicates,
        shared=prepared.shared,
        nearest=prepared.nearest,
        runtimes=usable,
        seed=seed,
    )
    builder = Builder(case, cache_dir() / "variants", versions(), memory_bytes, seconds=max(60.0, goal.budget_s / 2))
    return Plan(study, case, levers, brought_recipe(prepared), builder, unsteady=prepared.unsteady)


def optimize(
    plan: Plan, store: Store, tariff: Tariff, *, memory_bytes: int | None = None, on_event: OnEvent = ignore
) -> Study:
    """Run the loop. Ctrl-C ends it early with a valid study.

    Raises `InvalidInput` for a model whose answers change by themselves: no variant could be shown to give the same.
    """
    if plan.unsteady:
        raise InvalidInput(
            f"the model answers the same sample differently each time: {plan.unsteady}",
            "leave chance, and what it remembers of earlier calls, out of what forward returns",
        )
    lab = LocalLab(
        plan.study.workload,
        plan.study.goal,
        plan.study.device,
        plan.case.split,
        plan.case.workdir,
        plan.builder,
        tariff,
        memory_bytes,
        plan.study.seed,
        on_event,
    )
    search = Search(
        plan.study,
        plan.case,
        lab,
        store,
        plan.levers,
        plan.brought,
        on_event,
        lambda case: measure_sensitivity(case, plan.builder),
        plan.fixed,
    )
    plan.builder.left = search.left
    try:
        study = search.run()
        if not search.hurried:
            with contextlib.suppress(KeyboardInterrupt):  # the answer is there: it is shipped without the profiles
                study = with_profiles(study, lab)
                store.put_study(study)
    finally:
        plan.builder.left = None
        lab.close()
        shutil.rmtree(plan.case.workdir, ignore_errors=True)
    with contextlib.suppress(Failed):  # that what is old cannot be deleted now is no reason to lose what is new
        plan.builder.tidy()
        store.trim(plan.store_limit_bytes)
    return study


def with_profiles(study: Study, lab: LocalLab) -> Study:
    """The study with a profile of the model as brought and of the winner, and with what bounds the winner now."""
    if study.workload.program == "encoder_decoder":
        return study  # observing one takes a runner that knows what a step is
    profiles: dict[str, Any] = dict(study.profiles)
    notes = list(study.notes)
    for name, trial in (("before", study.baseline), ("after", study.best)):
        if trial is None or name in profiles:
            continue
        if name == "after" and study.baseline is not None and trial.id == study.baseline.id and "before" in profiles:
            profiles[name] = profiles["before"]
            continue
        lab.on_event(Event("stage", f"profiling {trial.recipe.describe()}", 0.95))
        try:
            profiles[name] = lab.profile(trial.recipe)
        except HastenError as error:
            notes.append(f"no profile of {trial.recipe.describe()}: {error.cause}")
    notes += bound_notes(study, profiles.get("after"))
    return replace(study, profiles=profiles, notes=tuple(dict.fromkeys(notes)))


def bound_notes(study: Study, profile: Mapping[str, Any] | None) -> list[str]:
    """How near the winner comes to the least time that this device could take."""
    if profile is None or study.best is None:
        return []
    best = {name: Figure.from_json(figure) for name, figure in profile["best_us"].items()}
    if not best:
        return []
    name, figure = min(best.items(), key=lambda item: item[1].value)
    share = figure.value / profile["wall_us"]["value"]
    return [f"the winner runs at {share:.0%} of what this device could do in {name} ({figure.source})"]


def builder_of(study: Study) -> Builder:
    """The builder that made the variants of a study: what it built is still there, or is built again."""
    case = Case(
        workload=study.workload,
        goal=study.goal,
        device=study.device,
        recipe=Recipe(),
        workdir=cache_dir() / "studies" / study.key[:24],
        split=study.workload.split(study.seed),
        seed=study.seed,
    )
    return Builder(case, cache_dir() / "variants", study.versions)


def suggest(plan: Plan, recipe: Recipe | None = None, profile: Mapping[str, float] | None = None) -> list[Proposal]:
    """What would be tried first from `recipe`, best predicted gain first; measures nothing."""
    case = replace(plan.case, recipe=recipe or plan.brought, profile=profile or {})
    found = [proposal for lever in plan.levers.values() for proposal in lever.propose(case)]
    return sorted(found, key=lambda proposal: -proposal.gain.factor)


def brought_recipe(prepared: Prepared) -> Recipe:
    """The model as people run it today: its usual runtime with default settings, batches in arrival order."""
    workload = prepared.workload
    if workload.program == "generate":
        return Recipe(
            runtime={"name": DEFAULT_RUNTIMES[workload.model.format]}, runner={"new_tokens": prepared.new_tokens}
        )
    offline = workload.scenario != "single-stream"
    if workload.program == "encoder_decoder":  # it came in fp32, and OpenVINO's own default may be less
        return Recipe(
            runtime={"name": DEFAULT_RUNTIMES[workload.model.format], "precision": "fp32"},
            runner={"batch": CLIPS_TOGETHER if offline else 1},
        )
    return Recipe(
        runtime={"name": DEFAULT_RUNTIMES[workload.model.format]}, runner={"batch": OFFLINE_BATCH if offline else 1}
    )


def check_names(only: Sequence[str], skip: Sequence[str], runtimes: Sequence[str]) -> None:
    """Raise `InvalidInput` for a lever or a runtime that does not exist, before anything is read or measured."""
    choose(all_levers(), only, skip)
    known = all_runtimes()
    for name in runtimes:
        if name not in known:
            raise InvalidInput(f"there is no runtime called {name!r}", f"use one of: {', '.join(sorted(known))}")


def choose(levers: Mapping[str, Lever], only: Sequence[str], skip: Sequence[str]) -> Mapping[str, Lever]:
    """The levers that `--only` and `--skip` leave."""
    for name in (*only, *skip):
        if name not in levers:
            raise InvalidInput(f"there is no lever called {name!r}", f"use one of: {', '.join(sorted(levers))}")
    return {name: lever for name, lever in levers.items() if (not only or name in only) and name not in skip}


def within_reach(model_format: str, levers: Mapping[str, Lever]) -> frozenset[str]:
    """The model's format and those that a lever can make of it."""
    made = [target for lever in levers.values() for target in getattr(lever, "converts", {}).get(model_format, ())]
    return frozenset({model_format, *made})


def usable_runtimes(formats: Set[str], wanted: Sequence[str], program: str = "single") -> tuple[str, ...]:
    """The usable runtimes for `program` that accept one of the formats; a wanted one that is not usable is an error."""
    found = []
    for name, runtime in all_runtimes().items():
        if (wanted and name not in wanted) or not formats & runtime.accepts or not runs(runtime, program):
            continue
        available = runtime.availability()
        if available.usable:
            found.append(name)
        elif wanted:
            raise InvalidInput(
                f"runtime {name} cannot be used here: {available.reason}", "install it", available.command
            )
    return tuple(found)


def measure_sensitivity(case: Case, builder: Builder) -> Mapping[str, Any] | None:
    """The table of `levers.sensitivity` for the runtime of `case.recipe`, taken in a worker.

    None where that recipe has no step that puts operators in few bits.
    """
    step = next((step for step in case.recipe.steps if step.lever in ("int8", "weight_only")), None)
    if step is None or (step.lever == "weight_only" and case.workload.program != "generate"):
        return None
    steps = tuple(each for each in case.recipe.steps if each is not step)
    payload = {"case": case.to_json(), "before": builder(replace(case.recipe, steps=steps)).to_json()}
    if step.lever == "int8":
        target = "measure"
        payload |= {"quantised": builder(case.recipe).to_json(), "step": step.to_json()}
    else:
        target, start = "measure_weights", replace(case.recipe, steps=steps)
        four = step if step.options.get("bits") == 4 else Step("weight_only", IN_FOUR)
        widths = {"weights8": Step("weight_only", {"bits": 8}), "weights4": four}
        built = {level: builder(start.with_step(each)).to_json() for level, each in widths.items()}
        payload |= {"widths": built, "step": four.to_json()}
    table: Mapping[str, Any] = run(
        f"hasten.levers.sensitivity:{target}",
        {**payload, "left_s": builder.limit_s},
        Limits(builder.memory_bytes, builder.limit_s, case.device.cpus or None),
    )
    return table
