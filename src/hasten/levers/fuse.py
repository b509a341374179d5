"""Graph clean-up and fusion: constants folded, dead and doubled nodes removed, BatchNorm folded, transformers fused."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hasten.errors import Failed
from hasten.levers.base import Case, Need, Prediction, Proposal
from hasten.levers.int8_onnx import quiet
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
from hasten.levers.prediction import format_of, looks_like_transformer, quantised_already, quantises, runtime_of
from hasten.recipe import Step
from hasten.variant import Variant

DEFAULTS: dict[str, Any] = {"slim": True, "fold": True, "transformer": False, "heads": 0, "hidden": 0}
"""Every option and its default.

slim: onnxslim. fold: ONNX Runtime's basic level, which folds constants and BatchNorm. transformer: its offline
fusions of attention, LayerNorm, GELU, skips and biases into operators that only ONNX Runtime executes. heads, hidden:
the attention's sizes where the graph does not show them (0: detect).
"""

CLEAN_UP = Prediction(1.02, "prior: runtimes fold most of this themselves when they load a model")
TRANSFORMER = Prediction(1.15, "prior: fewer passes over memory in attention, LayerNorm and GELU")


class Fuse:
    name = "fuse"
    needs: frozenset[Need] = frozenset()

    def refuse(self, case: Case) -> str | None:
        if case.recipe.has(self.name):
            return "the recipe fuses already"
        if format_of(case) != "onnx":
            return f"only ONNX graphs are edited, not {format_of(case)}"
        if quantises(case.recipe) or quantised_already(case):
            return "fusion comes before quantisation"
        return None

    def propose(self, case: Case) -> Iterable[Proposal]:
        if self.refuse(case):
            return
        if runtime_of(case) == "onnxruntime" and looks_like_transformer(case):
            step = Step(self.name, {"transformer": True})
            why = "attention, LayerNorm and GELU as single operators of ONNX Runtime"
            yield Proposal(case.recipe.with_step(step), TRANSFORMER, why, self.name)
        why = "constants and BatchNorm folded, dead and doubled nodes removed"
        yield Proposal(case.recipe.with_step(Step(self.name)), CLEAN_UP, why, self.name)

    def apply(self, variant: Variant, step: Step, case: Case) -> Variant:
        from hasten import formats

        model = part_of(variant, step)
        need_onnx(model, self.name)
        options = options_of(step, DEFAULTS)
        folder = fresh_folder(case.workdir, self.name)
        import onnx

        proto = load_onnx(model.path)
        before = _shape(proto)
        path = save_onnx(proto, folder / "model.onnx")
        if options["transformer"]:  # first: clean-up rewrites the pieces that these fusions look for
            fuse_transformer(path, int(options["heads"]), int(options["hidden"]))
        if options["slim"]:
            save_onnx(named(slim(onnx.load(str(path)))), path)
        if options["fold"]:
            fold(path)
        if _shape(onnx.load(str(path), load_external_data=False)) == before:
            raise Failed("fusion changed nothing", "the graph is clean already")
        return variant.with_part(step.part, same_signature(model, formats.inspect(path), self.name))


def slim(proto: Any) -> Any:
    """onnxslim's result, or the graph as it was where onnxslim fails or touches the signature."""
    import copy

    import onnxslim

    before = [t.SerializeToString() for t in [*proto.graph.input, *proto.graph.output]]
    try:
        with quiet():
            result = onnxslim.slim(copy.deepcopy(proto))
    except Exception:  # a graph that onnxslim cannot read is left as it is; the runtime's own folding still follows
        return proto
    if result is None or [t.name for t in result.graph.output] != [t.name for t in proto.graph.output]:
        return proto
    if [t.SerializeToString() for t in [*result.graph.input, *result.graph.output]] != before:
        # it rewrites inferred sizes over dynamic axes: put the model's own declarations back
        del result.graph.input[:], result.graph.output[:]
        result.graph.input.extend(proto.graph.input)
        result.graph.output.extend(proto.graph.output)
    return result


def fold(path: Path) -> None:
    """ONNX Runtime's basic optimisations, written back into `path`; they use no operator of its own."""
    import onnx
    import onnxruntime as ort

    target = path.with_name("folded.onnx")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    if path.with_name(path.name + ".data").exists():
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "folded.onnx.data")
    try:
        ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise Failed(f"ONNX Runtime cannot read the model: {str(error).splitlines()[0][:200]}") from None
    proto = named(onnx.load(str(target)))
    save_onnx(proto, path)
    for leftover in path.parent.glob("folded.onnx*"):
        leftover.unlink()


def fuse_transformer(path: Path, heads: int, hidden: int) -> None:
    """ONNX Runtime's offline transformer fusions, written back into `path`. Fails where none applied."""
    import onnx
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    before = _shape(onnx.load(str(path), load_external_data=False))
    large = path.with_name(path.name + ".data").exists()
    options = FusionOptions("bert")
    options.enable_embed_layer_norm = False  # it demands int32 inputs and would change the signature
    with quiet():
        fused = optimizer.optimize_model(
            str(path), "bert", heads, hidden, optimization_options=options, opt_level=0, only_onnxruntime=False
        )
    if _shape(fused.model) == before:
        raise Failed("no transformer fusion applied", "leave transformer out of the fuse step")
    onnx.save(
        named(fused.model), str(path), save_as_external_data=large, location=path.name + ".data" if large else None
    )


def _shape(proto: Any) -> dict[str, int]:
    kinds: dict[str, int] = {}
    for node in proto.graph.node:
        kinds[node.op_type] = kinds.get(node.op_type, 0) + 1
    return kinds
