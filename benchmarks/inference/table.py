"""Five models, one sample at a time and 32 at a time: what `hasten optimize` makes of each, beside today's tools."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import Group, Run, Taken, at_least, describe, write
from benchmarks.fetch import fetch
from benchmarks.inference import efficientnet, magika, minilm, ocr, silero
from benchmarks.inference.contenders import Contender, Scene, contenders, torch, tuned
from benchmarks.inference.hands import settings
from benchmarks.inference.optimised import Optimised, optimised
from benchmarks.racing import Contestant, first_over_others, opened, ratio, told
from hasten import api, formats
from hasten.demo import text
from hasten.device import Device
from hasten.diagnose.device import device
from hasten.diagnose.kinds import HEAVY
from hasten.diagnose.roofline import precision_of
from hasten.lab.race import Race
from hasten.recipe import Recipe
from hasten.search.prepare import typical_shapes

SHAPES = {"b1": 1, "b32": 32}
RACED = 3
"""So many peers race; the others' speed is that of their tuning."""
NO_WORSE = at_least(0.97)
"""No tool is quicker: what is within 3% is a tie."""
FIGURES = {"speedup_vs_eager": "x", "speedup_vs_best_peer": "x", "fraction_of_limit": "share"}


@dataclass(frozen=True)
class Case:
    """`data` is by shape, or one for both; `factory` makes the PyTorch module of the model, where there is one.

    `source` is the Hugging Face folder that it was exported from, where it was.
    """

    name: str
    model: Callable[[], Path]
    data: Mapping[str, str]
    metric: str
    max_drop: str
    budget_s: float
    factory: str | None = None
    transformer: bool = False
    source: Callable[[], Path] | None = None


def both(data: str) -> dict[str, str]:
    return dict.fromkeys(SHAPES, f"benchmarks.inference.{data}")


CASES = (
    Case(
        "minilm",
        text.model,
        {"b1": "benchmarks.inference.texts:of_16", "b32": "benchmarks.inference.texts:of_128"},
        "cosine",
        "1pt",
        75.0,
        "benchmarks.inference.modules:minilm",
        True,
        minilm.source,
    ),
    Case(
        "efficientnet",
        efficientnet.model,
        both("efficientnet:samples"),
        "accuracy",
        "2pt",
        150.0,
        "benchmarks.inference.efficientnet:module",
    ),
    Case("ocr_rec", lambda: fetch(ocr.RECOGNISER), both("ocr:samples_320"), "top1-agreement", "1pt", 75.0),
    Case(
        "silero",
        silero.model,
        both("silero:samples"),
        "normalised-error",
        "5pt",
        60.0,
        "benchmarks.inference.silero:module",
    ),
    Case("magika", magika.model, both("magika:samples"), "top1-agreement", "1pt", 60.0),
)


def figures(run: Run, case: Case) -> Mapping[str, Taken]:
    """Both shapes of a model; what goes wrong with one does not stop the other."""
    found: dict[str, Taken] = {}
    rows: list[dict[str, Any]] = []
    answers: list[Optimised] = []
    with tempfile.TemporaryDirectory(prefix="hasten-peers-") as folder:
        for shape in SHAPES:
            names = [f"{case.name}.{shape}.{figure}" for figure in FIGURES]
            try:
                answer = answered(run, case, shape)
                answers.append(answer)
                taken, more = shape_figures(run, case, shape, answer, Path(folder))
            except Exception as error:
                run.say(f"{case.name}.{shape}: {type(error).__name__}: {error}")
                taken, more = dict.fromkeys(names, Taken(None, f"not taken: {error}")), []
            found |= taken
            rows += more
    keep(run, case.name, rows)
    return found | {f"{case.name}.quality_drop": worst(answers)}


def answered(run: Run, case: Case, shape: str) -> Optimised:
    return optimised(
        run,
        f"{case.name} {shape}",
        str(case.model()),
        case.data[shape],
        goal="latency" if SHAPES[shape] == 1 else "throughput",
        metric=case.metric,
        max_drop=case.max_drop,
        budget_s=run.pick(case.budget_s, 30.0),
    )


def shape_figures(
    run: Run, case: Case, shape: str, answer: Optimised, folder: Path
) -> tuple[dict[str, Taken], list[dict[str, Any]]]:
    here = folder / shape
    here.mkdir()
    scene = Scene(
        run,
        case.name,
        SHAPES[shape],
        answer,
        limits(run),
        here,
        transformer=case.transformer,
        factory=case.factory,
        source=None if case.source is None else str(case.source()),
    )
    ours = our_side(scene)
    eager = eager_side(scene)
    run.say(f"{case.name}.{shape}: hasten {ours.per_second:.1f}/s, {eager.name} {eager.per_second:.1f}/s; the peers:")
    peers = contenders(scene)
    fit = [peer for peer in peers if peer.status == "ran"][: run.pick(RACED, 2)]
    sides = [side.subject for side in (ours, eager, *fit) if side.subject is not None]
    with opened(sides, scene.device) as contestants:
        race = first_over_others(contestants, run.pick(25.0, 8.0), min_rounds=5)
        limit = fraction(scene, contestants[0], race)
    over = {side.name: race.ratios[side.name].value for side in (eager, *fit) if side.name in race.ratios}
    how = f"{ours.settings}, {hand_words(scene)}"
    taken = {
        f"{case.name}.{shape}.speedup_vs_eager": Taken.of(
            ratio(race, eager.name), f"{how} against {eager.name} ({eager.settings}); {told(race)}"
        ),
        f"{case.name}.{shape}.fraction_of_limit": limit,
    }
    name = f"{case.name}.{shape}.speedup_vs_best_peer"
    if any(peer.name in over for peer in fit):
        best = min((peer for peer in fit if peer.name in over), key=lambda peer: over[peer.name])
        ladder = ", ".join(f"{peer.name} {over[best.name] / over[peer.name]:.2f}" for peer in fit if peer.name in over)
        failed = sum(peer.status != "ran" for peer in peers)
        words = (
            f"{how} against {best.name} ({best.settings}), the best of {ladder} and {len(peers) - len(fit) - failed} "
            f"that were slower when tuned; {failed} did not work or lost too much; {told(race)}"
        )
        taken[name] = Taken.of(ratio(race, best.name), words)
    else:
        taken[name] = Taken(None, "not taken: no peer works on this model")
    base = over.get(eager.name)
    raced = {each: base / value for each, value in over.items() if base}
    mine = ours.row(scene, shape, eager.per_second, base)
    rows = [mine, eager.row(scene, shape, eager.per_second, 1.0)]
    rows += [peer.row(scene, shape, eager.per_second, raced.get(peer.name)) for peer in peers]
    return taken, rows


def our_side(scene: Scene) -> Contender:
    """The answer of the study. A hand of 32 is divided as suits it best, by the grid that every peer has."""
    recipe = scene.found.recipe
    grid = [recipe]
    if scene.hand > 1:
        grid = list(settings(recipe, scene.hand, scene.cores))
    return tuned(scene, "hasten", scene.found.build(recipe), grid)


def eager_side(scene: Scene) -> Contender:
    """PyTorch eager where there is a module, else the model as brought with ONNX Runtime's default settings."""
    if scene.factory is not None:
        return torch(scene, "PyTorch eager fp32", "eager")
    recipe = Recipe((), {"name": "onnxruntime"}, {"batch": scene.hand})
    return tuned(scene, "the model as brought, ONNX Runtime fp32 by default", scene.found.build(recipe), [recipe])


def hand_words(scene: Scene) -> str:
    return "one sample at a time" if scene.hand == 1 else f"{scene.hand} samples at a time"


def limits(run: Run) -> Device:
    """This machine, its limits measured in this run."""
    if "limits" not in run.shared:
        run.shared["limits"] = api.doctor().device if run.quick else device(refresh=True)
    found: Device = run.shared["limits"]
    return found


def fraction(scene: Scene, ours: Contestant, race: Race) -> Taken:
    """Samples a second x FLOPs of a sample in the model as brought, over the best rate of a precision that it uses."""
    workload = scene.found.study.workload
    flops = sum(op.flops for op in formats.operators(workload.model, typical_shapes(workload, None)))
    if not flops:
        return Taken(None, "not taken: the model's arithmetic is not known")
    times = ours.worker.call("hasten.measure.bench:operators", {}, 120.0)
    used = {precision_of(each["executed"], each["kind"]) for each in times if each["kind"] in HEAVY}
    rates = {each: rate for each in used or {"fp32"} if (rate := scene.device.gemm_gflops(each))}
    if not rates:
        return Taken(None, f"not taken: the machine's rate in {', '.join(sorted(used))} is not known")
    best = max(rates, key=lambda each: rates[each])
    per_second = statistics.median(race.rounds[ours.name])
    how = (
        f"{per_second:.1f} samples/s of {flops / 1e6:.3g} MFLOP as brought, over the {rates[best]:.0f} GFLOP/s of "
        f"matrix products in {best} on this machine; heavy operators run in {', '.join(sorted(used)) or 'unknown'}"
    )
    return Taken(per_second * flops / (rates[best] * 1e9), how)


def worst(answers: Sequence[Optimised]) -> Taken:
    """The larger drop of the answers, on samples that took no part in choosing them."""
    drops = []
    for answer in answers:
        best = answer.study.best
        if best is None or best.measurement.quality is None:
            drops.append(Taken(0.0, "the answer is the model as brought", (0.0, 0.0)))
            continue
        quality = best.measurement.quality
        how = (
            f"{answer.recipe.describe()}: {quality.metric} {quality.value.value:.4f} on {quality.samples} samples, "
            f"allowed {answer.max_drop}"
        )
        drops.append(Taken(quality.drop.value, how, quality.drop.ci95))
    if not drops:
        return Taken(None, "not taken: no study ended")
    return max(drops, key=lambda taken: taken.value or 0.0)


def keep(run: Run, model: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows of a model beside the figures, in place of its earlier ones."""
    if run.target is None or not rows:
        return
    path = run.target.with_name(f"{run.target.stem}-peers.json")
    document = describe("inference-peers", run.quick)
    kept: list[Any] = []
    if path.is_file():
        kept = [row for row in json.loads(path.read_text(encoding="utf-8"))["rows"] if row["model"] != model]
    del document["figures"]
    stamped = [{**row, "date": document["date"], "commit": document["commit"]} for row in rows]
    write(path, document | {"rows": [*kept, *stamped]})


def _group(case: Case) -> Group:
    units = {f"{case.name}.{shape}.{figure}": unit for shape in SHAPES for figure, unit in FIGURES.items()}
    goals = {name: NO_WORSE for name in units if name.endswith("speedup_vs_best_peer")}
    return Group({**units, f"{case.name}.quality_drop": "pt"}, lambda run: figures(run, case), goals)


GROUPS = [_group(case) for case in CASES]
