"""Writing a bundle: what is in it, that it appears whole or not at all, and that it is checked before it stays."""

from __future__ import annotations

import errno
import importlib
import json
import tomllib
from dataclasses import replace
from pathlib import Path

import bundle_case as case
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from hasten import bundle
from hasten.bundle.readme import readme
from hasten.errors import Failed, InvalidInput
from hasten.model import Model
from hasten.recipe import Recipe
from hasten.study import Study

write_module = importlib.import_module("hasten.bundle.write")  # the package has a function of that name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return case.study(tmp_path_factory.mktemp("study"))


def write(made: Study, out: Path, **options: object) -> Path:
    return bundle.write(made, case.chosen(made), case.variant(made), out, **options)  # type: ignore[arg-type]


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_a_bundle_holds_the_model_the_recipe_the_evidence_the_pins_and_a_way_to_run(
    made: Study, tmp_path: Path
) -> None:
    out = write(made, tmp_path / "b", outputs=case.reference(made, tmp_path))
    assert out == tmp_path / "b"
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    wanted = "README.md bundle.json model/main/image.onnx recipe.toml requirements.txt run.py study.json"
    assert names == set(wanted.split())
    manifest = json.loads((out / "bundle.json").read_text())
    assert manifest["schema"] == "hasten.bundle/1"
    assert set(manifest["files"]) == names - {"bundle.json"}
    assert [tensor["name"] for tensor in manifest["signature"]["inputs"]] == ["image"]
    assert manifest["parts"]["main"]["path"] == "model/main/image.onnx"
    recipe = Recipe.from_json(tomllib.loads((out / "recipe.toml").read_text()))
    assert recipe == case.chosen(made).recipe
    assert recipe.sha256 == manifest["recipe_sha256"]
    pins = (out / "requirements.txt").read_text().splitlines()
    assert [pin.split("==")[0] for pin in pins] == ["numpy", "onnxruntime"]
    assert Study.from_json(json.loads((out / "study.json").read_text())).best_id == made.best_id
    text = (out / "README.md").read_text()
    assert "2.00x (95% interval 1.90 to 2.10)" in text
    assert "python run.py" in text
    assert text.startswith("# `image.onnx`, made faster by hasten\n")


def test_a_bundle_of_the_model_as_brought_does_not_claim_to_be_faster(made: Study) -> None:
    brought = replace(made, best_id=made.trials[0].id)
    text = readme(brought, case.chosen(brought), "onnxruntime")
    assert text.startswith("# `image.onnx`\n")
    assert "as it was brought" in text
    assert "made faster" not in text
    assert "Improvement" not in text


def test_a_bundle_does_not_tell_where_on_the_makers_machine_it_came_from(made: Study, tmp_path: Path) -> None:
    out = write(made, tmp_path / "b")
    folder = str(made.workload.model.path.parent)
    for name in ("bundle.json", "study.json", "README.md", "run.py"):
        assert folder not in (out / name).read_text()


def test_external_weights_come_along_in_their_place(tmp_path: Path) -> None:
    made = case.study(tmp_path, external=True)
    out = write(made, tmp_path / "b", outputs=case.reference(made, tmp_path))
    assert (out / "model/main/data/weights.bin").is_file()
    assert "model/main/data/weights.bin" in json.loads((out / "bundle.json").read_text())["files"]


def test_an_older_bundle_is_replaced_and_nothing_else_ever_is(made: Study, tmp_path: Path) -> None:
    out = write(made, tmp_path / "b")
    (out / "mark").write_text("old")
    write(made, out)
    assert not (out / "mark").exists()
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.jpg").write_text("x")
    for target in (other, other / "cat.jpg", other / "cat.jpg" / "below"):
        with pytest.raises(InvalidInput):
            write(made, target)
    with pytest.raises(InvalidInput, match="not a hasten bundle"):
        write(made, other / "cat.jpg", pack=False)
    assert (other / "cat.jpg").read_text() == "x"
    link = tmp_path / "link"
    link.symlink_to(out)
    with pytest.raises(InvalidInput, match="not a hasten bundle"):
        write(made, link)
    assert leftovers(tmp_path) == []


def test_a_full_disk_leaves_nothing_half_written_and_keeps_the_older_bundle(
    made: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = write(made, tmp_path / "b")
    before = (out / "bundle.json").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    for target in (out, tmp_path / "new"):
        with pytest.raises(Failed, match="No space left on device"):
            write(made, target)
    assert (out / "bundle.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b"]


def test_an_output_that_differs_from_the_trials_is_refused_and_not_kept(made: Study, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="does not give the outputs of its trial: logits"):
        write(made, tmp_path / "b", outputs=case.reference(made, tmp_path, spoil=0.5))
    assert not (tmp_path / "b").exists()
    assert leftovers(tmp_path) == []


def test_a_bundle_is_checked_against_the_variant_itself_where_no_outputs_are_given(
    made: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(folder: Path, name: str, model: Model, limits: object) -> dict[str, object]:
        described = copy(folder, name, model, limits)
        onnx_model = onnx.load(folder / str(described["path"]))
        weights = numpy_helper.to_array(onnx_model.graph.initializer[0])
        onnx_model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights * np.float32(1.2), "weights"))
        onnx.save(onnx_model, folder / str(described["path"]))
        return described

    copy = write_module._copy
    monkeypatch.setattr(write_module, "_copy", spoilt)
    with pytest.raises(Failed, match=r"logits differs by 0\.2"):
        write(made, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_bundle_whose_samples_are_gone_is_not_shipped_unchecked(made: Study, tmp_path: Path) -> None:
    samples = replace(made.workload.samples, path=tmp_path / "gone")
    gone = replace(made, workload=replace(made.workload, samples=samples))
    with pytest.raises(InvalidInput, match="not shipped unchecked"):
        write(gone, tmp_path / "b")


def test_a_bad_destination_is_known_before_anything_is_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInput, match="not a folder"):
        bundle.check_target(tmp_path / "file" / "b")
    assert bundle.check_target(tmp_path / "new" / "b", pack=True) == tmp_path / "new" / "b.pack"
    assert bundle.check_target(tmp_path / "b.pack", pack=True) == tmp_path / "b.pack"


def test_the_same_recipe_gives_the_same_recipe_hash_and_files(made: Study, tmp_path: Path) -> None:
    first, second = (json.loads((write(made, tmp_path / name) / "bundle.json").read_text()) for name in "ab")
    assert first == second
