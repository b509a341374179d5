"""Token packing: sequences are laid end to end and attention keeps to each, so that no padding is computed at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from hasten.errors import InvalidInput
from hasten.levers.base import Case, Need, Prediction, Proposal
from hasten.levers.bucket import STATIC_GAIN, work
from hasten.levers.modelfile import fresh_folder, load_onnx, need_onnx, options_of, part_of, save_onnx
from hasten.levers.prediction import format_of, has_attention, quantised_already, runtime_of
from hasten.levers.rewrite import RULES
from hasten.model import Model
from hasten.recipe import Recipe, Step
from hasten.variant import Variant

DEFAULTS: dict[str, Any] = {}
GRAIN = 32
LEAST_ROW = 128
TOKENS = (512, 3072)
"""Tokens of a batch: few stay in a core's cache, many feed matrix units."""
MOST_TOKENS = 16384
SEGMENTS = 16
BEFORE = ("export", "table", "rewrite")
SPARE = 0.97
"""Of the padding saved, what the larger attention takes back (a row attends to itself as a whole): a cautious guess."""


class Pack:
    name = "pack"
    needs: frozenset[Need] = frozenset()

    def refuse(self, case: Case) -> str | None:
        padding = case.workload.padding
        if case.workload.scenario == "single-stream":
            return "a single sample has nothing to be packed with"
        if not case.lengths or padding is None or not padding.verified:
            return "the samples do not vary in length, or cannot be padded"
        if padding.axis != 0:
            return "the axis that varies is not the samples' first"
        if format_of(case) != "onnx" or quantised_already(case):
            return "only ONNX graphs in floating point are packed"
        if not has_attention(case):
            return "the model has no attention"
        if any(step.lever == "fuse" for step in case.recipe.steps):
            return "packing comes before fusion"
        if runtime_of(case) not in STATIC_GAIN:
            return f"packing was not found to pay on {runtime_of(case)}"
        return None

    def propose(self, case: Case) -> Iterable[Proposal]:
        if self.refuse(case):
            return
        runner = case.recipe.runner
        if case.recipe.has(self.name):
            yield from self._neighbours(case)
            return
        row = row_tokens(case.lengths)
        now = work(case.lengths, case.recipe)
        gain = STATIC_GAIN[runtime_of(case)] / (STATIC_GAIN[runtime_of(case)] if runner.get("static") else 1.0)
        found = []
        for tokens in TOKENS:
            recipe = self._packed(case, row, max(1, tokens // row))
            factor = now / work(case.lengths, recipe) * gain * SPARE
            why = f"sequences end to end in {recipe.runner['rows']} rows of {row} tokens: no padding"
            found.append(Proposal(recipe, Prediction(factor, "padding counted by the batch plan"), why, self.name))
        yield from sorted(found, key=lambda proposal: -proposal.gain.factor)

    def _neighbours(self, case: Case) -> Iterable[Proposal]:
        """Twice or half the rows."""
        runner = case.recipe.runner
        rows, row = int(runner["rows"]), int(runner["row_tokens"])
        now = work(case.lengths, case.recipe)
        for other in (rows * 2, rows // 2):
            if other < 1 or other * row > MOST_TOKENS:
                continue
            recipe = case.recipe.edit("runner", rows=other)
            gain = Prediction(now / work(case.lengths, recipe), "fill counted by the batch plan")
            yield Proposal(recipe, gain, f"{other} rows a batch instead of {rows}", self.name)

    def _packed(self, case: Case, row: int, rows: int) -> Recipe:
        kept = {"form": "pack", "row_tokens": row, "rows": rows, "segments": SEGMENTS, "static": True}
        return replace(case.recipe, runner=kept, steps=tuple(_with_pack(case.recipe.steps)))

    def apply(self, variant: Variant, step: Step, case: Case) -> Variant:
        from hasten import formats
        from hasten.data import SampleSet
        from hasten.levers.pack_graph import pack

        model = part_of(variant, step)
        need_onnx(model, self.name)
        options_of(step, DEFAULTS)
        padding = case.workload.padding
        if padding is None or not padding.verified:
            raise InvalidInput("samples that cannot be padded cannot be packed", "leave the step pack out")
        known = SampleSet.open(case.workload.samples.path)
        few = sorted((known[i] for i in case.split.calibration), key=lambda s: s[next(iter(padding.values))].shape[0])
        folder = fresh_folder(case.workdir, self.name)
        proto = pack(load_onnx(model.path), model.signature, padding, _probe(few), folder)
        return variant.with_part(
            step.part, _same_outputs(model, formats.inspect(save_onnx(proto, folder / "model.onnx")))
        )


def _with_pack(steps: Sequence[Step]) -> Iterator[Step]:
    """The steps with packing among them: behind those that make or rewrite the graph, before all others.

    Packing pools by itself and looks for all rows of the last layer, so that a rewrite keeps them.
    """
    at = max((at + 1 for at, step in enumerate(steps) if step.lever in BEFORE), default=0)
    for step in steps[:at]:
        rules = [rule for rule in step.options.get("rules", RULES) if rule != "rows"]
        if step.lever != "rewrite":
            yield step
        elif rules:
            yield replace(step, options={**step.options, "rules": rules})
    yield Step("pack")
    yield from steps[at:]


def _probe(ordered: list[Any]) -> list[Any]:
    """Three samples of different lengths, short ones where there is a choice."""
    middle = ordered[: max(3, len(ordered) // 2)]
    return [middle[0], middle[len(middle) // 2], middle[-1]]


def _same_outputs(before: Model, after: Model) -> Model:
    names = [tensor.name for tensor in before.signature.outputs]
    if names != [tensor.name for tensor in after.signature.outputs]:
        raise InvalidInput("packing lost an output of the model")
    return after


def row_tokens(lengths: Iterable[int]) -> int:
    """The row's length: it holds the longest sequence.

    >>> row_tokens([5, 120]), row_tokens([200])
    (128, 224)
    """
    return max(LEAST_ROW, -(-max(lengths) // GRAIN) * GRAIN)
