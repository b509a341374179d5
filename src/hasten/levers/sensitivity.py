"""Sensitivity-guided precision: measures what each group of operators loses and wins in few bits, keeps the fragile.

Few bits are INT8, or for a language model weights of 8 and of 4 bits.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from math import inf, log1p
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, InvalidInput
from hasten.levers import assignment as choose
from hasten.levers.base import Case, Need, Prediction, Proposal, SettingsLever
from hasten.levers.calibration import as_batch, calibration_batches
from hasten.levers.fidelity import allowed_loss, kind_of, losses, of_outputs
from hasten.levers.int8 import DEFAULTS
from hasten.levers.keep import patterns_for, plain
from hasten.levers.modelfile import fresh_folder, options_of, part_of
from hasten.levers.prediction import default_runtime, precision_of, quantises, runtime_of
from hasten.levers.sensitivity_weights import EIGHT, FOUR
from hasten.recipe import Recipe, Step
from hasten.variant import Variant

if TYPE_CHECKING:
    from hasten.isolate import Scope
    from hasten.runtimes import OperatorTime

SCHEMA = "hasten.sensitivity/1"
CALIBRATION_SAMPLES = 50
MOST_SAMPLES = 200
LEAST_SAMPLES = 6
SECONDS_OF_RUNS = 20.0
SHARE_OF_RUNS = 0.12
"""All passes over the samples take about this long, and about this share of the time that is left; slow models see
fewer samples. The losses of groups differ by factors of thousands, so that few samples tell them apart."""

ALLOWANCES = (1.0, 2.0, 0.5)
"""Multiples of the allowed drop to aim at: changed answers are not all for the worse, and the model may be wrong."""


LEAST_HARM = 0.5
"""A divergence of one nat is taken to raise the logarithm of the perplexity by so much at least: a few texts may be
lucky."""


class Sensitivity(SettingsLever):
    """Proposes recipes with an `int8` or `weight_only` step that names the fragile operators: it is the whole truth."""

    name = "sensitivity"
    needs = frozenset({Need.CALIBRATION, Need.SENSITIVITY})
    programs = frozenset({"single", "generate"})

    def refuse(self, case: Case) -> str | None:
        table = case.sensitivity
        if table is None:
            return "the sensitivity of operators has not been measured: few bits kept the quality, or were not tried"
        if quantises(case.recipe):
            return "the recipe quantises already"
        if table["runtime"] != runtime_of(case):
            return f"the sensitivity was measured on {table['runtime']}"
        return None

    def propose(self, case: Case) -> Iterable[Proposal]:
        table = case.sensitivity
        if table is None or self.refuse(case):
            return
        seen: list[choose.Assignment] = []
        found = []
        for assignment, why in self._assignments(case, table):
            if assignment in seen or len(set(assignment.values())) < 2:
                continue  # all alike is another lever's, or no proposal
            seen.append(assignment)
            found.append(Proposal(recipe_of(case.recipe, table, assignment), _gain(table, assignment), why, self.name))
        yield from sorted(found, key=lambda proposal: -proposal.gain.factor)

    def _assignments(self, case: Case, table: Mapping[str, Any]) -> Iterable[tuple[choose.Assignment, str]]:
        allowed = allowed_by(case, table)
        if allowed <= 0:
            return
        for multiple in ALLOWANCES:
            assignment = choose.solve(table, multiple * allowed)
            yield assignment, _told(table, assignment)
        yield from self._repaired(case, table, allowed)

    def _repaired(
        self, case: Case, table: Mapping[str, Any], allowed: float
    ) -> Iterable[tuple[choose.Assignment, str]]:
        """What to try after such a recipe lost too much: the prediction was wrong by a factor that is now known."""
        for trial in case.trials:
            if not trial.reason.startswith("quality") or trial.measurement.quality is None:
                continue
            failed = _assignment_in(trial.recipe, table)
            if failed is None or len(set(failed.values())) < 2:
                continue
            measured = _loss_at(table, max(_fraction(trial.measurement.quality.drop.value), 0.0))
            tighter = choose.repair(table, failed, measured, allowed)
            if tighter is not None:
                yield tighter, "the last choice lost more than predicted: keep more operators"


def allowed_by(case: Case, table: Mapping[str, Any]) -> float:
    """The loss that corresponds to the goal's allowed drop."""
    return _loss_at(table, _fraction(case.goal.max_drop.amount))


def _loss_at(table: Mapping[str, Any], drop: float) -> float:
    """The predicted loss at which the metric should drop by so much.

    Of a language model that is the divergence whose perplexity is so much higher, as all weights in 4 bits had it.
    """
    if table["kind"] != "divergence":
        return allowed_loss(table["kind"], drop, _pairs(table), table["samples"])
    predicted = sum(group["loss"][FOUR] for group in table["groups"])
    each = log1p(max(0.0, table["full"]["seen"])) / predicted if predicted > 0 else 1.0
    return log1p(drop) / max(LEAST_HARM, each)


def _told(table: Mapping[str, Any], assignment: Mapping[str, str]) -> str:
    chosen, count = [*assignment.values()], len(assignment)
    if "int8" in table["levels"]:
        kept = count - chosen.count("int8")
        return f"INT8 but for the {kept} of {count} operator groups that lose the most"
    four, eight = chosen.count(FOUR), chosen.count(EIGHT)
    return f"weights of {four} of {count} groups of products in 4 bits, of {eight} in 8: those that lose the least"


def recipe_of(recipe: Recipe, table: Mapping[str, Any], assignment: Mapping[str, str]) -> Recipe:
    """`recipe` with the step that this assignment means."""
    if "int8" not in table["levels"]:
        return recipe.with_step(_weights_step(table, assignment))
    keep: list[str] = []
    level = "int8"
    quantised = [n for g in table["groups"] if assignment[g["name"]] == level for n in g["nodes"]]
    for group in table["groups"]:
        if assignment[group["name"]] != level:
            keep += patterns_for(group["nodes"], quantised, group["name"] if len(group["nodes"]) > 1 else "")
    return recipe.with_step(Step("int8", {**table["options"], "keep": list(dict.fromkeys(keep))}))


def _weights_step(table: Mapping[str, Any], assignment: Mapping[str, str]) -> Step:
    """4 bits unless `eight` or `keep` name an operator, or 8 bits unless `keep` does."""

    def patterns(*levels: str) -> list[str]:
        inside = [group for group in table["groups"] if assignment[group["name"]] in levels]
        others = [n for group in table["groups"] if assignment[group["name"]] not in levels for n in group["nodes"]]
        found = [patterns_for(g["nodes"], others, g["name"] if len(g["nodes"]) > 1 else "") for g in inside]
        return list(dict.fromkeys(pattern for each in found for pattern in each))

    four = FOUR in assignment.values()
    options: dict[str, Any] = {"bits": 4, **table["options"]} if four else {"bits": 8}
    named = {"eight": patterns(EIGHT) if four else [], "keep": patterns(table["levels"][0])}
    return Step("weight_only", {**options, **{name: found for name, found in named.items() if found}})


def measure_weights(payload: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """The table of a language model's weights, as plain data (a worker function).

    `payload`: case; before (the variant without the step); widths (the variants with all weights in 8 and in 4 bits,
    by level); step (that of 4 bits); left_s.
    """
    from hasten.levers import sensitivity_weights

    case, step = Case.from_json(payload["case"]), Step.from_json(payload["step"])
    before = Variant.from_json(payload["before"])
    widths = {level: Variant.from_json(each) for level, each in payload["widths"].items()}
    runtime = str(case.recipe.runtime.get("name") or default_runtime(part_of(before, step).format))
    if runtime != "openvino":
        raise InvalidInput(f"the sensitivity of weights cannot be measured on {runtime}", "use openvino")
    seconds = min(SECONDS_OF_RUNS, SHARE_OF_RUNS * payload["left_s"])
    found = sensitivity_weights.measure(case, before, step, widths, seconds, scope)
    options = {name: value for name, value in step.options.items() if name not in ("bits", "keep", "eight")}
    return {"schema": SCHEMA, "runtime": runtime, "options": options, **found}


def measure(payload: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """The table, as plain data (a worker function).

    `payload`: case; before (the variant without the INT8 step); quantised (the variant with it); step (that step);
    left_s (after how long this worker is cut off).
    """
    case = Case.from_json(payload["case"])
    before, quantised = Variant.from_json(payload["before"]), Variant.from_json(payload["quantised"])
    step = Step.from_json(payload["step"])
    model = part_of(before, step)
    runtime = str(case.recipe.runtime.get("name") or default_runtime(model.format))
    if runtime not in DEFAULTS:
        raise InvalidInput(f"sensitivity cannot be measured on {runtime}", f"use one of: {', '.join(DEFAULTS)}")
    options = options_of(step, dict(DEFAULTS[runtime]))
    batches = list(calibration_batches(case, model.signature, min(CALIBRATION_SAMPLES, int(options["samples"]))))
    folder = fresh_folder(case.workdir, "sensitivity")
    scope.progress(None, "quantising every operator")
    try:
        graph = _graph(runtime, model, batches, options, folder)
        if not graph.groups:
            raise Failed("no operator of the model was quantised")
        seconds = min(SECONDS_OF_RUNS, SHARE_OF_RUNS * payload["left_s"])
        losses_of = _losses(graph, case, model.signature, seconds, scope)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    scope.progress(None, "timing every operator")
    base, fast, other = _times(case, runtime, model, part_of(quantised, step), graph)
    level = precision_of(case)
    return {
        "schema": SCHEMA,
        "runtime": runtime,
        "levels": [level, "int8"],
        "kind": losses_of["kind"],
        "samples": losses_of["samples"],
        "options": {name: value for name, value in step.options.items() if name != "keep"},
        "full": losses_of["full"],
        "other_us": {level: other[0], "int8": other[1]},
        "groups": [
            {
                "name": plain(group.name),
                "nodes": list(dict.fromkeys(plain(name) for name in group.nodes)),
                "loss": {level: 0.0, "int8": losses_of["groups"][group.name][0]},
                "seen": losses_of["groups"][group.name][1],
                "time_us": {level: base[group.name], "int8": fast[group.name]},
            }
            for group in graph.groups
        ],
    }


def _graph(runtime: str, model: Any, batches: Sequence[Any], options: Mapping[str, Any], folder: Any) -> Any:
    if runtime == "openvino":
        from hasten.levers.sensitivity_openvino import OpenVinoGraph

        return OpenVinoGraph(model, batches, options)
    from hasten.levers.sensitivity_onnx import OnnxGraph

    return OnnxGraph(model, batches, options, folder)


def _losses(graph: Any, case: Case, signature: Any, seconds: float, scope: Scope) -> dict[str, Any]:
    """Loss and seen drop of each group alone, and of all together.

    Groups that three times the time did not reach may each have lost all that the others did not.
    """
    kind = kind_of(case.workload.metric)
    indices = (*case.split.selection, *case.split.calibration)[:MOST_SAMPLES]
    samples = calibration_batches(case, signature, 1).samples
    batches = [as_batch(samples[i], signature, case.workload.padding) for i in indices]
    # The commonest shapes first: a new shape costs every one of the compiled models its preparation.
    shapes = [tuple(array.shape for array in batch.values()) for batch in batches]
    batches = [batches[i] for i in sorted(range(len(batches)), key=lambda i: (-shapes.count(shapes[i]), shapes[i]))]
    run = graph.reference()
    reference = _outputs(run, batches, case, seconds / 10)
    share = seconds / (len(graph.groups) + 1)
    start = perf_counter()
    everything = _outputs(graph.only(None), batches[: len(reference)], case, seconds)
    # What all groups together take is about what each takes, its compilation among it; none may see fewer than a few.
    passes = (perf_counter() - start) / share
    count = max(min(LEAST_SAMPLES, len(everything)), int(len(everything) / max(1.0, passes)))
    batches, reference, everything = batches[:count], reference[:count], everything[:count]

    def lost(group: Any) -> tuple[float, float]:
        return losses(kind, reference, _outputs(graph.only(group), batches, case))

    full = losses(kind, reference, everything)
    found: dict[str, tuple[float, float]] = {}
    for number, group in enumerate(graph.groups):
        if perf_counter() - start > 3 * seconds:
            rest = max(0.0, full[0] - sum(loss for loss, _ in found.values()))
            found |= {late.name: (rest, full[1]) for late in graph.groups[number:]}
            break
        scope.progress(number / len(graph.groups), f"sensitivity of {plain(group.name)}")
        found[group.name] = lost(group)
    return {"kind": kind, "samples": len(batches), "full": {"loss": full[0], "seen": full[1]}, "groups": found}


def _outputs(run: Any, batches: Sequence[Any], case: Case, seconds: float = inf) -> list[Any]:
    """What `run` makes of the batches, as many as fit in the time, the first in any case."""
    start, found = perf_counter(), []
    for batch in batches:
        found.append(of_outputs(run(batch), case.workload.output))
        if perf_counter() - start > seconds:
            break
    return found


def _times(
    case: Case, runtime_name: str, before: Any, quantised: Any, graph: Any
) -> tuple[dict[str, float], dict[str, float], tuple[float, float]]:
    """Microseconds of each group at the recipe's precision and in INT8, and of what belongs to no group."""
    from hasten.runtimes import Settings, runtime

    settings = Settings.from_recipe(case.recipe.runtime)
    samples = calibration_batches(case, before.signature, len(case.split.calibration))
    typical = sorted(range(len(samples)), key=lambda i: sum(a.size for a in samples[i].values()))[len(samples) // 2]
    rows = min(32, int(case.recipe.runner.get("batch", 1)))
    batch = as_batch(samples.samples[samples.indices[typical]], before.signature, case.workload.padding, rows)
    found = []
    for model in (before, quantised):
        session = runtime(runtime_name).load(model, settings)
        try:
            found.append(attributed(session.operators(batch), graph.groups, graph.owner))
        finally:
            session.close()
    (base, base_other), (fast, fast_other) = found
    if not sum(base.values()):
        raise Failed(f"the profile of {runtime_name} names none of the model's operators")
    matched = [name for name in base if fast[name] > 0]
    ratio = sum(fast[n] for n in matched) / (sum(base[n] for n in matched) or 1.0)
    fast = {name: fast[name] or base[name] * min(1.0, ratio or 1.0) for name in base}
    return base, fast, (base_other, fast_other)


_ADDED = ("_DequantizeLinear_Output", "_QuantizeLinear_Output", "_QuantizeInput", "_quantized", "_quant")


def attributed(
    times: Iterable[OperatorTime], groups: Sequence[Any], owner: Mapping[str, str]
) -> tuple[dict[str, float], float]:
    """Microseconds by group, from the names that each executed operator stands for, and the rest.

    An executed operator with heavy ones inside belongs to their groups, in equal parts; else to the owners of the rest.
    """
    spent = {group.name: 0.0 for group in groups}
    heavy = {plain(name): group.name for group in groups for name in group.heavy}
    owners = {plain(name): group for name, group in owner.items()}
    other = 0.0
    for time in times:
        names = [_original(name) for name in (*time.sources, time.name)]
        mine = {heavy[n] for n in names if n in heavy} or {owners[n] for n in names if n in owners}
        for name in mine:
            spent[name] += time.microseconds / len(mine)
        if not mine:
            other += time.microseconds
    return spent, other


def _original(name: str) -> str:
    name = plain(name)
    for suffix in _ADDED:
        name = name.removesuffix(suffix)
    return name


def _gain(table: Mapping[str, Any], assignment: Mapping[str, str]) -> Prediction:
    level = table["levels"][0]
    slow = choose.time_of(table, {group["name"]: level for group in table["groups"]}) + table["other_us"][level]
    other = sum(table["other_us"][chosen] for chosen in assignment.values()) / len(assignment)
    quick = choose.time_of(table, assignment) + other
    return Prediction(slow / quick if quick > 0 else 1.0, "measured: the time of each operator group in each precision")


def _pairs(table: Mapping[str, Any]) -> list[tuple[float, float]]:
    singles = [(group["loss"]["int8"], group["seen"]) for group in table["groups"]]
    return [*singles, (table["full"]["loss"], table["full"]["seen"])]


def _fraction(amount: float) -> float:
    """A drop as a fraction: points and per cents alike, of metrics that live between 0 and 1."""
    return amount / 100.0


def _assignment_in(recipe: Recipe, table: Mapping[str, Any]) -> choose.Assignment | None:
    """The assignment that the recipe's step means, or None where it has no such step for this runtime."""
    weights = "int8" not in table["levels"]
    lever = "weight_only" if weights else "int8"
    step = next((step for step in recipe.steps if step.lever == lever), None)
    if step is None or recipe.runtime.get("name") != table["runtime"]:
        return None
    level = FOUR if step.options.get("bits") == 4 else EIGHT if weights else "int8"
    named = {table["levels"][0]: step.options.get("keep", []), EIGHT: step.options.get("eight", [])}
    return {group["name"]: _named(group["nodes"][0], named) or level for group in table["groups"]}


def _named(name: str, patterns: Mapping[str, Sequence[str]]) -> str | None:
    """The level whose patterns match the name."""
    from fnmatch import fnmatchcase

    return next((level for level, some in patterns.items() if any(fnmatchcase(name, p) for p in some)), None)
