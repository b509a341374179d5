"""4-bit GGUF weights keep their exact offsets, which OpenVINO GenAI rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

gguf = pytest.importorskip("gguf", reason="the extra llm is not installed")

from hasten.intake.gguf_exact import BLOCK, READERS, correct  # noqa: E402

BYTES = {"Q4_1": (32, 20), "Q4_K": (256, 144)}
"""Weights of a block of the file, and its bytes."""


def random_rows(kind: str, rows: int, blocks: int, seed: int) -> np.ndarray:
    """Bytes [rows, ...] of a tensor whose numbers are finite."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (rows, blocks, BYTES[kind][1]), dtype=np.uint8)
    numbers = rng.normal(0, 0.1, (rows, blocks, 2)).astype(np.float16)
    raw[..., :4] = numbers.view(np.uint8).reshape(rows, blocks, 4)
    return raw.reshape(rows, -1)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(BYTES)), st.integers(1, 5), st.integers(1, 4), st.integers(0, 99))
def test_blocks_mean_what_the_reference_reads(kind: str, rows: int, blocks: int, seed: int) -> None:
    raw = random_rows(kind, rows, blocks, seed)
    read = READERS[kind](raw)
    assert read.q.shape == (rows, blocks * BYTES[kind][0] // BLOCK, BLOCK)
    assert read.q.max() <= 15
    found = (read.scale[..., None] * read.q + read.least[..., None]).reshape(rows, -1)
    np.testing.assert_allclose(found, gguf.dequantize(raw, gguf.GGMLQuantizationType[kind]), rtol=1e-6, atol=1e-7)


def rounded(q: np.ndarray, scale: np.ndarray, least: np.ndarray) -> Any:
    """x [n, columns] times the weights as GenAI writes them: whole zero points from 0 to 15."""
    import openvino as ov
    from openvino import opset13 as op

    rows, blocks, _ = q.shape
    ratio = np.divide(-least, scale, out=np.zeros_like(scale), where=scale != 0)
    zero = np.clip(np.round(ratio), 0, 15).astype(np.uint8)

    def u4(values: np.ndarray) -> Any:
        flat = values.reshape(-1)
        tensor = ov.Tensor(ov.Type.u4, ov.Shape(list(values.shape)))
        tensor.data[...] = (flat[::2] | (flat[1::2] << 4)).reshape(tensor.data.shape)
        return op.constant(tensor)

    kept = u4(q), u4(zero[..., None])
    weights, zeros = (op.convert(constant, np.float16) for constant in kept)
    scaled = op.multiply(op.subtract(weights, zeros), op.constant(scale[..., None].astype(np.float16)))
    x = op.parameter([-1, blocks * BLOCK], np.float32, name="x")
    flat = op.convert(op.reshape(scaled, op.constant(np.array([rows, blocks * BLOCK])), False), np.float32)
    return ov.Model([op.matmul(x, flat, False, True)], [x], "rounded")


@pytest.mark.parametrize("kind", sorted(BYTES))
def test_a_graph_with_rounded_offsets_computes_what_the_file_says_whatever_the_order_of_rows(
    tmp_path: Path, kind: str
) -> None:
    import openvino as ov

    raw = random_rows(kind, 8, 2, 3)
    if kind == "Q4_1":  # a block of equal weights
        raw[2, : BYTES[kind][1]] = np.r_[np.array([0, 0.3], np.float16).view(np.uint8), np.zeros(16, np.uint8)]
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("blk.0.attn_q.weight", raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    order = np.random.default_rng(4).permutation(8)
    read = READERS[kind](raw[order])
    model = rounded(read.q, read.scale, read.least)
    x = np.random.default_rng(5).normal(size=(3, read.q.shape[1] * BLOCK)).astype(np.float32)
    wanted = x @ gguf.dequantize(raw[order], gguf.GGMLQuantizationType[kind]).T
    size = np.abs(wanted).max()

    def error() -> float:
        compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return float(np.abs(compiled([x])[0] - wanted).max() / size)

    assert error() > 0.02
    assert correct(model, tmp_path / "model.gguf") == 1
    assert error() < 1e-4


def test_weights_of_another_file_are_left_alone(tmp_path: Path) -> None:
    raw, other = random_rows("Q4_1", 4, 2, 1), random_rows("Q4_1", 4, 2, 2)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("blk.0.attn_q.weight", other, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert correct(rounded(*READERS["Q4_1"](raw)), tmp_path / "model.gguf") == 0
