"""Graph rewrites for what runtimes miss: rows that nothing reads, attention in pieces, embeddings, transposes, casts.

Each is a set of patterns of onnxscript's rewriter, in a file of its own. None changes the numbers beyond rounding: the
rewritten graph runs on some samples beside the other, and must give the same outputs before it counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.levers.base import Case, Need, Prediction, Proposal
from hasten.levers.modelfile import (
    fresh_folder,
    load_onnx,
    named,
    need_onnx,
    options_of,
    part_of,
    same_signature,
    save_onnx,
)
from hasten.levers.prediction import amdahl, format_of, has_attention, quantised_already
from hasten.recipe import Step
from hasten.variant import Variant

RULES = ("attention", "rows", "embedding", "transposes")
"""In the order in which they are applied, again and again until none finds anything.

attention: see `rewrite_attention`. rows: see `rewrite_rows`. embedding: see `rewrite_embedding`. transposes: doubled
transposes, casts, reshapes and the like as one or none (onnxscript's own rules).
"""
WORDS = {
    "attention": "attention as runtimes know it",
    "rows": "no rows that nothing reads",
    "embedding": "embeddings summed beforehand",
    "transposes": "no doubled transposes and casts",
}
DEFAULTS: dict[str, Any] = {"rules": list(RULES), "drop": []}
"""rules: some of `RULES`. drop: outputs that nobody reads, with all that they alone need."""
OLDEST_OPSET = 13
MOST_ROUNDS = 100
TOLERANCE = 1e-3
PROBES = 3
GUARDED = 1.1
"""What attention as PyTorch exports it gained, recovered: 1.05 to 1.2 on OpenVINO and ONNX Runtime (BERT, ViT)."""
FEWER_OUTPUTS = Prediction(1.1, "prior: what the outputs that nobody reads need is not computed")
LITTLE = Prediction(1.02, "prior: runtimes fold most of this themselves when they load a model")
SELECTED_EARLIER = 1.4
"""Queries, scores and their mask come before the Softmax and are saved as well."""


class Rewrite:
    name = "rewrite"
    needs: frozenset[Need] = frozenset()

    def refuse(self, case: Case) -> str | None:
        if format_of(case) != "onnx" or quantised_already(case):
            return "only ONNX graphs in floating point are rewritten"
        if (case.workload.model.facts.opset or 0) < OLDEST_OPSET:
            return f"the graph is of an opset before {OLDEST_OPSET}"
        if case.recipe.has("pack"):
            return "rewriting comes before packing, which looks for the pieces itself"
        if any(step.lever == "fuse" for step in case.recipe.steps):
            return "rewriting comes before fusion"
        kinds = case.workload.model.facts.kinds
        if (
            not case.workload.unread
            and not has_attention(case)
            and kinds.get("Transpose", 0) + kinds.get("Cast", 0) < 2
        ):
            return "the graph has nothing that the rewrites know"
        return None

    def propose(self, case: Case) -> Iterable[Proposal]:
        if self.refuse(case):
            return
        done = next((step for step in case.recipe.steps if step.lever == self.name), None)
        if done is not None:
            yield from self._without(case, done)
            return
        useful = self._useful(case)
        if self._lost(case):
            for rule, gain in useful.items():
                yield self._proposal(case, [rule], gain)
            return
        gains = [*useful.values(), *([FEWER_OUTPUTS] if case.workload.unread else [])] or [LITTLE]
        gain = Prediction(math.prod(each.factor for each in gains), "; ".join(each.source for each in gains))
        yield self._proposal(case, list(RULES), gain)

    def _useful(self, case: Case) -> dict[str, Prediction]:
        """The rules that the graph's operators ask for, with what each should gain."""
        found = {}
        kinds = case.workload.model.facts.kinds
        if kinds.get("IsNaN", 0) and kinds.get("Softmax", 0):
            found["attention"] = Prediction(GUARDED, "prior: attention in pieces, as PyTorch exports it")
        share = unread_share(case)
        if share > 0:
            source = f"estimate: {share:.0%} of the arithmetic makes rows that nothing reads"
            found["rows"] = Prediction(amdahl(share, math.inf), source)
        return found

    def _options(self, case: Case, rules: Sequence[str]) -> dict[str, Any]:
        chosen: dict[str, Any] = {} if list(rules) == list(RULES) else {"rules": list(rules)}
        return chosen | ({"drop": list(case.workload.unread)} if case.workload.unread else {})

    def _proposal(self, case: Case, rules: Sequence[str], gain: Prediction) -> Proposal:
        step = Step(self.name, self._options(case, rules))
        exports = [at + 1 for at, each in enumerate(case.recipe.steps) if each.lever in ("export", "table")]
        at = max(exports, default=0)
        steps = (*case.recipe.steps[:at], step, *case.recipe.steps[at:])
        what = ", ".join(
            {"rows": "rows that nothing reads", "embedding": "embeddings"}.get(rule, rule) for rule in rules
        )
        return Proposal(replace(case.recipe, steps=steps), gain, f"the graph rewritten: {what}", self.name)

    def _lost(self, case: Case) -> bool:
        """Whether all rules together were tried on this runtime, and the recipe to go on from is without them."""
        return any(
            step.lever == self.name and "rules" not in step.options
            for trial in case.trials
            if trial.recipe.runtime.get("name") == case.recipe.runtime.get("name")
            for step in trial.recipe.steps
        )

    def _without(self, case: Case, done: Step) -> Iterable[Proposal]:
        """The same with one rule less, as each is off when it does not pay."""
        rules = list(done.options.get("rules", RULES))
        if len(rules) < 2:
            return
        for rule in reversed(rules):
            step = replace(done, options=self._options(case, [each for each in rules if each != rule]))
            steps = tuple(step if each is done else each for each in case.recipe.steps)
            gain = Prediction(1.01, "prior: a rewrite may stand in the way of a runtime's own")
            yield Proposal(
                replace(case.recipe, steps=steps), gain, f"the graph rewritten, except for: {WORDS[rule]}", self.name
            )

    def apply(self, variant: Variant, step: Step, case: Case) -> Variant:
        from hasten import formats
        from hasten.data import SampleSet
        from hasten.levers.rewrite_probe import batches

        model = part_of(variant, step)
        need_onnx(model, self.name)
        options = options_of(step, DEFAULTS)
        rules, drop = options["rules"], options["drop"]
        if not isinstance(rules, list) or not rules or set(rules) - set(RULES):
            raise InvalidInput(f"rules = {rules!r} makes no sense", f"give a list of: {', '.join(RULES)}")
        outputs = [tensor.name for tensor in model.signature.outputs]
        if not isinstance(drop, list) or set(drop) - set(outputs) or len(set(drop)) == len(outputs):
            raise InvalidInput(f"drop = {drop!r} makes no sense", f"give some, not all, of: {', '.join(outputs)}")
        if case.workload.output in drop:
            raise InvalidInput(f"quality is judged by output {case.workload.output}", "take it out of drop")
        known = SampleSet.open(case.workload.samples.path)
        samples = [known[index] for index in case.split.calibration[:64]] or [known[0]]
        probes = batches(various(samples), case.workload.padding, model.signature)
        folder = fresh_folder(case.workdir, self.name)
        proto = rewritten(load_onnx(model.path), probes, rules, folder, drop)
        path = save_onnx(proto, folder / "model.onnx")
        return variant.with_part(step.part, same_signature(model, formats.inspect(path), self.name, drop))


def unread_share(case: Case) -> float:
    """The share of the arithmetic that a selection after the last attention throws away; 0 where there is none."""
    operators = list(case.operators)
    total = sum(operator.flops for operator in operators)
    last = max((at for at, operator in enumerate(operators) if operator.kind == "Softmax"), default=None)
    if last is None or not total:
        return 0.0
    wasted = 0
    for operator in operators[last:]:
        wasted += operator.flops
        shape = operator.output_shape
        if operator.kind == "Gather" and shape is not None and wasted and math.prod(shape) > 1:
            return min(0.9, SELECTED_EARLIER * wasted / total)
    return 0.0


def various(samples: Sequence[Any]) -> list[Any]:
    """Up to three samples of different sizes, small ones where there is a choice."""
    by_size = {tuple(array.shape for array in sample.values()): sample for sample in samples}
    ordered = sorted(by_size.values(), key=lambda sample: sum(array.size for array in sample.values()))
    return ordered[:PROBES]


def rewritten(proto: Any, probes: Sequence[Any], rules: Sequence[str], folder: Path, drop: Sequence[str] = ()) -> Any:
    """The graph after the named rules, without the outputs `drop`.

    Raises `Failed` where the rules find nothing, or change what comes out.
    """
    import onnx_ir.passes.common as tidy
    import onnxscript.optimizer
    from onnxscript import ir

    from hasten.levers.rewrite_probe import look, run_all

    before = run_all(proto, probes, folder, optimise=True)
    for output in [each for each in proto.graph.output if each.name in drop]:
        proto.graph.output.remove(output)
    model = ir.serde.deserialize_model(proto)
    onnxscript.optimizer.fold_constants(model)
    sets = _sets(look(proto, probes, folder), rules)
    found = len(drop)
    for _ in range(MOST_ROUNDS):
        applied = 0
        for each in sets:
            tidy.CommonSubexpressionEliminationPass()(model)
            applied += each.apply_to_model(model)
            tidy.RemoveUnusedNodesPass()(model)
            tidy.IdentityEliminationPass()(model)
        found += applied
        if not applied:
            break
    if not found:
        raise Failed("no rewrite found anything to change")
    tidy.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    tidy.RemoveUnusedNodesPass()(model)
    new = named(ir.serde.serialize_model(model))
    _same(before, run_all(new, probes, folder, optimise=True))
    return new


def _sets(shapes: Any, rules: Sequence[str]) -> list[Any]:
    from onnxscript.rewriter.rules.common import _basic_rules

    from hasten.levers import rewrite_attention, rewrite_embedding, rewrite_rows

    makers = {
        "attention": rewrite_attention.rules,
        "rows": rewrite_rows.rules,
        "embedding": rewrite_embedding.rules,
        "transposes": lambda _: _basic_rules.basic_optimization_rules(),
    }
    return [makers[rule](shapes) for rule in RULES if rule in rules]


def _same(before: Sequence[Any], after: Sequence[Any]) -> None:
    import numpy as np

    for old, new in zip(before, after, strict=True):
        for name, got in new.items():
            wanted = old[name]
            if got.shape != wanted.shape:
                raise Failed(f"rewriting changes the shape of output {name}: {got.shape} instead of {wanted.shape}")
            if wanted.dtype.kind != "f":
                same = np.array_equal(got, wanted)
            else:
                scale = max(1e-6, float(np.abs(wanted).max(initial=0)))
                same = bool(np.abs(got.astype(np.float64) - wanted).max(initial=0) <= TOLERANCE * scale)
            if not same:
                raise Failed(f"rewriting changes output {name}")
