"""Optimum's ONNX Runtime quantiser: static INT8 for VNNI, calibrated, with its defaults otherwise."""

import sys
from pathlib import Path

import numpy as np
from datasets import Dataset
from optimum.onnxruntime import ORTQuantizer
from optimum.onnxruntime.configuration import AutoCalibrationConfig, AutoQuantizationConfig

if __name__ == "__main__":
    model, samples, into = (Path(each) for each in sys.argv[1:])
    data = Dataset.from_dict({name: list(array) for name, array in np.load(samples).items()})
    quantiser = ORTQuantizer(model)
    how = AutoQuantizationConfig.avx512_vnni(is_static=True, per_channel=False)
    ranges = quantiser.fit(data, AutoCalibrationConfig.minmax(data), operators_to_quantize=how.operators_to_quantize)
    made = quantiser.quantize(how, into.parent / "optimum", calibration_tensors_range=ranges)
    next(Path(made).glob("*.onnx")).rename(into)
