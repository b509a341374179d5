"""A bundle's own run.py: it works where hasten is not installed, and does what hasten's runner does."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import bundle_case as case
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hasten import bundle
from hasten.recipe import Recipe
from hasten.runtimes import Availability
from hasten.runtimes.openvino import OpenVino
from hasten.search.answer import fallback

RUNTIMES = ("onnxruntime", "openvino")


def packages(requirements: Path) -> set[Path]:
    """What `pip install -r` would have put into site-packages: the pinned packages and what they require, no more."""
    found: set[Path] = set()
    names = [line.partition("==")[0] for line in requirements.read_text().splitlines()]
    seen: set[str] = set()
    while names:
        name = names.pop()
        if name.lower() in seen:
            continue
        seen.add(name.lower())
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue  # a requirement of another platform
        for file in installed.files or ():
            if not file.parts[0].startswith(("..", "__pycache__")):
                found.add(Path(str(installed.locate_file(file.parts[0]))))
        names += [re.split(r"[ ;<>=!~\[(]", line)[0] for line in installed.requires or () if "extra ==" not in line]
    return found


def alone(folder: Path, site: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in `folder` with nothing but the standard library and `site`."""
    keep = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH")}
    return subprocess.run(
        [sys.executable, "-S", "-s", *arguments],
        cwd=folder,
        env={**keep, **variables, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module", params=RUNTIMES)
def shipped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Any]:
    """A bundle of the text model, a site folder with just its requirements, and the study."""
    name = request.param
    base = tmp_path_factory.mktemp(name)
    recipe = Recipe(
        runtime={"name": name, "precision": "fp32", "threads": 1, "streams": 2},
        runner={"form": "bucket", "buckets": [4, 8], "batch": 3, "sort": True, "static": True},
    )
    made = case.study(base, "text", recipe=recipe)
    out = bundle.write(made, case.chosen(made), case.variant(made), base / "b", outputs=case.reference(made, base))
    site = base / "site"
    site.mkdir()
    for path in packages(out / "requirements.txt"):
        (site / path.name).symlink_to(path)
    return out, site, made


def test_it_runs_from_the_command_line_where_hasten_is_not_installed(
    shipped: tuple[Path, Path, Any], tmp_path: Path
) -> None:
    out, site, made = shipped
    assert "No module named 'hasten'" in alone(out, site, "-c", "import hasten").stderr
    samples = case.texts()
    np.savez(
        tmp_path / "in.npz", **{f"{name}[{i}]": a for i, sample in enumerate(samples) for name, a in sample.items()}
    )
    ran = alone(tmp_path, site, str(out / "run.py"), "in.npz", "out.npz")
    assert (ran.returncode, ran.stderr) == (0, "")
    with np.load(tmp_path / "out.npz") as found:
        for i, expected in enumerate(case.run_here(made)):
            np.testing.assert_allclose(found["pooled"][i], expected["pooled"], rtol=1e-5)
            np.testing.assert_allclose(found[f"states[{i}]"], expected["states"], rtol=1e-5)


def test_arrays_that_are_no_inputs_such_as_labels_are_ignored_with_a_note(
    shipped: tuple[Path, Path, Any], tmp_path: Path
) -> None:
    out, site, _ = shipped
    ids = np.ones((3, 5), np.int64)
    np.savez(tmp_path / "in.npz", ids=ids, mask=ids, label=np.arange(3))
    ran = alone(tmp_path, site, str(out / "run.py"), "in.npz", "out.npz")
    assert (ran.returncode, ran.stderr) == (0, "ignored, as the model has no such input: label\n")
    with np.load(tmp_path / "out.npz") as found:
        assert found["pooled"].shape == (3, 4)


def test_it_runs_as_a_module_where_hasten_is_not_installed(shipped: tuple[Path, Path, Any]) -> None:
    out, site, _ = shipped
    code = (
        "import sys, numpy; from run import Model\n"
        "with Model() as model:\n"
        "    print(model({'ids': numpy.ones((2, 5), int), 'mask': numpy.ones((2, 5), int)})['pooled'].shape)\n"
        "print([name for name in sys.modules if name.startswith('hasten')])"
    )
    ran = alone(out, site, "-c", code)
    assert ran.stdout.splitlines() == ["(2, 4)", "[]"], ran.stderr


def test_it_says_what_is_wrong_without_a_traceback(shipped: tuple[Path, Path, Any], tmp_path: Path) -> None:
    out, site, _ = shipped
    copy = shutil.copytree(out, tmp_path / "copy")
    np.savez(tmp_path / "in.npz", words=np.ones((2, 5)))
    (tmp_path / "text.npz").write_text("not a zip")
    for name, code, message in (
        ("in.npz", 2, "give ids, mask"),
        ("text.npz", 2, "not a .npz"),
        ("no.npz", 1, "No such"),
    ):
        ran = alone(tmp_path, site, str(copy / "run.py"), name, "out.npz")
        assert ran.returncode == code
        assert message in ran.stderr
        assert "Traceback" not in ran.stderr
    (copy / "recipe.toml").write_text("changed")
    ran = alone(tmp_path, site, str(copy / "run.py"), "in.npz", "out.npz")
    assert ran.returncode == 2
    assert "recipe.toml was changed" in ran.stderr
    empty = tmp_path / "site"
    empty.mkdir()
    for path in packages(out / "requirements.txt"):
        if path.name.startswith("numpy"):
            (empty / path.name).symlink_to(path)
    ran = alone(tmp_path, empty, str(out / "run.py"), "in.npz", "out.npz")
    assert ran.returncode == 2
    assert re.search(r"Run: pip install (onnxruntime|openvino)==[0-9.]+", ran.stderr)


def import_run(folder: Path) -> ModuleType:
    name = f"run_{folder.parent.name.replace('-', '_')}"
    spec = importlib.util.spec_from_file_location(name, folder / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


recipes = st.builds(
    lambda runner, streams, cache: (runner, streams, cache),
    st.one_of(
        st.fixed_dictionaries({"batch": st.integers(1, 5)}, optional={"sort": st.booleans(), "static": st.booleans()}),
        st.fixed_dictionaries(
            {
                "form": st.just("bucket"),
                "buckets": st.lists(st.integers(1, 14), min_size=1, max_size=3, unique=True),
                "batch": st.integers(1, 5),
            },
            optional={"sort": st.booleans(), "static": st.booleans(), "batch_tokens": st.integers(1, 40)},
        ),
    ),
    st.integers(1, 2),
    st.sampled_from(
        [{}, {"kind": "identity", "entries": 4}, {"kind": "semantic", "entries": 3, "distance": 0.3}],
    ),
)


@given(recipe=recipes, count=st.integers(1, 14), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_it_gives_what_the_runner_gives_under_any_recipe(
    shipped: tuple[Path, Path, Any], recipe: tuple[dict[str, Any], int, dict[str, Any]], count: int, seed: int
) -> None:
    out, _, made = shipped
    runner, streams, cache = recipe
    name = case.chosen(made).recipe.runtime["name"]
    if name == "openvino":
        runner = {**runner, "static": False} if seed % 3 else runner  # each shape compiles for long
    whole = Recipe(
        runtime={"name": name, "precision": "fp32", "threads": 1, "streams": streams}, runner=runner, cache=cache
    )
    samples = case.texts(count, seed)
    folder = out.with_name("edited")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(out, folder)
    manifest = json.loads((folder / "bundle.json").read_text())
    (folder / "bundle.json").write_text(json.dumps({**manifest, "recipe": whole.to_json()}))
    with import_run(folder).Model() as model:
        found = model.run(samples)
    with case.open_here(made, whole) as ours:
        expected = ours.run(samples)
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])


def test_the_fallback_runs_where_the_runtime_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle on OpenVINO, the fallback on ONNX Runtime, and a site that has just that."""
    made = case.study(tmp_path, recipe=Recipe(runtime={"name": "openvino", "precision": "fp32"}, runner={"batch": 4}))
    second = fallback(made)
    assert second is not None
    assert second.recipe.runtime["name"] == "onnxruntime"
    out = bundle.write(
        made, case.chosen(made), case.variant(made), tmp_path / "b", fallback=(second, case.variant(made)), pack=False
    )
    site = tmp_path / "site"
    site.mkdir()
    for path in packages(out / "fallback" / "requirements.txt"):
        (site / path.name).symlink_to(path)
    image = np.stack([sample["image"] for sample in case.images()])
    np.savez(tmp_path / "in.npz", image=image)
    ran = alone(tmp_path, site, str(out / "run.py"), "in.npz", "out.npz")
    assert ran.returncode == 0, ran.stderr
    assert "the fallback of this bundle runs instead" in ran.stderr
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_allclose(
            found["logits"], np.stack([row["logits"] for row in case.run_here(made)]), rtol=1e-5, atol=1e-6
        )
    with bundle.load(out) as loaded:
        assert loaded.recipe.runtime["name"] == "openvino"
    monkeypatch.setattr(OpenVino, "availability", lambda self: Availability(False, "not here"))
    with pytest.warns(UserWarning, match="fallback"):
        loaded = bundle.load(out)
    with loaded:
        assert loaded.recipe.runtime["name"] == "onnxruntime"
        assert loaded({"image": image})["logits"].shape == (9, 5)
    with pytest.warns(UserWarning, match="fallback"):
        assert bundle.read(out).recipe.runtime["name"] == "onnxruntime"


@pytest.mark.skipif(find_spec("iree") is None, reason="iree-base-compiler and iree-base-runtime are not installed")
def test_a_bundle_on_iree_compiles_the_model_where_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = case.study(tmp_path, "text", recipe=Recipe(runtime={"name": "iree", "threads": 1}))
    out = bundle.write(
        made, case.chosen(made), case.variant(made), tmp_path / "b", outputs=case.reference(made, tmp_path)
    )
    pinned = (out / "requirements.txt").read_text()
    assert all(f"{name}==" in pinned for name in ("iree-base-compiler", "iree-base-runtime", "onnx"))
    site = tmp_path / "site"
    site.mkdir()
    for path in packages(out / "requirements.txt"):
        (site / path.name).symlink_to(path)
    samples = case.texts()
    np.savez(
        tmp_path / "in.npz", **{f"{name}[{i}]": a for i, sample in enumerate(samples) for name, a in sample.items()}
    )
    ran = alone(tmp_path, site, str(out / "run.py"), "in.npz", "out.npz", XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert (ran.returncode, ran.stderr) == (0, "")
    with np.load(tmp_path / "out.npz") as found:
        for i, expected in enumerate(case.run_here(made)):
            np.testing.assert_allclose(found["pooled"][i], expected["pooled"], rtol=1e-5)
    assert len(list((tmp_path / "cache" / "hasten" / "iree").glob("*.vmfb"))) == 1
    next(site.glob("iree_base_compiler*.dist-info")).unlink()
    ran = alone(tmp_path, site, str(out / "run.py"), "in.npz", "out.npz")
    assert ran.returncode == 2
    assert re.search(r"pip install iree-base-runtime==\S+ iree-base-compiler==\S+ onnx==", ran.stderr)
