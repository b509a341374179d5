"""Dynamic INT8: weights quantised once, activations at every call, without calibration, on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hasten.errors import Failed
from hasten.levers.base import Case, Need, Prediction, Proposal
from hasten.levers.int8_onnx import quantisers, quiet
from hasten.levers.keep import matching
from hasten.levers.modelfile import (
    EXTERNAL_ABOVE_BYTES,
    fresh_folder,
    load_onnx,
    need_onnx,
    options_of,
    part_of,
    same_signature,
    save_onnx,
    weight_bytes,
)
from hasten.levers.prediction import (
    MATMULS,
    RECURRENT,
    accelerator_of,
    faster_arithmetic,
    format_of,
    quantised_already,
    quantises,
    runtime_of,
    smaller,
)
from hasten.recipe import Step
from hasten.variant import Variant

DEFAULTS: dict[str, Any] = {"per_channel": True, "reduce_range": False, "embeddings": False, "keep": []}
"""Every option and its default. embeddings: embedding tables become INT8 too, which saves size and no time."""

OPERATORS = ["MatMul", "Gemm", "Attention", "LSTM"]
"""Convolutions are left out: ONNX Runtime's ConvInteger has no fast kernel on x86 and loses to fp32."""

WORTH_TRYING = 1.05
EFFICIENCY = 0.6
"""Finding each activation's range and rescaling costs about this much of the INT8 rate on encoders."""


class DynamicInt8:
    name = "dynamic_int8"
    needs: frozenset[Need] = frozenset()

    def refuse(self, case: Case) -> str | None:
        if accelerator_of(case.recipe):
            return "dynamic INT8 is the CPU's"
        if runtime_of(case) != "onnxruntime" or format_of(case) != "onnx":
            return "dynamic INT8 is ONNX Runtime's"
        if quantises(case.recipe):
            return "the recipe quantises already"
        if quantised_already(case):
            return "the model came quantised"
        kinds = case.workload.model.facts.kinds
        if not any(kinds.get(kind) for kind in OPERATORS):
            return "the model has no matrix multiplication"
        if self._gain(case).factor < WORTH_TRYING:
            return f"INT8 arithmetic would not pay here ({self._gain(case).source})"
        return None

    def propose(self, case: Case) -> Iterable[Proposal]:
        if self.refuse(case):
            return
        why = "INT8 matrix products with ranges found at every call: no calibration"
        options = {"embeddings": True} if case.goal.optimise in ("size", "memory") else {}
        yield Proposal(case.recipe.with_step(Step(self.name, options)), self._gain(case), why, self.name)

    def _gain(self, case: Case) -> Prediction:
        if case.goal.figure == "size_mb":
            return smaller(case, 1.0)
        return faster_arithmetic(case, MATMULS | RECURRENT, "int8", EFFICIENCY)

    def apply(self, variant: Variant, step: Step, case: Case) -> Variant:
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        from hasten import formats

        model = part_of(variant, step)
        need_onnx(model, self.name)
        options = options_of(step, DEFAULTS)
        folder = fresh_folder(case.workdir, self.name)
        proto = load_onnx(model.path)
        excluded = matching([node.name for node in proto.graph.node], list(options["keep"]))
        named = save_onnx(proto, folder / "named.onnx")
        path = folder / "model.onnx"
        try:
            with quiet():
                quantize_dynamic(
                    str(named),
                    str(path),
                    op_types_to_quantize=[*OPERATORS, "Gather"] if options["embeddings"] else OPERATORS,
                    per_channel=bool(options["per_channel"]),
                    reduce_range=bool(options["reduce_range"]),
                    weight_type=QuantType.QInt8,
                    nodes_to_exclude=excluded,
                    use_external_data_format=weight_bytes(proto) > EXTERNAL_ABOVE_BYTES,
                    # ONNX Runtime's fused operators have no shape inference, so the quantiser cannot find the type of
                    # their outputs ("Unable to find data type for weight_name"); everything it meets there is fp32
                    extra_options={"MatMulConstBOnly": True, "DefaultTensorType": onnx.TensorProto.FLOAT},
                )
        except Exception as error:  # the quantiser raises many kinds, and its own text says the most
            text = " ".join(str(error).split())[:300]
            raise Failed(f"ONNX Runtime could not quantise the model: {type(error).__name__}: {text}") from error
        if not quantisers(path):
            raise Failed("quantisation changed nothing", "the model has no matrix product with constant weights")
        for leftover in folder.glob("named.onnx*"):
            leftover.unlink()
        return variant.with_part(step.part, same_signature(model, formats.inspect(path), self.name))
