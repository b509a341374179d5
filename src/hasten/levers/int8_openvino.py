"""Static INT8 for OpenVINO: NNCF's post-training quantisation, silent, with the recipe's options."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.levers.keep import matching

RANGES = ("default", "minmax", "mean-minmax", "quantile", "histogram")
SCHEMES = ("mixed", "performance")
BIAS_CORRECTIONS = ("fast", "full", "off")


def import_nncf() -> ModuleType:
    """NNCF without its telemetry, which reports from the moment of import, and without its log lines."""
    if "nncf" not in sys.modules:
        os.environ.setdefault("NNCF_CI", "1")
        had = sys.modules.get("openvino_telemetry")
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # an ImportError makes NNCF use a stub
        try:
            import nncf
        finally:
            if had is None:
                del sys.modules["openvino_telemetry"]
            else:
                sys.modules["openvino_telemetry"] = had
    else:
        import nncf
    import logging

    nncf.set_log_level(logging.ERROR)
    return nncf


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """No progress bars: a worker's standard output belongs to nobody."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def quantise(
    model: Any, batches: Iterable[Mapping[str, Any]], options: Mapping[str, Any], compress: bool = True
) -> Any:
    """The quantised `ov.Model`. `compress` stores the weights as int8; without it they stay fp32 under FakeQuantize,

    as `levers.sensitivity` needs them.
    """
    nncf = import_nncf()
    from nncf.quantization.advanced_parameters import AdvancedQuantizationParameters, AdvancedSmoothQuantParameters
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    check(options)
    ranges = {
        "minmax": RangeEstimatorParametersSet.MINMAX,
        "mean-minmax": RangeEstimatorParametersSet.MEAN_MINMAX,
        "quantile": RangeEstimatorParametersSet.MEAN_QUANTILE,
        "histogram": RangeEstimatorParametersSet.HISTOGRAM,
    }
    advanced = AdvancedQuantizationParameters(
        disable_bias_correction=options["bias_correction"] == "off",
        backend_params={"compress_weights": compress},
    )
    if options["range"] != "default":
        advanced.activations_range_estimator_params = ranges[options["range"]]
    if options["smooth"] is not None:
        alpha = float(options["smooth"])
        advanced.smooth_quant_alphas = AdvancedSmoothQuantParameters(matmul=alpha, convolution=-1)
    names = [op.get_friendly_name() for op in model.get_ordered_ops() if op.get_type_name() not in _NOT_ARITHMETIC]
    keep = matching(names, list(options["keep"]))
    dataset = nncf.Dataset(batches)
    try:
        with silent():
            quantised = nncf.quantize(
                model,
                dataset,
                preset=nncf.QuantizationPreset(options["scheme"]),
                target_device=nncf.TargetDevice.CPU,
                subset_size=len(batches) if isinstance(batches, Sequence) else options["samples"],
                fast_bias_correction=options["bias_correction"] != "full",
                model_type=nncf.ModelType.TRANSFORMER if options["transformer"] else None,
                ignored_scope=nncf.IgnoredScope(names=keep, validate=False) if keep else None,
                advanced_parameters=advanced,
            )
    except (InvalidInput, Failed):
        raise
    except Exception as error:  # NNCF raises many kinds, and its own text says the most
        raise Failed(f"NNCF could not quantise the model: {type(error).__name__}: {_short(error)}") from error
    if not quantisers(quantised):
        raise Failed("quantisation changed nothing", "the model has no operator that NNCF quantises")
    return quantised


def quantisers(model: Any) -> int:
    """How many FakeQuantize nodes the model has."""
    return sum(op.get_type_name() == "FakeQuantize" for op in model.get_ops())


def check(options: Mapping[str, Any]) -> None:
    for name, known in (("range", RANGES), ("scheme", SCHEMES), ("bias_correction", BIAS_CORRECTIONS)):
        if options[name] not in known:
            raise InvalidInput(
                f"lever int8 has no {name} {options[name]!r} on openvino", f"use one of: {', '.join(known)}"
            )


_NOT_ARITHMETIC = frozenset({"Constant", "Parameter", "Result"})


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
