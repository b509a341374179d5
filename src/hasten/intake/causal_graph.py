"""A causal language model of transformers becomes a stateful OpenVINO decoder.

It is traced with its past as plain tensors and with a mask of hasten's own, which is told what may be looked at and
where that stands: padding and drafts that were turned down are left out, and a sliding window counts positions, not
places in the cache.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, InvalidInput
from hasten.intake.module import TOLERANCE, difference, first_line
from hasten.intake.stateful import BEAM, keep_state

if TYPE_CHECKING:
    import numpy as np

INPUTS = ("input_ids", "attention_mask", "position_ids")
HIDDEN = -65504.0
"""What is added where nothing may look: the lowest number of 16 bits, so that no precision makes an infinity of it."""
NARROWED = 1024
"""Constants of at least so many numbers are stored in 16 bits where that loses nothing."""
KINDS = {"full_attention", "sliding_attention"}
ROTARY = {"dynamic", "longrope"}
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def graph_of(module: Any, name: str) -> Any:
    """The model as an OpenVINO graph with state. `module` is in fp32, and in evaluation mode.

    Inputs: input_ids, attention_mask and position_ids (int64 [batch, fed], [batch, all fed so far and now],
    [batch, fed]) and beam_idx; output: logits [batch, fed, vocabulary]. Raises `InvalidInput` for models that keep
    something else than keys and values, and `Failed` where the graph cannot be made.
    """
    import openvino as ov
    import torch

    kinds, window = attention(module.config, name)
    layers = past_of(module, name)
    rows, past, fed = 2, 3, 2
    example = [
        torch.ones((rows, fed), dtype=torch.int64),
        torch.ones((rows, past + fed), dtype=torch.int64),
        torch.arange(past, past + fed).expand(rows, fed).contiguous(),
        *(torch.zeros((rows, heads, past, size)) for heads, size in layers),
    ]
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = ov.convert_model(Traced(module, kinds, window), example_input=tuple(example))
    except Exception as error:
        unknown = re.search(r"No conversion rule found for operations: (.+)", str(error))
        cause = f"OpenVINO has no {unknown[1].strip()}" if unknown else f"{type(error).__name__}: {first_line(error)}"
        raise Failed(f"{name} cannot be converted: {cause}") from None
    parts = [f"{number}.{part}" for number in range(len(layers) // 2) for part in ("key", "value")]
    shapes = [[-1, -1]] * len(INPUTS) + [[-1, heads, -1, size] for heads, size in layers]
    inputs = (*INPUTS, *(f"past.{part}" for part in parts))
    outputs = ("logits", *(f"present.{part}" for part in parts))
    if (len(graph.inputs), len(graph.outputs)) != (len(inputs), len(outputs)):
        raise Failed(f"{name} cannot be converted: its graph does not have the ports that it was traced with")
    for port, called, shape in zip(graph.inputs, inputs, shapes, strict=True):
        port.get_tensor().set_names({called})
        port.get_node().set_friendly_name(called)
        port.get_node().set_partial_shape(ov.PartialShape(shape))
    for port, called in zip(graph.outputs, outputs, strict=True):
        port.get_tensor().set_names({called})
    graph.validate_nodes_and_infer_types()
    keep_state(graph, zip(inputs[len(INPUTS) :], outputs[1:], strict=True))
    return graph


def attention(config: Any, name: str) -> tuple[set[str], int]:
    """Which kinds of attention the layers have, and the width of a sliding window. `InvalidInput` for other kinds."""
    window = int(getattr(config, "sliding_window", None) or 0)
    kinds = set(getattr(config, "layer_types", None) or ()) or {"sliding_attention" if window else "full_attention"}
    strange = sorted(kinds - KINDS)
    if "local" in (getattr(config, "attention_layers", None) or ()):
        strange = ["local attention"]
    if getattr(config, "alibi", False) or config.model_type in ("bloom", "mpt"):
        strange = ["attention by distance (ALiBi)"]
    if any(getattr(config, count, None) for count in EXPERTS):
        strange = ["experts, some of which are chosen for each token"]
    if strange:
        raise InvalidInput(
            f"{name} has layers of {strange[0].replace('_', ' ')}",
            "models whose layers attend to all that they keep, or to a sliding window of it, are taken",
        )
    rotary = getattr(config, "rope_parameters", None) or {}
    types = {str(part.get("rope_type")) for part in (rotary, *rotary.values()) if isinstance(part, dict)} & ROTARY
    if types:
        raise InvalidInput(
            f"{name} turns positions by the length of the text (rope_type {min(types)}), which no graph can follow",
            "models whose rotary positions are fixed are taken",
        )
    return kinds, window


def past_of(module: Any, name: str) -> list[tuple[int, int]]:
    """Heads and size of every tensor that the model keeps: keys and values in turn, layer by layer."""
    import torch

    with torch.no_grad():
        found = module(input_ids=torch.ones((1, 2), dtype=torch.int64), use_cache=True)
    cache = getattr(found, "cache", None) or getattr(found, "past_key_values", None)
    kept = [getattr(layer, part, None) for layer in getattr(cache, "layers", ()) for part in ("keys", "values")]
    shapes = [tuple(tensor.shape) for tensor in kept if tensor is not None]
    if not shapes or len(shapes) < len(kept) or any(len(shape) != 4 or shape[2] != 2 for shape in shapes):
        raise InvalidInput(f"{name} keeps something else than keys and values", "plain transformers are taken")
    return [(shape[1], shape[3]) for shape in shapes]


def Traced(module: Any, kinds: set[str], window: int) -> Any:
    """The model with its past as plain tensors: ids, mask, positions, key, value, ... to logits, key, value, ..."""
    import torch
    from transformers.cache_utils import DynamicCache, DynamicLayer

    takes = set(inspect.signature(module.forward).parameters)
    cached = "cache" if "cache" in takes else "past_key_values"

    def bias(mask: Any, positions: Any, near: int) -> Any:
        places = torch.arange(mask.shape[1])
        seen = (places[None, :] <= places[-positions.shape[1] :, None])[None, None] & (mask[:, None, None, :] > 0)
        if near:
            seen = seen & (mask.cumsum(1)[:, None, None, :] - 1 > positions[:, None, :, None] - near)
        return torch.where(seen, 0.0, HIDDEN)

    class _Traced(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any, *past: Any) -> tuple[Any, ...]:
            cache = DynamicCache()
            layers: list[Any] = [DynamicLayer() for _ in past[::2]]
            cache.layers = layers
            for layer, keys, values in zip(layers, past[::2], past[1::2], strict=True):
                layer.lazy_initialization(keys, values)
                layer.keys, layer.values = keys, values
            masks = {
                kind: bias(attention_mask, position_ids, window if kind == "sliding_attention" else 0) for kind in kinds
            }
            given = {"attention_mask": masks if len(masks) > 1 else next(iter(masks.values())), cached: cache}
            if "position_ids" in takes:
                given["position_ids"] = position_ids
            logits = self.inner(input_ids=input_ids, use_cache=True, **given).logits
            return (logits, *(tensor for layer in layers for tensor in (layer.keys, layer.values)))

    return _Traced().eval()


def write(graph: Any, path: Path) -> None:
    """Write the graph, its constants in 16 bits where they are the very same numbers in bf16 or fp16.

    OpenVINO widens them as it runs, if they are marked for that; else it widens them as it loads (a decoder of 269 MB
    in bf16 then took 1,174 MB in place of 507). The mark can be set in the file alone. What is shared is written once.
    """
    import numpy as np
    import openvino as ov
    from openvino import opset13 as op

    known: dict[int, Any] = {}
    for node in graph.get_ops():
        if node.get_type_name() != "Constant" or node.get_element_type() != ov.Type.f32 or node.data.size < NARROWED:
            continue
        address = node.data.__array_interface__["data"][0]
        if address not in known:
            half = narrow(node.data)
            known[address] = None if half is None else op.convert(op.constant(half), np.float32, name=f"wide.{address}")
        if known[address] is not None:
            for reader in list(node.output(0).get_target_inputs()):
                reader.replace_source_output(known[address].output(0))
    ov.save_model(graph, path, compress_to_fp16=False)
    mark = '<rt_info><attribute name="decompression" version="0" /></rt_info>'
    text = re.sub(r'(name="wide\.\d+" type="Convert".*?)(<input>)', rf"\1{mark}\2", path.read_text(), flags=re.DOTALL)
    path.write_text(text)


def narrow(data: np.ndarray) -> Any:
    """The same numbers (fp32, any shape) in bf16 or fp16, for a constant; None where they are not the same."""
    import numpy as np
    import openvino as ov

    bits = np.ascontiguousarray(data).view(np.uint32)
    if not (bits & 0xFFFF).any():
        found = ov.Tensor(ov.Type.bf16, ov.Shape(data.shape))
        found.data.view(np.uint16)[:] = bits >> 16
        return found
    with np.errstate(over="ignore"):
        half = data.astype(np.float16)
    return half if np.array_equal(half, data) else None


def logits_of(module: Any, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """What the model itself says of each text alone: logits [length, vocabulary]."""
    import torch

    with torch.no_grad():
        return [module(input_ids=torch.tensor([list(text)])).logits[0].float().numpy() for text in texts]


def compare(path: Path, texts: Sequence[Sequence[int]], wanted: Sequence[np.ndarray], name: str) -> float:
    """The largest difference of the decoder's logits in fp32 from `wanted`, as a share of their largest magnitude.

    The texts (token numbers) are run side by side, the shorter ones padded in front: whole, and then piece by piece
    after a draft that is turned down. Raises `Failed` where they differ by more than `TOLERANCE`.
    """
    import numpy as np
    import openvino as ov

    exact = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    request = ov.Core().compile_model(path, "CPU", exact).create_infer_request()
    longest = max(map(len, texts))
    ids, mask = (np.zeros((len(texts), longest), np.int64) for _ in range(2))
    for row, text in enumerate(texts):
        ids[row, longest - len(text) :] = text
        mask[row, longest - len(text) :] = 1
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    beams = np.arange(len(texts), dtype=np.int32)

    def fed(new: np.ndarray, seen: np.ndarray, at: np.ndarray) -> np.ndarray:
        values: Sequence[Any] = (new, seen, at, beams)
        request.infer(dict(zip((*INPUTS, BEAM), map(np.ascontiguousarray, values), strict=True)))
        return request.get_output_tensor(0).data.copy()

    worst = 0.0
    draft, half = mask[:, -2:], longest // 2
    for cuts in ((0, longest), (0, half, *range(half + 3, longest), longest)):
        request.reset_state()
        seen, found = mask[:, :0], []
        for begin, end in pairwise(cuts):
            seen = np.concatenate([seen, mask[:, begin:end]], axis=1)
            found.append(fed(ids[:, begin:end], seen, positions[:, begin:end]))
            if begin == 0 and end < longest:
                fed(ids[:, -2:], np.concatenate([seen, draft], axis=1), positions[:, end : end + 2])
                seen = np.concatenate([seen, 0 * draft], axis=1)
        together = np.concatenate(found, axis=1)
        for row, logits in enumerate(wanted):
            worst = max(worst, difference({"logits": together[row, -len(logits) :]}, {"logits": logits}))
    if worst > TOLERANCE:
        raise Failed(
            f"{name} cannot be taken: the logits of its OpenVINO form differ from those of transformers by "
            f"{worst:.2g} of their magnitude"
        )
    return worst
