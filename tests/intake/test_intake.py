"""PyTorch models come in as exported programs that give the module's outputs, or with a reason why not."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch_models  # noqa: E402

from hasten import data, formats, intake  # noqa: E402
from hasten.errors import Failed, InvalidInput  # noqa: E402
from hasten.intake.factory import load as from_factory  # noqa: E402
from hasten.intake.module import arguments, described, flat  # noqa: E402
from hasten.runtimes import Settings, runtime  # noqa: E402


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Workers find the models as a user's own file: beside where they are started."""
    monkeypatch.chdir(Path(__file__).parent)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def outputs(model, batch):
    session = runtime("torch").load(model, Settings())
    try:
        return session.run(batch)
    finally:
        session.close()


def test_a_module_with_an_example_becomes_a_program_with_a_free_batch_axis(tmp_path):
    model = from_factory("torch_models:cnn", None, tmp_path)
    assert model.format == "pt2"
    (image,) = model.signature.inputs
    assert (image.name, image.dtype, image.shape) == ("image", "float32", ("batch", 3, 12, 12))
    assert model.signature.outputs[0].shape == ("batch", 5)
    assert model.facts.parameters == sum(p.numel() for p in torch_models.Cnn().parameters())
    assert model.facts.kinds["Conv"] == 1
    module, _ = torch_models.cnn()
    batch = np.random.default_rng(0).normal(size=(7, 3, 12, 12)).astype(np.float32)
    wanted = module.eval()(torch.from_numpy(batch)).detach().numpy()
    np.testing.assert_allclose(outputs(model, {"image": batch})["output"], wanted, atol=1e-5)


def test_the_hash_is_of_the_model_and_not_of_the_file(tmp_path):
    one = from_factory("torch_models:cnn", None, tmp_path / "a")
    two = from_factory("torch_models:cnn", None, tmp_path / "b")
    assert one.sha256 == two.sha256
    assert (one.path.parent.name, one.path.name) == (one.sha256, "torch_models.cnn.pt2")
    assert formats.inspect(one.path) == one


def test_samples_tell_the_inputs_and_which_axes_vary(tmp_path):
    model = from_factory("torch_models:encoder", "torch_models:samples", tmp_path)
    assert [t.name for t in model.signature.inputs] == ["input_ids", "attention_mask"]
    assert all(t.shape == ("batch", "length") and t.dtype == "int64" for t in model.signature.inputs)
    assert [(t.name, t.shape) for t in model.signature.outputs] == [
        ("hidden", ("batch", "length", 16)),
        ("pooled", ("batch", 16)),
    ]


def test_operators_are_counted_for_given_shapes(tmp_path):
    model = from_factory("torch_models:cnn", None, tmp_path)
    found = {op.kind: op for op in formats.operators(model, {"image": (2, 3, 12, 12)})}
    assert found["Conv"].flops == pytest.approx(2 * 2 * 8 * 12 * 12 * 27, rel=0.05)
    assert found["MatMul"].flops == 2 * 2 * 8 * 5
    assert found["MatMul"].weight_bytes == 4 * (8 * 5 + 5)


def test_without_example_and_samples_it_says_what_is_missing(tmp_path):
    with pytest.raises(InvalidInput, match="nothing says what the module takes"):
        from_factory("torch_models:bare_cnn", None, tmp_path)


def test_a_state_dict_is_loaded_without_running_code(tmp_path):
    torch.manual_seed(9)
    module = torch_models.Cnn().eval()
    torch.save(module.state_dict(), tmp_path / "w.pt")
    model = from_factory("torch_models:cnn", None, tmp_path, weights=str(tmp_path / "w.pt"))
    batch = np.random.default_rng(0).normal(size=(2, 3, 12, 12)).astype(np.float32)
    wanted = module(torch.from_numpy(batch)).detach().numpy()
    np.testing.assert_allclose(outputs(model, {"image": batch})["output"], wanted, atol=1e-5)


class Bomb:
    def __reduce__(self):
        return (sys.exit, ("a pickle ran",))


def test_weights_that_would_run_code_are_refused(tmp_path):
    torch.save({"head.weight": Bomb()}, tmp_path / "w.pt")
    with pytest.raises(InvalidInput, match="cannot be read without running code"):
        from_factory("torch_models:cnn", None, tmp_path, weights=str(tmp_path / "w.pt"))


def test_weights_of_another_module_are_refused(tmp_path):
    torch.save({"other": torch.ones(3)}, tmp_path / "w.pt")
    with pytest.raises(InvalidInput, match="do not fit the module"):
        from_factory("torch_models:cnn", None, tmp_path, weights=str(tmp_path / "w.pt"))


AWKWARD = {
    "branches": "torch",
    "in_place": "pt2",
    "complex_inside": "pt2",
    "complex_out": "is complex",
    "custom_op": "torch",
    "tied": "pt2",
    "mixed_types": "pt2",
    "nested_outputs": "pt2",
    "zero_size": "pt2",
    "fixed_batch": "pt2",
    "recurrent": "pt2",
    "raises": "not today",
    "python_output": "is a int, not a tensor",
    "random_output": "torch",
    "not_a_module": "returned a int, not an nn.Module",
}


@pytest.mark.parametrize(("name", "found"), AWKWARD.items())
def test_awkward_models_are_taken_or_refused_with_the_reason(tmp_path, name, found):
    if found not in ("pt2", "torch"):
        with pytest.raises((InvalidInput, Failed), match=found):
            from_factory(f"torch_models:{name}", None, tmp_path)
        return
    model = from_factory(f"torch_models:{name}", None, tmp_path)
    assert model.format == found
    module, example = getattr(torch_models, name)()
    example = example if isinstance(example, dict) else {model.signature.inputs[0].name: example}
    wanted = flat(module.eval()(*example.values()))
    got = outputs(model, {key: value.numpy() for key, value in example.items()})
    assert set(got) == set(wanted)
    if name == "random_output":
        return  # no two calls agree, the module's own included
    for key, value in wanted.items():
        np.testing.assert_allclose(got[key], value.detach().float().numpy(), atol=1e-3)


@pytest.mark.parametrize(("name", "kind"), [("doubling", "pt2"), ("overwriting", "torch")])
def test_a_module_that_writes_into_its_inputs_leaves_the_samples_alone(tmp_path, name, kind):
    model = from_factory(f"torch_models:{name}", None, tmp_path)
    assert model.format == kind
    module, example = getattr(torch_models, name)()
    batch = {"x": example.numpy().copy()}
    session = runtime("torch").load(model, Settings())
    first, second = session.run(batch)["output"], session.run(batch)["output"]
    np.testing.assert_array_equal(batch["x"], example.numpy())
    np.testing.assert_allclose(first, module.eval()(example.clone()).detach().numpy(), atol=1e-6)
    np.testing.assert_array_equal(first, second)


def test_torchscript_tells_its_inputs_by_its_own_schema(tmp_path):
    model = from_factory("torch_models:scripted", "torch_models:images", tmp_path)
    assert [t.name for t in model.signature.inputs] == ["image"]


def test_a_function_that_makes_another_model_each_time_is_told_of(tmp_path):
    model = from_factory("torch_models:unseeded", None, tmp_path)
    with pytest.raises(Failed, match="makes another model each time"):
        outputs(model, {"x": np.ones((2, 4), np.float32)})


def test_a_module_in_memory_and_a_data_loader(tmp_path):
    torch.manual_seed(0)
    module = torch_models.Cnn().train()
    images = torch.randn(20, 3, 12, 12)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, torch.arange(20) % 5), batch_size=6)
    model = intake.load(module, loader)
    assert module.training
    assert model.signature.inputs[0].shape == ("batch", 3, 12, 12)
    samples = data.ingest(loader, model, tmp_path)
    assert (samples.count, samples.labels) == (20, True)
    read = data.SampleSet.open(samples.path)
    np.testing.assert_allclose(read[7]["image"], images[7].numpy())
    assert read.labels.tolist() == [i % 5 for i in range(20)]


def test_a_module_in_memory_that_cannot_be_exported_asks_for_its_function():
    module, example = torch_models.branches()
    with pytest.raises(Failed, match="cannot be handed to other processes"):
        intake.load(module, [{"x": row} for row in example.numpy()])


def test_a_strangers_program_needs_trust(tmp_path):
    module, example = torch_models.cnn()
    path = tmp_path / "stranger.pt2"
    torch.export.save(torch.export.export(module.eval(), (example,)), path)
    with pytest.raises(InvalidInput, match="can run code"):
        intake.load(path)
    model = intake.load(path, trust=True)
    batch = example.numpy()
    wanted = module(example).detach().numpy()
    np.testing.assert_allclose(
        next(iter(outputs(model, {model.signature.inputs[0].name: batch}).values())), wanted, atol=1e-5
    )


@pytest.mark.parametrize(
    ("source", "told"),
    [(3, "is no model"), ("nowhere:make", "nowhere"), ("torch_models:nothing", "has no 'nothing'")],
)
def test_what_is_no_model_is_refused(source, told):
    with pytest.raises(InvalidInput, match=told):
        intake.load(source)


def test_weights_belong_to_a_function(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"x")
    with pytest.raises(InvalidInput, match="--weights belongs"):
        intake.load(path, weights="w.pt")


def test_names_of_arguments_and_outputs():
    assert arguments(torch_models.Encoder()) == ["input_ids", "attention_mask"]
    tensor = torch.ones(1)
    assert flat(tensor) == {"output": tensor}
    assert list(flat((tensor, [tensor]))) == ["output_0", "output_1.0"]
    assert list(flat({"a": tensor, "b": None, "c": {"d": tensor}})) == ["a", "c.d"]
    assert list(flat([tensor])) == ["output_0"]


def test_the_signature_that_probes_show():
    probes = [{"ids": np.ones((2, 5), np.int64)}, {"ids": np.ones((3, 9), np.int64)}]
    results = [{"out": torch.ones(2, 5, 4)}, {"out": torch.ones(3, 9, 4)}]
    found = described(probes, results)
    assert found.inputs[0].shape == ("batch", "length")
    assert found.outputs[0].shape == ("batch", "length", 4)
