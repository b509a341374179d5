"""Keeps what a decoder's next step needs inside the model: outputs that come back as inputs become its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BEAMS = "beam_idx"
"""The input that `keep_state` adds: which row of the state each row goes on from."""


def keep_state(model: Any, pairs: Mapping[str, str], ids: str = "input_ids") -> None:
    """Turn, in place, each input of `pairs` (rows first) with the output that follows it into a state.

    A state is empty at first, with as many rows as the input `ids`: sizes that are dynamic begin at 0. Rows are taken
    anew at each step by the input `beam_idx` [rows], so that some may leave; OpenVINO fuses that into its attention.
    """
    import numpy as np
    from openvino import opset13 as op
    from openvino._offline_transformations import apply_make_stateful_transformation

    beams = op.parameter([-1], np.int32, BEAMS)
    beams.output(0).get_tensor().set_names({BEAMS})
    model.add_parameters([beams])
    for name in pairs:
        past = model.input(name)
        users = list(past.get_target_inputs())
        taken = op.gather(past, beams, op.constant(np.int64(0)))
        for user in users:
            user.replace_source_output(taken.output(0))
    model.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(model, dict(pairs))
    rows = op.gather(op.shape_of(model.input(ids), "i64"), op.constant(np.array([0])), op.constant(np.int64(0)))
    for node in model.get_ops():
        if node.get_type_name() != "ReadValue":
            continue
        sizes = list(node.get_output_partial_shape(0))[1:]
        rest = np.array([0 if size.is_dynamic else size.get_length() for size in sizes], np.int64)
        shape = op.concat([rows, op.constant(rest)], 0)
        node.set_arguments([op.broadcast(op.constant(0.0, node.get_output_element_type(0)), shape).output(0)])
    model.validate_nodes_and_infer_types()
