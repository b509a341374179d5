"""How far the recipe that `hasten optimize` found is from the best of an exhaustive search over a committed space."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.common import Group, Run, Taken, at_most, machine
from benchmarks.inference import demo, minilm, ocr
from benchmarks.inference.exhaustive import best_known
from benchmarks.inference.optimised import Optimised
from benchmarks.racing import first_over_others, opened, ratio, subject, told
from hasten.recipe import Recipe

ROUND_S = 0.5


def regret(run: Run, name: str, found: Optimised) -> Taken:
    document = best_known(run, name, found)
    best = Recipe.from_json(document["best"]["recipe"])
    where = f"the best of {document['recipes']} recipes measured on {document['date'][:10]}"
    if _comparable(document["machine"]) != _comparable(machine()):
        where += f" on another machine ({document['machine']['processor']}, {document['machine']['cpus']} cores)"
    if best.id == found.recipe.id:
        return Taken(0.0, f"found {best.describe()}, {where}", (0.0, 0.0))
    study = found.study
    assert study.best is not None
    rate = study.best.measurement.figures["throughput_per_s"].value
    verification = study.workload.split(study.seed).verification
    scene = verification[: max(32, int(rate * ROUND_S))]
    names = {"found": found.recipe, "best": best}
    subjects = [subject(key, found.build(recipe), recipe, study.workload, scene) for key, recipe in names.items()]
    with opened(subjects, study.device) as contestants:
        race = first_over_others(contestants, run.pick(30.0, 8.0))
    measured = ratio(race, "best")
    low, high = measured.ci95 or (measured.value, measured.value)
    how = f"found {found.recipe.describe()} in {found.seconds:.0f} s; {best.describe()} is {where}; {told(race)}"
    return Taken(1 - measured.value, how, (1 - high, 1 - low))


def _comparable(described: Mapping[str, object]) -> tuple[object, object]:
    return described["processor"], described["cpus"]


def _group(name: str, find: Callable[[Run], Optimised]) -> Group:
    figure = f"search.{name}.regret"

    def measure(run: Run) -> Mapping[str, Taken]:
        return {figure: regret(run, name, find(run))}

    return Group({figure: "share"}, measure, {figure: at_most(0.05)})


GROUPS = [
    _group("demo", lambda run: demo.demo(run, "throughput")),
    _group("minilm", minilm.minilm),
    _group("ocr", ocr.ocr),
]
