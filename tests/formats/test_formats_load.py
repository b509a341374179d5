"""What `formats` says of models, good and bad."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import onnx_models as models
import pytest
from onnx import TensorProto, helper, numpy_helper

from hasten import formats
from hasten.errors import InvalidInput
from hasten.formats import skeleton
from hasten.model import Model, Tensor


def refused(path: Path) -> str:
    with pytest.raises(InvalidInput) as caught:
        formats.inspect(path)
    assert caught.value.fix
    assert "\n" not in caught.value.cause
    return caught.value.cause


def with_external(folder: Path, location: str = "weights.bin", **entries: str) -> Path:
    """An MLP whose matrix, 64 x 32 float32, is said to lie at `location`."""
    proto = models.mlp()
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return models.save(proto, folder / "model.onnx")


def test_a_model_gives_its_signature_and_its_facts(tmp_path: Path) -> None:
    proto = models.mlp()
    proto.producer_name, proto.producer_version = "me", "1"
    path = models.save(proto, tmp_path / "m.onnx")
    model = formats.load(path)
    assert model.signature.inputs == (Tensor("x", "float32", ("n", 64)),)
    assert model.signature.outputs == (Tensor("y", "float32", ("n", 32)),)
    assert (model.path, model.format) == (path, "onnx")
    assert model.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    facts = model.facts
    assert (facts.parameters, facts.opset, facts.producer) == (64 * 32 + 32, 17, "me 1")
    assert facts.kinds == {"MatMul": 1, "Add": 1, "Relu": 1}
    assert facts.size_bytes == path.stat().st_size
    assert Model.from_json(model.to_json()) == model == formats.inspect(path)


def test_weights_in_constant_nodes_are_parameters_and_scalars_and_shapes_are_not(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["w"], value=models.weight("", 64, 32)),
        helper.make_node("Constant", [], ["scale"], value=numpy_helper.from_array(np.float32(0.5))),
        helper.make_node("Constant", [], ["shape"], value=numpy_helper.from_array(np.array([-1, 8, 4]))),
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Mul", ["m", "scale"], ["s"]),
        helper.make_node("Reshape", ["s", "shape"], ["y"]),
    ]
    proto = models.model(nodes, [models.value("x", ["n", 64])], [models.value("y", ["n", 8, 4])])
    assert formats.inspect(models.save(proto, tmp_path / "m.onnx")).facts.parameters == 64 * 32


def test_weights_and_operators_of_subgraphs_count(tmp_path: Path) -> None:
    facts = formats.inspect(models.save(models.branching(), tmp_path / "m.onnx")).facts
    assert facts.parameters == 64 * 64 + 64 * 32 + 32 * 64
    assert facts.kinds == {"If": 1, "MatMul": 3, "Constant": 1}


def test_several_inputs_of_every_kind_are_described(tmp_path: Path) -> None:
    inputs = [
        models.value("text", ["n"], TensorProto.STRING),
        models.value("half", [None, 2], TensorProto.BFLOAT16),
        models.value("any", None, TensorProto.INT64),
        models.value("scalar", [], TensorProto.BOOL),
    ]
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in ("text", "half", "any", "scalar")]
    outputs = [
        models.value("text_out", ["n"], TensorProto.STRING),
        models.value("half_out", [None, 2], TensorProto.BFLOAT16),
        models.value("any_out", None, TensorProto.INT64),
        models.value("scalar_out", [], TensorProto.BOOL),
    ]
    signature = formats.inspect(models.save(models.model(nodes, inputs, outputs), tmp_path / "m.onnx")).signature
    assert signature.inputs == (
        Tensor("text", "string", ("n",)),
        Tensor("half", "bfloat16", (None, 2)),
        Tensor("any", "int64", None),
        Tensor("scalar", "bool", ()),
    )
    assert [output.name for output in signature.outputs] == ["text_out", "half_out", "any_out", "scalar_out"]


def test_initialisers_listed_as_inputs_are_not_inputs(tmp_path: Path) -> None:
    proto = models.mlp()
    proto.graph.input.append(models.value("w", [64, 32]))
    assert [t.name for t in formats.inspect(models.save(proto, tmp_path / "m.onnx")).signature.inputs] == ["x"]


def test_a_dimension_of_minus_one_is_dynamic_as_paddle_writes_it(tmp_path: Path) -> None:
    proto = models.mlp()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert formats.inspect(models.save(proto, tmp_path / "m.onnx")).signature.inputs[0].shape == (None, 64)


def test_the_skeleton_keeps_everything_but_large_weights(tmp_path: Path) -> None:
    proto = models.mlp(256, 512)
    read = skeleton.read_skeleton(models.save(proto, tmp_path / "m.onnx"))
    assert len(read.message) < skeleton.KEEP_BYTES < proto.ByteSize()
    found = onnx.ModelProto.FromString(read.message)
    big, small = found.graph.initializer
    assert (big.name, list(big.dims)) == ("w", [256, 512])
    assert {entry.key: entry.value for entry in big.external_data} == {read.token: f"raw_data:{4 * 256 * 512}"}
    assert small == proto.graph.initializer[1]
    del found.graph.initializer[:], proto.graph.initializer[:]
    assert found == proto


def test_float_data_is_dropped_and_its_length_checked(tmp_path: Path) -> None:
    proto = models.mlp()
    tensor = proto.graph.initializer[0]
    values = numpy_helper.to_array(tensor).ravel()
    tensor.ClearField("raw_data")
    tensor.float_data.extend(values)
    assert formats.inspect(models.save(proto, tmp_path / "m.onnx")).facts.parameters == 64 * 32 + 32
    tensor.float_data.append(1.0)
    assert "2049" in refused(models.save(proto, tmp_path / "m.onnx")) or "8196 bytes" in refused(tmp_path / "m.onnx")


def test_external_data_beside_the_model_is_read_by_path_and_hashed(tmp_path: Path) -> None:
    path = with_external(tmp_path)
    (tmp_path / "weights.bin").write_bytes(bytes(64 * 32 * 4))
    first = formats.load(path)
    assert first.facts.parameters == 64 * 32 + 32
    assert first.facts.size_bytes == path.stat().st_size + 64 * 32 * 4
    (tmp_path / "weights.bin").write_bytes(b"\1" + bytes(64 * 32 * 4 - 1))
    assert formats.inspect(path).sha256 != first.sha256


def test_external_data_in_a_folder_below_is_inside(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w").write_bytes(bytes(8 + 64 * 32 * 4))
    path = with_external(tmp_path, "data/w", offset="8", length=str(64 * 32 * 4))
    assert formats.inspect(path).facts.parameters == 64 * 32 + 32


def test_missing_external_data_is_named(tmp_path: Path) -> None:
    assert "'weights.bin'" in refused(with_external(tmp_path))


@pytest.mark.parametrize("location", ["/etc/passwd", "../secret", "a/../../secret", "C:\\secret", "\\\\host\\secret"])
def test_external_data_outside_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(64 * 32 * 4))
    folder = tmp_path / "model"
    folder.mkdir()
    assert "outside the model's folder" in refused(with_external(folder, location))


@pytest.mark.parametrize("location", ["", ".", "*/_ORT_MEM_ADDR_/*", "nul\0byte"])
def test_external_data_that_is_no_file_is_refused(tmp_path: Path, location: str) -> None:
    refused(with_external(tmp_path, location))


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(64 * 32 * 4))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights.bin").symlink_to(tmp_path / "secret")
    assert "outside the model's folder" in refused(with_external(folder))


@pytest.mark.parametrize(
    "entries",
    [{"offset": "4"}, {"offset": "-4"}, {"length": "8"}, {"offset": "x"}, {"offset": str(1 << 62)}, {"length": "-1"}],
)
def test_external_data_must_be_as_long_as_the_tensor_needs(tmp_path: Path, entries: dict[str, str]) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(64 * 32 * 4))
    assert "'w'" in refused(with_external(tmp_path, **entries))


def test_a_file_cannot_pretend_that_its_weights_were_left_out(tmp_path: Path) -> None:
    """The mark of a dropped payload is drawn anew for every file."""
    path = with_external(tmp_path, "../secret", **{"hasten-0000000000000000": "raw_data:8192"})
    assert "outside the model's folder" in refused(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PK\x03\x04" + bytes(40), "zip archive"),
        (b"\x80\x02}q\x00.", "pickle"),
        (b"GGUF" + bytes(40), "GGUF"),
        (bytes(4) + b"TFL3" + bytes(40), "TensorFlow Lite"),
        (b"\x50\0\0\0\0\0\0\0" + b'{"w":{"dtype":"F32"}}', "safetensors"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"<html>", "text file"),
        (b"hello, I am not a model\n" * 20, "not a"),
    ],
)
def test_a_file_that_is_not_onnx_is_told_what_it_looks_like(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    assert says in refused(tmp_path / "m.onnx")


def test_a_truncated_file_is_refused_at_every_length(tmp_path: Path) -> None:
    whole = models.mlp().SerializeToString()
    path = tmp_path / "m.onnx"
    for length in range(1, len(whole), 97):
        path.write_bytes(whole[:length])
        refused(path)
    path.write_bytes(whole[:-1])
    assert "truncated" in refused(path)


def test_an_empty_file_a_folder_and_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.onnx").touch()
    assert "empty" in refused(tmp_path / "empty.onnx")
    models.save(models.mlp(), tmp_path / "inside.onnx")
    with pytest.raises(InvalidInput, match=r"inside\.onnx"):
        formats.load(tmp_path)
    assert "no model" in refused(tmp_path / "nowhere.onnx")


@pytest.mark.parametrize(("opset", "says"), [(6, "opset 6"), (0, "opset 0"), (999, "opset 999")])
def test_an_unknown_opset_is_named(tmp_path: Path, opset: int, says: str) -> None:
    proto = models.mlp()
    proto.opset_import[0].version = opset
    assert says in refused(models.save(proto, tmp_path / "m.onnx"))


@pytest.mark.parametrize("opset", [7, 13, 17, onnx.defs.onnx_opset_version()])
def test_every_opset_from_7_is_read(tmp_path: Path, opset: int) -> None:
    proto = models.mlp()
    proto.opset_import[0].version = opset
    assert formats.inspect(models.save(proto, tmp_path / "m.onnx")).facts.opset == opset


def test_an_operator_of_an_unknown_domain_is_named(tmp_path: Path) -> None:
    node = helper.make_node("Magic", ["x"], ["y"], domain="my.ops")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.ops", 1)]
    proto = models.model([node], [models.value("x", [1])], [models.value("y", [1])], opset_imports=opsets)
    assert "'Magic' of domain 'my.ops'" in refused(models.save(proto, tmp_path / "m.onnx"))


def test_local_functions_and_onnxruntimes_operators_are_known(tmp_path: Path) -> None:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1), helper.make_opsetid("com.microsoft", 1)]
    double = helper.make_function(
        "local", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], opsets[:1]
    )
    nodes = [
        helper.make_node("Double", ["x"], ["d"], domain="local"),
        helper.make_node("FastGelu", ["d"], ["y"], domain="com.microsoft"),
    ]
    proto = models.model(
        nodes, [models.value("x", [4])], [models.value("y", [4])], opset_imports=opsets, functions=[double]
    )
    path = models.save(proto, tmp_path / "m.onnx")
    assert formats.inspect(path).facts.kinds == {"Double": 1, "Add": 1, "FastGelu": 1}


def test_an_operator_that_does_not_exist_is_named(tmp_path: Path) -> None:
    proto = models.mlp()
    proto.graph.node[0].op_type = "MatMull"
    assert "MatMull" in refused(models.save(proto, tmp_path / "m.onnx"))


@pytest.mark.parametrize("dims", [[-2, 64], [1 << 62, 64], [1 << 40, 2]])
def test_absurd_dimensions_are_refused(tmp_path: Path, dims: list[int]) -> None:
    proto = models.mlp()
    for at, dim in enumerate(dims):
        proto.graph.input[0].type.tensor_type.shape.dim[at].dim_value = dim
    assert "'x'" in refused(models.save(proto, tmp_path / "m.onnx"))
    proto = models.mlp()
    proto.graph.initializer[0].dims[:] = dims
    assert "'w'" in refused(models.save(proto, tmp_path / "m.onnx"))


def test_data_that_does_not_fill_its_shape_is_refused(tmp_path: Path) -> None:
    for at in range(2):
        proto = models.mlp()
        proto.graph.initializer[at].dims[0] += 1
        assert "bytes of data" in refused(models.save(proto, tmp_path / "m.onnx"))


def test_a_sequence_is_no_tensor(tmp_path: Path) -> None:
    node = helper.make_node("SequenceConstruct", ["x"], ["s"])
    output = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    proto = models.model([node], [models.value("x", [1])], [output])
    assert "'s' has the type sequence" in refused(models.save(proto, tmp_path / "m.onnx"))


def test_an_output_that_nothing_produces_is_refused(tmp_path: Path) -> None:
    proto = models.mlp()
    proto.graph.output.append(models.value("ghost", [1]))
    assert "'ghost'" in refused(models.save(proto, tmp_path / "m.onnx"))


def test_names_that_are_not_text_are_refused(tmp_path: Path) -> None:
    content = models.mlp().SerializeToString().replace(b"relu", b"\xff\xfe\xfd\xfc")
    (tmp_path / "m.onnx").write_bytes(content)
    assert "UTF-8" in refused(tmp_path / "m.onnx")


def test_an_error_in_the_worker_reaches_the_caller_as_it_is(tmp_path: Path) -> None:
    path = with_external(tmp_path, "../secret")
    with pytest.raises(InvalidInput, match="outside the model's folder"):
        formats.load(path)


@pytest.mark.slow
def test_a_model_over_2_gb_is_read_by_path(tmp_path: Path) -> None:
    proto = models.model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [models.value("x", ["n", 1 << 15])],
        [models.value("y", ["n", 1 << 14])],
    )
    proto.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[1 << 15, 1 << 14], data_location=1)
    proto.graph.initializer[0].external_data.add(key="location", value="w.bin")
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(1 << 31)  # sparse: it takes no space
    model = formats.load(models.save(proto, tmp_path / "m.onnx"))
    assert (model.facts.parameters, model.facts.size_bytes > 1 << 31) == (1 << 29, True)
    (operator,) = formats.operators(model, {"x": (3, 1 << 15)})
    assert operator.flops == 2 * 3 * (1 << 29)
