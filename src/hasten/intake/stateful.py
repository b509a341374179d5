"""Makes an OpenVINO decoder keep what it is otherwise handed: keys and values go from one call to the next inside it.

Any decoder will do, of text or of speech, whose past is a pair of ports for each tensor: an input with what was there
before, and an output with what is there now.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

BEAM = "beam_idx"


def keep_state(model: Any, pairs: Iterable[tuple[str, str]], batch_axis: int = 0) -> None:
    """Turn ports into states, in place. `pairs` names them: (what an input of the past is called, its output).

    A state begins with as many rows as the input `beam_idx` has, which is added (int32 [batch]: which row of the state
    each row goes on from), and with a length of 0 in every other axis that is dynamic. It is read through a Gather by
    `beam_idx`, the form that OpenVINO's fused attention knows.
    """
    import numpy as np
    from openvino import opset13 as op
    from openvino._offline_transformations import apply_make_stateful_transformation

    pairs = list(pairs)
    beam = op.parameter([-1], np.int32, BEAM)
    beam.output(0).get_tensor().set_names({BEAM})
    model.add_parameters([beam])
    axis = op.constant(np.int64(batch_axis))
    for past, _ in pairs:
        port = model.input(past)
        readers = list(port.get_target_inputs())
        rows = op.gather(port, beam, axis)
        for reader in readers:
            reader.replace_source_output(rows.output(0))
    apply_make_stateful_transformation(model, dict(pairs))
    count = op.shape_of(beam, output_type="i64")
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue" and not node.inputs():
            sizes = list(node.output(0).get_partial_shape())
            dims: list[Any] = [
                op.constant(np.array([0 if size.is_dynamic else size.get_length()], np.int64)) for size in sizes
            ]
            dims[batch_axis] = count
            zero = op.constant(np.zeros((), np.float32))
            node.set_arguments([op.broadcast(zero, op.concat(dims, 0))])
    model.validate_nodes_and_infer_types()
