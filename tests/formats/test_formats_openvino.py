"""OpenVINO's models are read without OpenVINO, and agree with it."""

from __future__ import annotations

from pathlib import Path

import onnx_models as models
import pytest

from hasten import formats
from hasten.errors import InvalidInput
from hasten.model import Tensor

openvino = pytest.importorskip("openvino")


@pytest.fixture
def xml(tmp_path: Path) -> Path:
    read = openvino.Core().read_model(models.save(models.cnn(), tmp_path / "m.onnx"))
    openvino.save_model(read, tmp_path / "m.xml", compress_to_fp16=False)
    return tmp_path / "m.xml"


def test_an_openvino_model_gives_the_signature_and_facts_of_its_onnx_source(xml: Path) -> None:
    model, source = formats.load(xml), formats.inspect(xml.with_suffix(".onnx"))
    assert model.format == "openvino"
    assert model.signature.inputs == (Tensor("image", "float32", (None, 3, 28, 28)),)
    assert model.signature.outputs == (Tensor("logits", "float32", (None, 10)),)
    assert model.facts.parameters == source.facts.parameters
    assert model.facts.size_bytes == xml.stat().st_size + xml.with_suffix(".bin").stat().st_size
    assert model.facts.producer.startswith("OpenVINO 20")
    assert model.facts.kinds["MaxPool"] == 1


def test_its_arithmetic_is_that_of_its_source(xml: Path) -> None:
    shapes = {"image": (2, 3, 28, 28)}
    ours = formats.operators(formats.load(xml), shapes)
    source = formats.operators(formats.inspect(xml.with_suffix(".onnx")), shapes)
    assert sum(operator.flops for operator in ours) == pytest.approx(
        sum(operator.flops for operator in source), rel=0.01
    )
    assert {"Convolution", "GroupConvolution", "MatMul"} <= {operator.kind for operator in ours}


def test_the_weights_are_part_of_the_hash(xml: Path) -> None:
    before = formats.inspect(xml).sha256
    weights = bytearray(xml.with_suffix(".bin").read_bytes())
    weights[0] ^= 1
    xml.with_suffix(".bin").write_bytes(weights)
    assert formats.inspect(xml).sha256 != before


def test_missing_and_truncated_weights_are_refused(xml: Path) -> None:
    weights = xml.with_suffix(".bin")
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(InvalidInput, match="needs bytes"):
        formats.inspect(xml)
    weights.unlink()
    with pytest.raises(InvalidInput, match=r"m\.bin.*missing"):
        formats.inspect(xml)


@pytest.mark.parametrize(
    "text",
    [
        "<net>",
        "<html></html>",
        "<net version='3'><layers/></net>",
        "<net version='11'><layers/></net>",
        "<!DOCTYPE x [<!ENTITY a 'b'>]><net version='11'><layers/></net>",
    ],
)
def test_other_xml_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.xml").write_text(text)
    with pytest.raises(InvalidInput):
        formats.inspect(tmp_path / "m.xml")


def test_shapes_that_do_not_fit_are_refused(xml: Path) -> None:
    with pytest.raises(InvalidInput, match="shapes"):
        formats.operators(formats.inspect(xml), {"image": (1, 4, 28, 28)})
