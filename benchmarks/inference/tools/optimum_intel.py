"""Optimum Intel on a Hugging Face folder: INT8 weights alone, or full INT8, calibrated, with its defaults otherwise.

The mean pooling of a sentence embedding is then put into the graph, as in the other peers'.
"""

import sys

import nncf
import numpy as np
import openvino as ov
from openvino import opset13 as op
from optimum.intel import (
    OVConfig,
    OVModelForFeatureExtraction,
    OVQuantizationConfig,
    OVQuantizer,
    OVWeightQuantizationConfig,
)


def pooled(model: ov.Model, output: str) -> ov.Model:
    """`model` of ids and mask alone, with the mean of the hidden states [batch, length, width] as output."""
    inputs = {next(iter(each.get_names())): each for each in model.inputs}
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    hidden = model.outputs[0].get_node().input_value(0)
    kept = [ids.get_node(), mask.get_node()]
    if types := inputs.get("token_type_ids"):
        zeros = op.broadcast(op.constant(0, ov.Type.i64), op.shape_of(ids))
        for target in types.get_target_inputs():
            target.replace_source_output(zeros.output(0))
    weights = op.convert(mask, "f32")
    total = op.squeeze(op.matmul(op.unsqueeze(weights, 1), hidden, False, False), 1)
    mean = op.divide(total, op.maximum(op.reduce_sum(weights, 1, True), op.constant(1e-9, ov.Type.f32)))
    result = op.result(mean)
    result.output(0).set_names({output})
    return ov.Model([result], kept, "pooled")


if __name__ == "__main__":
    how, source, samples, output, into = sys.argv[1:]
    if how == "weights":
        config = OVWeightQuantizationConfig(bits=8)
        model = OVModelForFeatureExtraction.from_pretrained(
            source, export=True, compile=False, quantization_config=config
        )
    else:
        model = OVModelForFeatureExtraction.from_pretrained(source, export=True, compile=False, load_in_8bit=False)
        arrays = dict(np.load(samples))
        rows = [{name: array[i : i + 1] for name, array in arrays.items()} for i in range(len(arrays["input_ids"]))]
        for row in rows:
            row.setdefault("token_type_ids", np.zeros_like(row["input_ids"]))
        OVQuantizer(model).quantize(
            ov_config=OVConfig(quantization_config=OVQuantizationConfig()),
            calibration_dataset=nncf.Dataset(rows),
        )
    ov.save_model(pooled(model.model, output), into, compress_to_fp16=False)
