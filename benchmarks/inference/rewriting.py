"""What each graph rewrite brings a BERT as PyTorch exports it, on OpenVINO and on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.common import Group, Run, Taken
from benchmarks.inference.optimised import Optimised, optimised
from benchmarks.racing import first_over_others, opened, ratio, subject, told
from hasten.levers.rewrite import RULES
from hasten.measurement import Figure
from hasten.recipe import Recipe, Step

PLAIN = "as exported"
ALL = "all"
RUNTIMES = {
    "openvino": {"name": "openvino", "precision": "fp32"},
    "onnxruntime": {"name": "onnxruntime"},
}
RUNNER = {"batch": 32, "sort": True}


def first_token(run: Run) -> Optimised:
    """MiniLM's encoder read at its first token, as classifiers are, brought as a PyTorch module."""
    return optimised(
        run,
        "minilm first token",
        "benchmarks.inference.modules:first_token",
        "benchmarks.inference.texts:raced",
        metric="cosine",
        budget_s=run.pick(30.0, 20.0),
        only=("export",),
    )


def gains(run: Run) -> Mapping[str, Taken]:
    study, build = first_token(run).study, first_token(run).build
    export = Step("export", {"to": "onnx"})
    steps: dict[str, tuple[Step, ...]] = {PLAIN: (export,)}
    steps |= {rule: (export, Step("rewrite", {"rules": [rule]})) for rule in RULES}
    steps[ALL] = (export, Step("rewrite"))
    found: dict[str, dict[str, Figure]] = {}
    missing: dict[str, str] = {}
    words = ""
    for name, runtime in RUNTIMES.items():
        subjects = []
        for what, made in steps.items():
            recipe = Recipe(made, runtime, RUNNER)
            try:
                variant = build(recipe)
            except Exception as error:  # a rule that finds nothing in this graph is a figure with its reason
                missing[what] = str(error).splitlines()[0]
                continue
            subjects.append(subject(what, variant, recipe, study.workload))
        with opened(subjects, study.device) as contestants:
            race = first_over_others(contestants, run.pick(90.0, 20.0))
        words = told(race)
        for each in subjects[1:]:
            found.setdefault(each.name, {})[name] = _turned(ratio(race, each.name))
    setting = f"MiniLM read at its first token, {study.workload.samples.count} texts in sorted batches of 32"
    taken = {}
    for what in (*RULES, ALL):
        figure = f"rewrites.gain.{what}"
        if what in missing:
            taken[figure] = Taken(None, missing[what])
            continue
        ours, other = found[what]["openvino"], found[what]["onnxruntime"]
        low, high = other.ci95 or (other.value, other.value)
        how = f"over the graph as exported, {setting}, OpenVINO fp32; on ONNX Runtime {other.value:.2f}x"
        taken[figure] = Taken.of(ours, f"{how} [{low:.2f}, {high:.2f}]; {words}")
    return taken


def _turned(figure: Figure) -> Figure:
    """The ratio the other way round."""
    low, high = figure.ci95 or (figure.value, figure.value)
    return Figure(1 / figure.value, figure.unit, figure.source, (1 / high, 1 / low))


GROUPS = [Group({f"rewrites.gain.{what}": "x" for what in (*RULES, ALL)}, gains)]
"""No goal: a rewrite that does not pay is off."""
