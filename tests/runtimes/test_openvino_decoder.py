"""The OpenVINO decoder on a bigram model: the logits of a token depend on that token alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hasten import formats
from hasten.errors import Failed, InvalidInput
from hasten.runtimes.base import Settings
from hasten.runtimes.openvino_decoder import OpenVinoLanguage

TABLE = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
HEAD = np.random.default_rng(1).normal(size=(4, 7)).astype(np.float32)


def bigrams(path: Path, product: bool = True) -> Path:
    import openvino as ov
    from openvino import opset13 as op

    names = ("input_ids", "attention_mask", "position_ids")
    inputs = [op.parameter([-1, -1], np.int64, name) for name in names]
    for name, each in zip(names, inputs, strict=True):
        each.output(0).get_tensor().set_names({name})
    nothing = op.relu(op.negative(op.unsqueeze(op.convert(inputs[2], "f32"), op.constant(np.int64(-1)))))
    hidden = op.add(op.gather(op.constant(TABLE), inputs[0], op.constant(np.int64(0))), nothing)
    logits = op.matmul(hidden, op.constant(HEAD), False, False) if product else op.relu(hidden)
    logits.output(0).get_tensor().set_names({"logits"})
    ov.save_model(ov.Model([logits], inputs), path, compress_to_fp16=False)
    return path


def test_logits_are_those_of_the_rows_asked_for(tmp_path: Path) -> None:
    model = formats.inspect(bigrams(tmp_path / "bigrams.xml"))
    decoder = OpenVinoLanguage().decoder(model, Settings("fp32"))
    state = decoder.begin()
    ids = np.array([[1, 5, 2], [0, 0, 6]])
    mask = np.ones((2, 3), np.int64)
    positions = np.tile(np.arange(3), (2, 1))
    for rows in (1, 2, 3):
        found = state.feed(ids, mask, positions, rows)
        assert found.shape == (2, rows, 7)
        np.testing.assert_allclose(found, (TABLE[ids] @ HEAD)[:, 3 - rows :], rtol=1e-5)
        state.reset()
    times = decoder.operators(ids[:1], repeats=3)
    assert sum(time.microseconds for time in times) > 0
    decoder.close()


def test_a_failed_step_spoils_no_other(tmp_path: Path) -> None:
    decoder = OpenVinoLanguage().decoder(formats.inspect(bigrams(tmp_path / "bigrams.xml")), Settings("fp32"))
    state, other = decoder.begin(), decoder.begin()
    ids, one = np.array([[1, 5]]), np.array([[0, 1]])
    for _ in range(20):
        with pytest.raises(Failed):
            state.feed(ids, one, np.array([[0, 1, 2]]), 2)  # more positions than tokens
        for each in (state, other):
            each.reset()
            np.testing.assert_allclose(each.feed(ids, one, one, 2), TABLE[ids] @ HEAD, rtol=1e-5)


def test_what_is_no_decoder_is_refused(tmp_path: Path) -> None:
    model = formats.inspect(bigrams(tmp_path / "relu.xml", product=False))
    with pytest.raises(InvalidInput, match="not from a matrix product"):
        OpenVinoLanguage().decoder(model, Settings())
    bare = type(model)(model.path, model.format, model.sha256, type(model.signature)((), ()), model.facts)
    with pytest.raises(InvalidInput, match="no decoder"):
        OpenVinoLanguage().decoder(bare, Settings())
