"""Intel Neural Compressor for ONNX: static INT8 in pairs, calibrated, with its defaults otherwise."""

import sys

import numpy as np
from onnx_neural_compressor import data_reader
from onnx_neural_compressor.quantization import CalibrationMethod, QuantFormat, config, quantize


class Reader(data_reader.CalibrationDataReader):
    """One sample at a time."""

    def __init__(self, path: str) -> None:
        self.arrays = dict(np.load(path))
        self.rewind()

    def get_next(self):
        return next(self.left, None)

    def rewind(self) -> None:
        count = len(next(iter(self.arrays.values())))
        self.left = iter([{name: array[i : i + 1] for name, array in self.arrays.items()} for i in range(count)])


if __name__ == "__main__":
    model, samples, into = sys.argv[1:]
    how = config.StaticQuantConfig(
        calibration_data_reader=Reader(samples),
        calibrate_method=CalibrationMethod.MinMax,
        quant_format=QuantFormat.QDQ,
        calibration_sampling_size=100,
    )
    quantize(model, into, how)
