"""Weight-only INT8 and INT4: less to store and to read from memory; arithmetic stays at the runtime's precision."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.levers.base import Case, Need, Prediction, Proposal
from hasten.levers.int8_onnx import quantisers, quiet
from hasten.levers.int8_openvino import import_nncf, silent
from hasten.levers.keep import matching
from hasten.levers.modelfile import (
    fresh_folder,
    is_constant,
    load_onnx,
    need_onnx,
    options_of,
    part_of,
    read_openvino,
    same_signature,
    save_onnx,
    save_openvino,
)
from hasten.levers.prediction import (
    MATMULS,
    accelerator_of,
    amdahl,
    default_runtime,
    quantised_already,
    quantises,
    runtime_of,
    smaller,
    sober,
)
from hasten.levers.weights_openvino import numbers
from hasten.model import Model
from hasten.recipe import Step
from hasten.variant import Program, Variant

DEFAULTS: dict[str, Any] = {"bits": 8, "symmetric": False, "group": 0, "ratio": 1.0, "keep": [], "eight": []}
"""Every option and its default.

bits: 8 or 4. group: how many weights of a row share a scale (0: 64 for INT4, the whole row for INT8; ONNX Runtime: 32).
ratio: the share of layers that get INT4, the others INT8 (OpenVINO). keep: patterns of operators whose weights stay as
they are. eight: patterns of operators that get 8 bits where the others get 4. An earlier `int8` step's stay INT8.
"""

RUNTIMES = ("openvino", "openvino_genai", "onnxruntime")
WEIGHTED = ("MatMul", "Gather")
"""OpenVINO's operators whose weights are compressed."""
BYTES = {8: 1.0, 4: 0.56}
IN_FOUR: Mapping[str, Any] = {"bits": 4, "group": 32}
"""Of a language model: the groups are those of GGUF files; symmetric 4 bits raised a perplexity by a quarter."""
WORTH_TRYING = 1.05
SMALL_ENOUGH_TO_CACHE = 0.75
"""Weights that fit into this share of the last-level cache are not read from memory at every call."""


class WeightOnly:
    name = "weight_only"
    programs: frozenset[Program] = frozenset({"single", "generate", "encoder_decoder"})
    needs: frozenset[Need] = frozenset()

    def refuse(self, case: Case) -> str | None:
        if accelerator_of(case.recipe):
            return "weight compression is for the CPU's memory"
        if runtime_of(case) not in RUNTIMES:
            return f"there is no weight compression for {runtime_of(case)}"
        if quantises(case.recipe):
            return "the recipe quantises already"
        if case.workload.program != "single":
            return None
        if quantised_already(case):
            return "the model came quantised"
        if not any(kind.lower() in MATMULS for kind in case.workload.model.facts.kinds):
            return "the model has no matrix multiplication"
        if case.goal.optimise not in ("size", "memory") and self._gain(case, 8).factor < WORTH_TRYING:
            return f"reading weights does not bound this model ({self._gain(case, 8).source})"
        return None

    def propose(self, case: Case) -> Iterable[Proposal]:
        if self.refuse(case):
            return
        if case.workload.program == "encoder_decoder":
            # The encoder works on hundreds of positions at once: arithmetic, not weights, is what it waits for.
            step = Step(self.name, {"bits": 8})
            why = "the decoder's weights in 8 bits: 4x less to read for each token"
            yield Proposal(case.recipe.with_step(step), self._gain(case, 8), why, self.name)
            return
        small_first = case.goal.optimise in ("size", "memory") or case.workload.program == "generate"
        for bits in (4, 8) if small_first else (8, 4):
            options: dict[str, Any] = {"bits": bits}
            if case.workload.program == "generate" and bits == 4:
                options = dict(IN_FOUR)
            step = Step(self.name, options)
            why = f"weights stored in {bits} bits: {4 / BYTES[bits]:.1f}x less to read"
            yield Proposal(case.recipe.with_step(step), self._gain(case, bits), why, self.name)

    def _gain(self, case: Case, bits: int) -> Prediction:
        if case.goal.optimise == "size":
            return smaller(case, BYTES[bits])
        if case.goal.optimise == "memory":
            size = smaller(case, BYTES[bits])
            return Prediction(min(size.factor, 1.5), f"{size.source}; the rest of the process stays")
        if case.workload.program != "single":
            return Prediction(1.15, "prior: nearly all of a step is products with weights")
        return Prediction(amdahl(*_reading(case, bits)), "roofline: the share of time that reads weights")

    def apply(self, variant: Variant, step: Step, case: Case) -> Variant:
        from hasten import formats

        model = part_of(variant, step)
        options = options_of(step, DEFAULTS)
        if options["bits"] not in (8, 4):
            raise InvalidInput(f"weight_only has no {options['bits']}-bit weights", "use bits = 8 or bits = 4")
        runtime = str(case.recipe.runtime.get("name") or default_runtime(model.format))
        folder = fresh_folder(case.workdir, self.name)
        if runtime in ("openvino", "openvino_genai"):
            path = save_openvino(compress_openvino(read_openvino(model), options), folder / "model.xml")
        elif runtime == "onnxruntime":
            need_onnx(model, self.name)
            path = compress_onnx(model, folder / "model.onnx", options)
        else:
            raise InvalidInput(f"weight_only has no toolchain for {runtime}", f"use one of: {', '.join(RUNTIMES)}")
        return variant.with_part(step.part, same_signature(model, formats.inspect(path), self.name))


def unpacked(model: Any, names: Collection[str] | None = None) -> Any:
    """The model with weights that came in few bits unpacked to fp16, so that they can be compressed another way.

    `names` are the operators whose weights are unpacked; all of them for None.
    """
    import numpy as np
    from openvino import opset13 as op

    if not _low_bit_constants(model):
        return model
    made: dict[str, Any] = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() not in WEIGHTED or (names is not None and node.get_friendly_name() not in names):
            continue
        for port in node.inputs():
            source = port.get_source_output()
            name = source.get_node().get_friendly_name()
            if source.get_node().get_type_name() == "Constant" or not is_constant(source.get_node()):
                continue
            if name not in made:
                wide = numbers(source.get_node())
                if wide.dtype == np.float32:
                    half = op.constant(wide.astype(np.float16), name=f"{name}/half")
                    made[name] = op.convert(half, "f32", name=f"{name}/unpacked").output(0)
                else:
                    made[name] = op.constant(wide).output(0)
            port.replace_source_output(made[name])
    return model


def compress_openvino(model: Any, options: Mapping[str, Any]) -> Any:
    """The model with compressed weights, by NNCF without data. Fails where nothing was compressed."""
    names = [op.get_friendly_name() for op in model.get_ordered_ops() if op.get_type_name() != "Constant"]
    keep, eight = (matching(names, list(options[name])) for name in ("keep", "eight"))
    check_eight(options, eight)
    keep += [op.get_friendly_name() for op in model.get_ordered_ops() if _quantised(op)]
    free = [name for name in _weighted(model) if name not in set(keep)]
    others = [name for name in free if name not in set(eight)]
    model = unpacked(model, set(free))
    before = _low_bit_constants(model)
    if others:
        model = _compressed(model, options, [*keep, *eight])
    if eight:
        model = _compressed(model, {**options, "bits": 8}, [*keep, *others])
    if _low_bit_constants(model) == before:
        raise Failed("weight compression changed nothing", "the model has no large constant weights")
    return model


def _compressed(model: Any, options: Mapping[str, Any], ignored: Sequence[str]) -> Any:
    nncf = import_nncf()
    from nncf.quantization.advanced_parameters import AdvancedCompressionParameters, GroupSizeFallbackMode

    four, symmetric = options["bits"] == 4, bool(options["symmetric"])
    mode = nncf.CompressWeightsMode(f"int{options['bits']}_{'sym' if symmetric else 'asym'}")
    extra: dict[str, Any] = {}
    if four:  # a layer whose width the group does not divide takes the nearest group that does
        fallback = AdvancedCompressionParameters(group_size_fallback_mode=GroupSizeFallbackMode.ADJUST)
        group = {"group_size": options["group"] or 64, "advanced_parameters": fallback}
        extra = {"ratio": float(options["ratio"]), **group}
    scope = nncf.IgnoredScope(names=list(ignored), validate=False) if ignored else None
    try:
        with silent():
            return nncf.compress_weights(model, mode=mode, ignored_scope=scope, **extra)
    except Exception as error:  # NNCF raises many kinds, and its own text says the most
        text = " ".join(str(error).split())[:300]
        raise Failed(f"NNCF could not compress the weights: {type(error).__name__}: {text}") from error


def compress_onnx(model: Model, path: Path, options: Mapping[str, Any]) -> Path:
    """Write the model with MatMulNBits operators, computed in INT8 on the CPU. Fails where there is none."""
    proto = load_onnx(model.path)
    names = [node.name for node in proto.graph.node]
    keep, eight = (matching(names, list(options[name])) for name in ("keep", "eight"))
    check_eight(options, eight)
    others = set(names) - set(keep) - set(eight)
    proto = _in_few_bits(proto, options, [*keep, *eight])
    if eight:
        proto = _in_few_bits(proto, {**options, "bits": 8}, [*keep, *others])
    save_onnx(proto, path)
    if not quantisers(path):
        raise Failed("weight compression changed nothing", "the model has no MatMul with constant weights")
    return path


def _in_few_bits(proto: Any, options: Mapping[str, Any], excluded: Sequence[str]) -> Any:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    try:
        with quiet():
            quantizer = MatMulNBitsQuantizer(
                proto,
                bits=options["bits"],
                block_size=options["group"] or 32,
                is_symmetric=bool(options["symmetric"]),
                accuracy_level=4,  # INT8 arithmetic: fp32 accumulation over unpacked weights is slower than fp32 itself
                nodes_to_exclude=list(excluded),
            )
            quantizer.process()
    except Exception as error:  # the quantiser raises many kinds, and its own text says the most
        text = " ".join(str(error).split())[:300]
        raise Failed(f"ONNX Runtime could not compress the weights: {type(error).__name__}: {text}") from error
    return quantizer.model.model


def check_eight(options: Mapping[str, Any], eight: Sequence[str]) -> None:
    if eight and options["bits"] != 4:
        raise InvalidInput("weight_only: eight names what gets 8 bits where the others get 4", "leave it out")


def _weighted(model: Any) -> list[str]:
    """The operators that have constant weights, in execution order."""
    return [
        op.get_friendly_name()
        for op in model.get_ordered_ops()
        if op.get_type_name() in WEIGHTED and any(is_constant(value.get_node()) for value in op.input_values()[:2])
    ]


def _quantised(op: Any) -> bool:
    """Whether an earlier step made it an INT8 operator."""
    return op.get_type_name() in WEIGHTED and any(
        value.get_node().get_type_name() == "FakeQuantize" for value in op.input_values()
    )


def _low_bit_constants(model: Any) -> int:
    low = {"i8", "u8", "i4", "u4"}
    return sum(
        op.get_type_name() == "Constant" and op.get_element_type().get_type_name() in low for op in model.get_ops()
    )


def _reading(case: Case, bits: int) -> tuple[float, float]:
    """The share of time bound by reading the weights of matrix products, and how much less there is to read."""
    ratio = 4.0 / BYTES[bits]
    read = case.device.limits.get("read_gb_s")
    flops = case.device.gemm_gflops("fp32")
    if not case.operators or read is None or not flops:
        return 0.0, ratio
    cache = max(case.device.caches_bytes.values(), default=0)
    weights = sum(op.weight_bytes for op in case.operators)
    if weights < SMALL_ENOUGH_TO_CACHE * cache:
        return 0.0, ratio
    times = [max(op.flops / (flops * 1e9), op.bytes / (read.value * 1e9)) for op in case.operators]
    reading = [
        op.weight_bytes / (read.value * 1e9)
        for op, time in zip(case.operators, times, strict=True)
        if op.kind.lower() in MATMULS and op.flops / (flops * 1e9) < time
    ]
    return sober(case, sum(reading) / (sum(times) or 1.0)), ratio
