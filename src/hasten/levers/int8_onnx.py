"""Static INT8 for ONNX Runtime: QuantizeLinear/DequantizeLinear pairs written by its own quantiser."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.levers.keep import matching
from hasten.levers.modelfile import (
    EXTERNAL_ABOVE_BYTES,
    in_order,
    load_onnx,
    named,
    save_onnx,
    weight_bytes,
    with_initialisers,
)

METHODS = ("minmax", "entropy", "percentile")
HISTOGRAM_SAMPLES = 64
"""Entropy and percentile calibration hold a histogram for every tensor and are slow: more samples gain nothing."""

PER_CHANNEL_OPSET = 13
_TRANSFORMER_OPS = ["MatMul", "Gemm", "Conv", "ConvTranspose"]
"""In a transformer only the products: ONNX Runtime has no INT8 LayerNorm or GELU, so every other pair is a cost."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No prints and no log lines from the quantiser."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(level)


def prepare(source: Path, folder: Path) -> Path:
    """The model as the quantiser needs it: named nodes, weights as initialisers, BatchNorm folded, shapes inferred."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    proto = recent(load_onnx(source))
    large = weight_bytes(proto) > EXTERNAL_ABOVE_BYTES
    start, prepared = save_onnx(proto, folder / "named.onnx"), folder / "prepared.onnx"
    for skip_symbolic, skip_optimisation in ((False, False), (True, False), (True, True)):
        try:
            with quiet():
                quant_pre_process(
                    str(start),
                    str(prepared),
                    skip_symbolic_shape=skip_symbolic,
                    skip_optimization=skip_optimisation,
                    save_as_external_data=large,
                    all_tensors_to_one_file=True,
                )
        except Exception:  # symbolic shape inference fails on many valid graphs; the next setting asks less of it
            continue
        import onnx

        save_onnx(named(with_initialisers(onnx.load(str(prepared)))), prepared)
        return prepared
    return start


def recent(proto: Any) -> Any:
    """The model at the opset where DequantizeLinear takes one scale for each channel, converted if it must be."""
    import onnx.version_converter

    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), PER_CHANNEL_OPSET)
    if opset >= PER_CHANNEL_OPSET:
        return proto
    try:
        return named(with_initialisers(onnx.version_converter.convert_version(proto, PER_CHANNEL_OPSET)))
    except Exception as error:  # the converter lacks adapters for some operators, and says so in many ways
        raise Failed(
            f"opset {opset} has no per-channel quantisation, and the model cannot be converted: {str(error)[:200]}",
            f"export the model again with opset {PER_CHANNEL_OPSET} or newer",
        ) from error


def quantise(
    prepared: Path,
    into: Path,
    batches: Iterable[Mapping[str, Any]],
    options: Mapping[str, Any],
    only: list[str] | None = None,
    ranges: Path | None = None,
) -> Path:
    """Write the QDQ model to `into`. `only` quantises just these nodes; `ranges` names a file for the calibration."""
    import onnx
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    check(options)
    graph = onnx.load(str(prepared), load_external_data=False).graph
    excluded = matching([node.name for node in graph.node], list(options["keep"]))
    if options["transformer"]:  # attention's own products lose more quality than they win time
        weights = {tensor.name for tensor in graph.initializer}
        excluded += [n.name for n in graph.node if n.op_type == "MatMul" and not weights & set(n.input)]
    method = {
        "minmax": CalibrationMethod.MinMax,
        "entropy": CalibrationMethod.Entropy,
        "percentile": CalibrationMethod.Percentile,
    }[options["range"]]
    extra: dict[str, Any] = {"ActivationSymmetric": options["scheme"] == "performance", "WeightSymmetric": True}
    unsigned = options["scheme"] == "mixed"
    if options["range"] != "minmax":
        batches = of_one_shape(batches)
    batches = list(batches)

    def run(extra: Mapping[str, Any]) -> None:
        with quiet():
            quantize_static(
                str(prepared),
                str(into),
                _reader(batches),
                quant_format=QuantFormat.QDQ,
                op_types_to_quantize=_TRANSFORMER_OPS if options["transformer"] else None,
                per_channel=bool(options["per_channel"]),
                reduce_range=bool(options["reduce_range"]),
                activation_type=QuantType.QUInt8 if unsigned else QuantType.QInt8,
                weight_type=QuantType.QInt8,
                nodes_to_quantize=only,
                nodes_to_exclude=excluded,
                use_external_data_format=prepared.with_name(prepared.name + ".data").exists(),
                calibrate_method=method,
                extra_options=dict(extra),
                calibration_cache_path=None if ranges is None else str(ranges),
            )

    try:
        try:
            run(extra)
        except ValueError:
            # onnxruntime 1.32 compares an array of scales when it fits weights to int32 biases (qdq_quantizer.py:490)
            run({**extra, "QDQDisableWeightAdjustForInt32Bias": True})
    except Exception as error:  # the quantiser raises many kinds, and its own text says the most
        text = " ".join(str(error).split())[:300]
        raise Failed(f"ONNX Runtime could not quantise the model: {type(error).__name__}: {text}") from error
    if not quantisers(into):
        raise Failed("quantisation changed nothing", "the model has no operator that ONNX Runtime quantises")
    if any(attribute.HasField("g") for node in graph.node for attribute in node.attribute):
        proto = onnx.load(str(into))
        if in_order(proto):
            save_onnx(proto, into)
    return into


def quantisers(path: Path) -> int:
    """How many nodes of the file quantise or dequantise."""
    import onnx

    kinds = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "MatMulNBits")
    graph = onnx.load(str(path), load_external_data=False).graph
    return sum(node.op_type in kinds for node in graph.node)


def check(options: Mapping[str, Any]) -> None:
    if options["range"] not in METHODS:
        raise InvalidInput(
            f"lever int8 has no range {options['range']!r} on onnxruntime", f"use one of: {', '.join(METHODS)}"
        )
    if options["scheme"] not in ("mixed", "performance"):
        raise InvalidInput(f"lever int8 has no scheme {options['scheme']!r}", "use mixed or performance")


def of_one_shape(batches: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The batches of the commonest shape, at most `HISTOGRAM_SAMPLES`: histograms cannot join different shapes."""
    by_shape: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for batch in batches:
        by_shape.setdefault(tuple((name, array.shape) for name, array in batch.items()), []).append(batch)
    return max(by_shape.values(), key=len)[:HISTOGRAM_SAMPLES]


def _reader(batches: Iterable[Mapping[str, Any]]) -> Any:
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(batches)

        def get_next(self) -> Any:
            batch = next(self.left, None)
            return None if batch is None else dict(batch)

        def rewind(self) -> None:
            self.left = iter(batches)

    return Reader()
