"""The numbers of an OpenVINO model's weights, whatever few bits they are packed in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_SIGNED, _UNSIGNED = "i4", "u4"


def numbers(node: Any) -> np.ndarray:
    """What a node makes of constants alone, with the node's own shape; whole numbers stay what they are.

    Dequantisation (Convert, Subtract, Multiply, Reshape) is done here; OpenVINO, which takes ten times as long to
    compile and run so little, computes anything else.
    """
    import numpy as np

    kind = node.get_type_name()
    if kind == "Constant":
        return _constant(node)
    inputs = [value.get_node() for value in node.input_values()]
    if kind == "Convert":
        wanted = node.get_output_element_type(0).to_dtype()
        found = numbers(inputs[0]).astype(wanted)
        return found.astype(np.float32) if wanted == np.float16 else found
    if kind in ("Subtract", "Multiply"):
        left, right = (numbers(each) for each in inputs)
        return np.asarray(left - right if kind == "Subtract" else left * right)
    if kind == "Reshape":
        return numbers(inputs[0]).reshape(tuple(node.get_output_shape(0)))
    from openvino import Core, Model

    compiled = Core().compile_model(Model([node.output(0)], []), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return np.array(compiled([])[0])


def _constant(node: Any) -> np.ndarray:
    import numpy as np

    kind, shape = node.get_element_type().get_type_name(), tuple(node.get_output_shape(0))
    if kind not in (_SIGNED, _UNSIGNED):
        return np.array(node.get_data())
    packed = np.asarray(node.get_tensor_view().data).view(np.uint8).reshape(-1)
    flat = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)[: int(np.prod(shape))]
    if kind == _SIGNED:
        flat = (flat.astype(np.int8) ^ 8) - 8
    return flat.reshape(shape).astype(np.float32)
