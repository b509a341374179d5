"""How much a lever should gain: Amdahl's law over the profile, with the device's measured rates."""

from __future__ import annotations

from hasten.device import Device
from hasten.levers.base import Case, Prediction
from hasten.recipe import Recipe
from hasten.runtimes import DEFAULT_RUNTIMES

CONVOLUTIONS = frozenset({"conv", "convtranspose", "fusedconv", "convolution", "groupconvolution", "deconvolution"})
MATMULS = frozenset(
    {"matmul", "gemm", "fusedmatmul", "fusedgemm", "fullyconnected", "attention", "multiheadattention"}
    | {"scaleddotproductattention", "scaledattn", "sdpa", "mha", "qkvprojection", "llmmlp"}
)
RECURRENT = frozenset({"lstm", "gru", "rnn", "rnnseq", "lstmsequence", "grusequence", "rnncell"})
QUANTISED = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearConv"}
    | {"QLinearMatMul", "MatMulNBits", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "FakeQuantize"}
)
QUANTISING_LEVERS = ("int8", "dynamic_int8", "weight_only", "sensitivity")
TRANSFORMER_MARKS = frozenset(
    {
        "LayerNormalization",
        "SkipLayerNormalization",
        "Attention",
        "MultiHeadAttention",
        "EmbedLayerNormalization",
        "MVN",
    }
    | {"ScaledDotProductAttention", "RMSNormalization", "SimplifiedLayerNormalization"}
)
SMALL_FLOPS = 50e6
"""Half a millisecond of a core in fp32."""
FASTEST = 8.0
"""No prediction is above this: beyond it the rest of the graph, which the share does not see, decides."""
MOST_SHARE, MOST_UNPROFILED = 0.98, 2 / 3
"""No share of time is taken to be above these, with and without a profile: arithmetic on paper does not see what a
runtime spends around its operators."""

_RATE_PRIORS = {
    "bf16": {"amx_bf16": 8.0, "avx512_bf16": 1.8},
    "fp16": {"amx_fp16": 8.0, "avx512_fp16": 1.6},
    "int8": {"amx_int8": 16.0, "avx512_vnni": 3.0, "avx_vnni": 3.0},
}
_NO_INSTRUCTION = {"fp32": 1.0, "bf16": 0.6, "fp16": 0.6, "int8": 1.2}


SCHEDULES = frozenset({"openvino_genai"})
"""Runtimes of language models that schedule whole answers, in one stream."""


def runtime_of(case: Case) -> str:
    """The runtime that this recipe executes on: the one that it names, else the default of the model's format."""
    named = case.recipe.runtime.get("name")
    return str(named) if named else default_runtime(case.workload.model.format)


def default_runtime(model_format: str) -> str:
    return DEFAULT_RUNTIMES.get(model_format, model_format)


def format_of(case: Case) -> str:
    """The format that the recipe's steps leave the model in, before any runtime's own quantiser."""
    for lever, made_format in (("gguf", "gguf"), ("ctranslate2", "ctranslate2"), ("onnx_decoder", "onnx-genai")):
        if case.recipe.has(lever):
            return made_format
    made = [step.options.get("to") for step in case.recipe.steps if step.lever == "export"]
    return str(made[-1]) if made else case.workload.model.format


def accelerator_of(recipe: Recipe) -> str | None:
    """The device beside the CPU that the recipe executes on, such as "cuda"; None on the CPU."""
    named = str(recipe.runtime.get("device", "cpu")).partition(":")[0].lower()
    return None if named == "cpu" else named


def quantises(recipe: Recipe) -> bool:
    return any(recipe.has(name) for name in QUANTISING_LEVERS)


def quantised_already(case: Case) -> bool:
    """Whether the model came quantised."""
    return any(case.workload.model.facts.kinds.get(kind) for kind in QUANTISED)


def looks_like_transformer(case: Case) -> bool:
    """Whether the graph has attention's or LayerNorm's marks; exporters before opset 17 leave only their pieces."""
    kinds = case.workload.model.facts.kinds
    if any(kinds.get(mark) for mark in TRANSFORMER_MARKS):
        return True
    return has_attention(case) and kinds.get("MatMul", 0) > kinds.get("Conv", 0)


def has_attention(case: Case) -> bool:
    """Whether attention or LayerNorm is somewhere in the graph, whole or in pieces, among convolutions or not."""
    kinds = case.workload.model.facts.kinds
    pieces = kinds.get("ReduceMean", 0) >= 2 and kinds.get("Sqrt", 0) >= 1 and kinds.get("Softmax", 0) >= 1
    return pieces or any(kinds.get(mark) for mark in TRANSFORMER_MARKS)


def share_of(case: Case, kinds: frozenset[str]) -> float:
    """The share of time spent in operators of these kinds: from the profile, else from the roofline, else a guess."""
    if case.profile:
        total = sum(case.profile.values()) or 1.0
        return sum(part for kind, part in case.profile.items() if kind.lower() in kinds) / total
    if case.operators:
        flops_s = (case.device.gemm_gflops("fp32") or 100.0) * 1e9
        read = case.device.limits.get("read_gb_s")
        bytes_s = (10.0 if read is None else read.value) * 1e9
        start = case.device.limits.get("operator_us")
        least_s = 0.0 if start is None else start.value / 1e6
        times = [(op.kind.lower(), max(op.flops / flops_s, op.bytes / bytes_s, least_s)) for op in case.operators]
        total = sum(time for _, time in times)
        if total > 0:
            return sum(time for kind, time in times if kind in kinds) / total
    present = any(kind.lower() in kinds for kind in case.workload.model.facts.kinds)
    return 0.8 if present else 0.0


def rate(device: Device, precision: str) -> float:
    """The GEMM rate at this precision relative to fp32: measured, else what the instruction set usually brings."""
    fast, slow = device.gemm_gflops(precision), device.gemm_gflops("fp32")
    if fast and slow:
        return fast / slow
    priors = [gain for flag, gain in _RATE_PRIORS.get(precision, {}).items() if flag in device.flags]
    return max(priors, default=_NO_INSTRUCTION.get(precision, 1.0))


def precision_of(case: Case) -> str:
    """The precision that the recipe executes at; OpenVINO's default is bf16 where the processor has it."""
    named = case.recipe.runtime.get("precision")
    if named:
        return str(named)
    has_bf16 = "amx_bf16" in case.device.flags or "avx512_bf16" in case.device.flags
    return "bf16" if runtime_of(case) == "openvino" and has_bf16 else "fp32"


def is_small(case: Case) -> bool:
    """Whether a batch is so little arithmetic that what surrounds the operators may take as long."""
    flops = sum(operator.flops for operator in case.operators) * int(case.recipe.runner.get("batch", 1))
    return 0 < flops < SMALL_FLOPS


def amdahl(share: float, ratio: float) -> float:
    """The speed-up of the whole when `share` of it becomes `ratio` times as fast.

    >>> amdahl(0.5, 2.0)
    1.3333333333333333
    """
    return 1.0 / (1.0 - share + share / ratio)


def faster_arithmetic(case: Case, kinds: frozenset[str], target: str, efficiency: float = 1.0) -> Prediction:
    """The gain when the operators of `kinds` run at `target` instead of the recipe's precision.

    An upper estimate, as the search prunes by it. `efficiency` scales the ratio of rates where the kernels cannot reach
    the GEMM's.
    """
    ratio = max(1e-3, efficiency * rate(case.device, target) / rate(case.device, precision_of(case)))
    share = sober(case, share_of(case, kinds))
    where = "time" if case.profile else "the arithmetic's time on paper"
    return Prediction(min(FASTEST, amdahl(share, ratio)), f"roofline: {share:.0%} of {where} at {ratio:.2g}x the rate")


def sober(case: Case, share: float) -> float:
    """A share of time, but no more than can be believed of what is known."""
    return min(share, MOST_SHARE if case.profile else MOST_UNPROFILED)


def smaller(case: Case, bytes_per_parameter: float) -> Prediction:
    """The gain in size when most weights shrink to this many bytes."""
    facts = case.workload.model.facts
    now = max(facts.size_bytes, 1)
    then = max(now - facts.parameters * (4.0 - bytes_per_parameter), now * bytes_per_parameter / 4.0)
    return Prediction(
        min(FASTEST, now / then), f"estimated: {facts.parameters:,} weights of {bytes_per_parameter:g} bytes"
    )
