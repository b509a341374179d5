"""Loading a bundle: what was changed is found, what leads outside is refused, and inputs come in two forms."""

from __future__ import annotations

import json
import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import bundle_case as case
import numpy as np
import pytest

from hasten import bundle
from hasten.errors import InvalidInput
from hasten.study import Study


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return case.study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return case.study(tmp_path_factory.mktemp("texts"), "text")


@pytest.fixture(scope="module")
def shipped(made: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle.write(made, case.chosen(made), case.variant(made), tmp_path_factory.mktemp("out") / "b")


@pytest.fixture(scope="module")
def packed(made: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle.write(made, case.chosen(made), case.variant(made), tmp_path_factory.mktemp("out") / "b", pack=True)


@pytest.fixture
def copy(shipped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(shipped, tmp_path / "copy"))


def test_a_batch_and_a_list_of_samples_give_the_outputs_of_the_runner(made: Study, shipped: Path) -> None:
    rows = np.stack([sample["image"] for sample in case.images()])
    expected = np.stack([out["logits"] for out in case.run_here(made)])
    with bundle.load(shipped) as model:
        np.testing.assert_array_equal(model({"image": rows})["logits"], expected)
        np.testing.assert_array_equal(model(case.images())["logits"], expected)
        assert model({"image": rows})["label"].shape == (9,)
        assert model.recipe == case.chosen(made).recipe


def test_one_sample_without_batch_axis_gives_an_answer_without_batch_axis(shipped: Path) -> None:
    with bundle.load(shipped) as model:
        answer = model({"image": np.zeros(3, np.float32)})
        assert answer["logits"].shape == (5,)
        assert answer["label"].shape == ()


def test_samples_of_different_lengths_give_outputs_of_their_own_lengths(texts: Study, tmp_path: Path) -> None:
    out = bundle.write(texts, case.chosen(texts), case.variant(texts), tmp_path / "b")
    samples = case.texts()
    with bundle.load(out) as model:
        outputs = model(samples)
    assert outputs["pooled"].shape == (13, case.WIDTH)
    assert [len(states) for states in outputs["states"]] == [len(sample["ids"]) for sample in samples]


def test_numbers_are_converted_only_where_nothing_is_lost(shipped: Path) -> None:
    with bundle.load(shipped) as model:
        assert model({"image": np.zeros((2, 3))})["logits"].shape == (2, 5)
        assert model({"image": [[1, 2, 3]]})["logits"].shape == (1, 5)
        with pytest.raises(InvalidInput, match="complex128"):
            model({"image": np.zeros((2, 3), complex)})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"picture": np.zeros((2, 3), np.float32)}, "give image"),
        ({"image": np.zeros((2, 2, 3), np.float32)}, "axes"),
        ([], "no samples"),
        ({"image": np.zeros((0, 3), np.float32)}, "no samples"),
    ],
)
def test_wrong_inputs_are_named(shipped: Path, inputs: object, message: str) -> None:
    with bundle.load(shipped) as model, pytest.raises(InvalidInput, match=message) as caught:
        model(inputs)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "name", ["model/main/image.onnx", "recipe.toml", "run.py", "study.json", "README.md", "requirements.txt"]
)
def test_a_changed_file_is_found_and_named(copy: Path, name: str) -> None:
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=name):
        bundle.load(copy)


def test_a_missing_file_a_link_and_a_changed_recipe_are_refused(copy: Path, tmp_path: Path) -> None:
    (copy / "recipe.toml").rename(tmp_path / "elsewhere")
    with pytest.raises(InvalidInput, match=r"recipe\.toml is missing"):
        bundle.load(copy)
    (copy / "recipe.toml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidInput, match="is a link"):
        bundle.load(copy)
    (copy / "recipe.toml").unlink()
    shutil.copy(tmp_path / "elsewhere", copy / "recipe.toml")
    edit(copy, lambda manifest: manifest["recipe"]["runner"].update(batch=8))
    with pytest.raises(InvalidInput, match=r"recipe in .* was changed"):
        bundle.load(copy)


def edit(folder: Path, change: Callable[[dict], object]) -> None:  # type: ignore[type-arg]
    manifest = json.loads((folder / "bundle.json").read_text())
    change(manifest)
    (folder / "bundle.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "model/../../secret", "a\\..\\b", "C:/x", "./x", "a//b", ""]
)
def test_a_path_that_leads_outside_is_refused(copy: Path, path: str) -> None:
    (copy.parent / "secret").write_text("x")
    edit(copy, lambda manifest: manifest["files"].update({path: "0" * 64}))
    with pytest.raises(InvalidInput, match="leads outside"):
        bundle.load(copy)


def test_a_folder_above_that_is_a_link_to_outside_is_refused(copy: Path, tmp_path: Path) -> None:
    shutil.move(copy / "model", tmp_path / "outside")
    (copy / "model").symlink_to(tmp_path / "outside")
    with pytest.raises(InvalidInput, match="is a link"):
        bundle.load(copy)


def test_a_model_that_is_not_among_the_hashed_files_is_refused(copy: Path) -> None:
    shutil.copy(copy / "model/main/image.onnx", copy / "other.onnx")
    edit(copy, lambda manifest: manifest["parts"]["main"].update(path="other.onnx"))
    with pytest.raises(InvalidInput, match="not among the files"):
        bundle.load(copy)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"schema": "hasten.bundle/9"}', '{"schema": "hasten.bundle/1"}'])
def test_a_broken_manifest_is_refused(copy: Path, content: str) -> None:
    (copy / "bundle.json").write_text(content)
    with pytest.raises(InvalidInput):
        bundle.load(copy)


def test_a_missing_runtime_names_the_command_that_installs_it(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hasten.runtimes.base import Availability
    from hasten.runtimes.onnxruntime import OnnxRuntime

    monkeypatch.setattr(OnnxRuntime, "availability", lambda self: Availability(False, "it is not installed"))
    with pytest.raises(InvalidInput) as caught:
        bundle.load(copy)
    pin = next(line for line in (copy / "requirements.txt").read_text().splitlines() if "onnxruntime" in line)
    assert caught.value.command == f"pip install {pin}"


def test_a_pack_runs_as_its_folder_does_and_leaves_nothing_behind(made: Study, packed: Path) -> None:
    assert packed.name == "b.pack"
    expected = np.stack([out["logits"] for out in case.run_here(made)])
    model = bundle.load(packed)
    np.testing.assert_array_equal(model(case.images())["logits"], expected)
    folder = model.folder
    assert folder.exists()
    model.close()
    assert not folder.exists()


def test_packing_is_the_same_every_time_and_an_older_pack_is_replaced(made: Study, packed: Path) -> None:
    before = packed.read_bytes()
    bundle.write(made, case.chosen(made), case.variant(made), packed, pack=True)
    assert packed.read_bytes() == before


def rewritten(packed: Path, out: Path, add: Callable[[zipfile.ZipFile], None], skip: str = "") -> Path:
    with zipfile.ZipFile(packed) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            if entry.filename != skip:
                target.writestr(entry, source.read(entry))
        add(target)
    return out


def link(archive: zipfile.ZipFile) -> None:
    entry = zipfile.ZipInfo("recipe.toml")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive.writestr(entry, "/etc/passwd")


@pytest.mark.parametrize(
    ("add", "skip", "message"),
    [
        (lambda a: a.writestr("../escaped", "x"), "", "leads outside"),
        (lambda a: a.writestr("/tmp/escaped", "x"), "", "leads outside"),
        (link, "recipe.toml", "is a link"),
        (lambda a: a.writestr("bomb", bytes(30 << 20)), "", "zip bomb"),
        (lambda a: a.writestr("study.json", "{}"), "study.json", "study.json was changed"),
        (lambda a: None, "study.json", "study.json is missing"),
        (lambda a: None, "bundle.json", "no bundle.json"),
    ],
)
def test_a_hostile_pack_is_refused(
    packed: Path, tmp_path: Path, add: Callable[[zipfile.ZipFile], None], skip: str, message: str
) -> None:
    hostile = rewritten(packed, tmp_path / "hostile.pack", add, skip)
    with pytest.raises(InvalidInput, match=message):
        bundle.load(hostile)
    assert not (tmp_path / "escaped").exists()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_occurs_twice_is_refused(packed: Path, tmp_path: Path) -> None:
    hostile = rewritten(packed, tmp_path / "twice.pack", lambda archive: archive.writestr("run.py", "import os"))
    with pytest.raises(InvalidInput, match="occurs twice"):
        bundle.load(hostile)


def test_a_pack_larger_than_allowed_is_refused_before_anything_is_written(packed: Path) -> None:
    with pytest.raises(InvalidInput, match="more than the 1,000 allowed"):
        bundle.load(packed, max_bytes=1000)


@pytest.mark.parametrize("keep", [0, 10, 400, -30])
def test_a_truncated_pack_is_refused(packed: Path, tmp_path: Path, keep: int) -> None:
    cut = tmp_path / "cut.pack"
    cut.write_bytes(packed.read_bytes()[:keep])
    with pytest.raises(InvalidInput):
        bundle.load(cut)


def test_files_that_the_manifest_does_not_name_are_not_unpacked(packed: Path, tmp_path: Path) -> None:
    extra = rewritten(packed, tmp_path / "extra.pack", lambda archive: archive.writestr("sitecustomize.py", "boom"))
    with bundle.load(extra) as model:
        assert not (model.folder / "sitecustomize.py").exists()


def test_nothing_there_and_a_folder_that_is_no_bundle_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="there is no bundle"):
        bundle.load(tmp_path / "nothing")
    with pytest.raises(InvalidInput, match="not a hasten bundle"):
        bundle.load(tmp_path)


def test_a_bundle_can_be_looked_into_without_running_it(
    made: Study, shipped: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for path in (shipped, packed, packed):
        assert bundle.is_bundle(path)
        contents = bundle.read(path)
        assert contents.recipe == case.chosen(made).recipe
        assert contents.signature == made.workload.model.signature
        assert contents.variant.main.path.is_file()
        assert bundle.read_study(path).trials == made.trials
    assert not bundle.is_bundle(tmp_path)
    assert not bundle.is_bundle(made.workload.model.path)
    assert not bundle.is_bundle(tmp_path / "nothing")
    contents = bundle.read(packed)
    contents.variant.main.path.write_bytes(b"changed in the cache")
    assert bundle.read(packed).variant.main.path.stat().st_size > 50
