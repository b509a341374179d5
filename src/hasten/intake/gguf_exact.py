"""The offsets of 4-bit GGUF weights, exactly: OpenVINO GenAI rounds them to whole steps of the weights.

A block of 32 weights in Q4_1 or Q4_K is `scale * q + least`, `least` being any number; GenAI makes it
`scale * (q - zero)` with `zero` a whole number from 0 to 15. What that loses is half a step of every weight at worst:
SmolLM2's perplexity in Q4_1 rises by a quarter. Formats: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md,
ggml-quants.c.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

BLOCK = 32
"""Weights that share a scale."""
FLAT = 1e-6
"""A block of equal weights has no scale: this share of them takes its place, which float32 hardly sees."""


class Blocks(NamedTuple):
    """A tensor `scale * q + least`: q [rows, blocks, 32] from 0 to 15, the others [rows, blocks]."""

    q: np.ndarray
    scale: np.ndarray
    least: np.ndarray


def q4_1(raw: np.ndarray) -> Blocks:
    """`raw` [rows, bytes]: by block scale and least in float16, then 16 bytes: first half of the weights in the low

    halves, second half in the high ones.
    """
    blocks = raw.reshape(raw.shape[0], -1, 4 + BLOCK // 2)
    numbers = np.ascontiguousarray(blocks[..., :4]).view(np.float16).astype(np.float32)
    packed = blocks[..., 4:]
    return Blocks(np.concatenate([packed & 15, packed >> 4], axis=-1), numbers[..., 0], numbers[..., 1])


def q4_k(raw: np.ndarray) -> Blocks:
    """`raw` [rows, bytes]: by eight blocks the scales of scales and of leasts in float16, 12 bytes of 6-bit scales and

    leasts, then 128 bytes: of each two blocks one in the low halves and one in the high ones.
    """
    whole = raw.reshape(raw.shape[0], -1, 144)
    rows, count = whole.shape[:2]
    numbers = np.ascontiguousarray(whole[..., :4]).view(np.float16).astype(np.float32)
    low, middle, high = whole[..., 4:8], whole[..., 8:12], whole[..., 12:16]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=-1)
    leasts = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=-1)
    packed = whole[..., 16:].reshape(rows, count, 4, 1, BLOCK)
    q = np.concatenate([packed & 15, packed >> 4], axis=-2)
    return Blocks(
        q.reshape(rows, -1, BLOCK),
        (numbers[..., :1] * scales).reshape(rows, -1),
        (-numbers[..., 1:] * leasts).reshape(rows, -1),
    )


READERS = {"Q4_1": q4_1, "Q4_K": q4_k}


def correct(model: Any, path: Path) -> int:
    """Give the 4-bit weights of `model`, made of the GGUF file at `path`, their exact scales and offsets in place.

    Rows are recognised by their whole numbers, as GenAI puts some in another order. Returns how many weights it
    corrected; a weight that has rows of no tensor in the file is left as it is.
    """
    known = dict(_rows(path))
    if not known:
        return 0
    from openvino import opset13 as op

    corrected = 0
    for node in model.get_ordered_ops():
        if not _is_weight(node):
            continue
        packed = node.data.reshape(node.shape[0], -1)
        found = [known[key] for row in packed if (key := row.tobytes()) in known]
        if len(found) < len(packed):
            continue
        scale, least = (np.stack(part)[..., None] for part in zip(*found, strict=True))
        scale = np.where(scale == 0, FLAT * least, scale)
        zero = np.divide(-least, scale, out=np.zeros_like(scale), where=scale != 0)
        multiply = _chain(node)[-1]
        exact = op.multiply(op.subtract(op.convert(node, np.float32), op.constant(zero)), op.constant(scale))
        for target in multiply.output(0).get_target_inputs():
            target.replace_source_output(exact.output(0))
        corrected += 1
    if corrected:
        model.validate_nodes_and_infer_types()
    return corrected


def _rows(path: Path) -> Iterator[tuple[bytes, tuple[np.ndarray, np.ndarray]]]:
    """The whole numbers of each row, packed as OpenVINO does (first in the low half), with its scales and leasts."""
    from gguf import GGUFReader

    for tensor in GGUFReader(path).tensors:
        reader = READERS.get(tensor.tensor_type.name)
        if reader is None or tensor.data.ndim != 2:
            continue
        q, scale, least = reader(np.asarray(tensor.data))
        flat = q.reshape(q.shape[0], -1)
        for row, scales, leasts in zip(flat[:, ::2] | (flat[:, 1::2] << 4), scale, least, strict=True):
            yield row.tobytes(), (scales, leasts)


def _is_weight(node: Any) -> bool:
    """Whether it is a u4 constant [rows, blocks, 32] that goes through Convert, Subtract and Multiply."""
    if node.get_type_name() != "Constant" or node.get_element_type().get_type_name() != "u4":
        return False
    kinds = [after.get_type_name() for after in _chain(node)]
    return len(node.shape) == 3 and node.shape[-1] == BLOCK and kinds == ["Convert", "Subtract", "Multiply"]


def _chain(node: Any) -> list[Any]:
    """The three operators after `node`, fewer where one has not exactly one after it."""
    found: list[Any] = []
    for _ in range(3):
        after = [target.get_node() for target in node.output(0).get_target_inputs()]
        if len(after) != 1:
            break
        node = after[0]
        found.append(node)
    return found
