"""Built variants: the same recipe gives the same files, nothing is built twice, and the folder keeps its size."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search_case import study

from hasten.errors import Failed, InvalidInput
from hasten.levers import Case
from hasten.model import Model
from hasten.recipe import Recipe, Step
from hasten.search import build
from hasten.search.build import Builder
from hasten.search.optimize import Plan
from hasten.variant import Variant


@pytest.fixture
def built(monkeypatch):
    """The names of the steps that were really applied; a step called "bad" fails, "same" leaves the model as it is."""
    applied: list[str] = []

    def run(target, payload, limits, on_progress=None):
        assert target == "hasten.search.build:apply"
        case, step = Case.from_json(payload["case"]), Step.from_json(payload["step"])
        applied.append(step.lever)
        variant = Variant.from_json(payload["variant"])
        path = case.workdir / "model.onnx"
        path.write_bytes(b"x" * int(step.options.get("size", 10)))
        if step.lever == "bad":
            raise Failed("it cannot be done")
        if step.lever == "stopped":
            raise KeyboardInterrupt
        if step.lever == "same":
            path.unlink()
            return variant.to_json()
        return variant.with_part("main", replace(variant.main, path=path)).to_json()

    monkeypatch.setattr(build, "run", run)
    return applied


def builder(folder: Path, *, seed: int = 0, versions: dict[str, str] | None = None, limit: int = 10**9) -> Builder:
    subject = study(seed=seed)
    source = folder.parent / "source.onnx"
    source.write_bytes(b"the model as brought")
    workload = replace(subject.workload, model=replace(subject.workload.model, path=source))
    case = Case(workload, subject.goal, subject.device, Recipe(), folder, workload.split(), seed=seed)
    return Builder(case, folder, versions or {"python": "3"}, limit_bytes=limit)


def recipe(*steps: str, **runtime: object) -> Recipe:
    return Recipe(tuple(Step(name) for name in steps), {"name": "plain", **runtime})


def test_nothing_is_built_twice_whatever_the_settings(tmp_path, built):
    make = builder(tmp_path / "variants")
    first = make(recipe("fuse", "int8"))
    assert make(recipe("fuse", "int8", streams=2).edit("runner", batch=4)) == first
    assert builder(tmp_path / "variants")(recipe("fuse", "int8", precision="bf16")) == first
    assert built == ["fuse", "int8"]
    assert first.main.path.exists()


def test_recipes_share_what_they_begin_with(tmp_path, built):
    make = builder(tmp_path / "variants")
    make(recipe("fuse", "int8"))
    make(recipe("fuse", "layout"))
    make(recipe("int8"))
    assert built == ["fuse", "int8", "layout", "int8"]


def test_a_recipe_without_steps_is_the_model_as_brought_and_touches_no_disk(tmp_path, built):
    make = builder(tmp_path / "variants")
    assert make(recipe()).main.path.name == "source.onnx"
    assert not (tmp_path / "variants").exists()


@pytest.mark.parametrize(
    "other",
    [
        lambda folder: builder(folder)(recipe("fuse").edit("runtime", name="quick")),
        lambda folder: builder(folder, seed=1)(recipe("fuse")),
        lambda folder: builder(folder, versions={"python": "4"})(recipe("fuse")),
        lambda folder: builder(folder)(Recipe((Step("fuse", {"deep": True}),), {"name": "plain"})),
    ],
    ids=["runtime", "seed", "versions", "options"],
)
def test_another_runtime_seed_version_or_option_is_another_variant(tmp_path, built, other):
    first = builder(tmp_path / "variants")(recipe("fuse"))
    assert other(tmp_path / "variants").main.path != first.main.path
    assert built == ["fuse", "fuse"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.sampled_from(["fuse", "int8", "same", "layout"]), max_size=3), max_size=8))
def test_any_order_of_any_recipes_builds_each_prefix_once(tmp_path_factory, monkeypatch, built, asked):
    built.clear()
    make = builder(tmp_path_factory.mktemp("case") / "variants")
    found: dict[tuple[str, ...], Variant] = {}
    for names in asked:
        variant = make(recipe(*names))
        assert found.setdefault(tuple(names), variant) == variant
        assert variant.main.path.exists()
    prefixes = {tuple(names[:count]) for names in asked for count in range(1, len(names) + 1)}
    assert len(built) == len(prefixes)


def test_a_failed_build_is_remembered_within_the_study_and_tried_again_by_the_next(tmp_path, built):
    make = builder(tmp_path / "variants")
    for _ in range(2):
        with pytest.raises(Failed, match="it cannot be done"):
            make(recipe("bad", "int8"))
    assert built == ["bad"]
    with pytest.raises(Failed, match="it cannot be done"):
        builder(tmp_path / "variants")(recipe("bad"))
    assert built == ["bad", "bad"]


@pytest.mark.parametrize(("step", "error"), [("bad", Failed), ("stopped", KeyboardInterrupt)])
def test_a_build_that_did_not_finish_leaves_nothing_behind(tmp_path, built, step, error):
    with pytest.raises(error):
        builder(tmp_path / "variants")(recipe(step))
    assert not [path for path in (tmp_path / "variants").iterdir() if not path.name.startswith("index.db")]


def test_what_a_killed_build_left_is_built_again(tmp_path, built):
    make = builder(tmp_path / "variants")
    path = make(recipe("fuse")).main.path
    (path.parent / "variant.json").unlink()
    assert builder(tmp_path / "variants")(recipe("fuse")).main.path == path
    assert built == ["fuse", "fuse"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"parts": 3}'])
def test_a_damaged_description_is_built_again(tmp_path, built, text):
    path = builder(tmp_path / "variants")(recipe("fuse")).main.path
    (path.parent / "variant.json").write_text(text)
    assert builder(tmp_path / "variants")(recipe("fuse")).main.path == path
    assert built == ["fuse", "fuse"]


def test_a_variant_that_lies_in_an_earlier_steps_folder_outlives_its_eviction(tmp_path, built):
    make = builder(tmp_path / "variants")
    variant = make(recipe("fuse", "same"))
    assert variant.main.path.parent.name == make.key(recipe("fuse"))
    for path in (tmp_path / "variants" / make.key(recipe("fuse"))).iterdir():
        path.unlink()
    again = builder(tmp_path / "variants")(recipe("fuse", "same"))
    assert again == variant
    assert again.main.path.exists()
    assert built == ["fuse", "same", "fuse"]


def test_variants_of_this_study_are_kept_and_the_oldest_others_go(tmp_path, built):
    def big(name: str) -> Recipe:
        return Recipe((Step(name, {"size": 1000}),), {"name": "plain"})

    old = builder(tmp_path / "variants", limit=10**9)
    old(big("old"))
    hours_ago(old, 3)
    middle = builder(tmp_path / "variants", limit=10**9)
    middle(big("middle"))
    hours_ago(middle, 2, keep=old.key(big("old")))
    now = builder(tmp_path / "variants", limit=6000)
    kept = [now(big(f"new{number}")) for number in range(2)]
    now.tidy()
    left = {path.name for path in (tmp_path / "variants").iterdir() if path.is_dir()}
    assert {variant.main.path.parent.name for variant in kept} <= left
    assert old.key(big("old")) not in left
    assert middle.key(big("middle")) in left
    assert now.cache.size_bytes <= 6000


def hours_ago(made: Builder, hours: float, keep: str = "") -> None:
    """Pretend that all that is in the cache, but `keep`, was used that long ago."""
    with made.cache._database.transaction() as run:
        run(
            "UPDATE hasten_variants SET last_used = :then WHERE key <> :keep",
            then=time.time() - hours * 3600,
            keep=keep,
        )


def test_tidying_forgets_abandoned_folders_and_learns_of_unknown_ones(tmp_path, built):
    folder = tmp_path / "variants"
    make = builder(folder)
    make(recipe("fuse"))
    for name, age_s in (("abandoned", 2 * 86400), ("going on", 10)):
        (folder / name).mkdir()
        (folder / name / "model.onnx").write_bytes(b"half")
        os.utime(folder / name, (time.time() - age_s,) * 2)
    for path in folder.glob("index.db*"):
        path.unlink()
    fresh = builder(folder)
    fresh.tidy()
    assert not (folder / "abandoned").exists()
    assert (folder / "going on").exists()
    assert fresh.cache.keys() == {make.key(recipe("fuse"))}


def test_two_builders_at_once_build_once(tmp_path, built, monkeypatch):
    inside, go_on = threading.Event(), threading.Event()
    apply = build.run

    def slow(*arguments, **options):
        inside.set()
        assert go_on.wait(120)
        return apply(*arguments, **options)

    monkeypatch.setattr(build, "run", slow)
    found: list[Variant] = []
    threads = [
        threading.Thread(target=lambda: found.append(builder(tmp_path / "variants")(recipe("fuse")))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    assert inside.wait(120)
    go_on.set()
    for thread in threads:
        thread.join(120)
    assert built == ["fuse"]
    assert found[0] == found[1] == found[2]
    assert not list((tmp_path / "variants").glob("*.lock"))


def test_a_folder_that_cannot_be_written_is_a_readable_failure(tmp_path, built):
    (tmp_path / "variants").write_text("a file in its place")
    with pytest.raises(Failed, match="a variant cannot be written to") as caught:
        builder(tmp_path / "variants")(recipe("fuse"))
    assert "XDG_CACHE_HOME" in caught.value.fix


def test_a_limit_that_cannot_be_read_is_refused_before_anything_runs(monkeypatch, tmp_path):
    monkeypatch.setenv("HASTEN_CACHE_LIMIT", "plenty")
    with pytest.raises(InvalidInput, match="HASTEN_CACHE_LIMIT: cannot read the size 'plenty'"):
        Builder(Case(**{**_fields(), "workdir": tmp_path}), tmp_path, {})
    monkeypatch.setenv("HASTEN_CACHE_LIMIT", "1.5GB")
    made = Builder(Case(**{**_fields(), "workdir": tmp_path}), tmp_path, {})
    assert made.limit_bytes == 1_500_000_000
    monkeypatch.setenv("HASTEN_STORE_LIMIT", "-3")
    with pytest.raises(InvalidInput, match="HASTEN_STORE_LIMIT"):
        Plan(study(), made.case, {}, Recipe(), made)


def _fields() -> dict[str, object]:
    subject = study()
    return {
        "workload": subject.workload,
        "goal": subject.goal,
        "device": subject.device,
        "recipe": Recipe(),
        "split": subject.workload.split(),
    }


def test_a_real_step_is_applied_in_a_worker_and_checked(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["middle"]), helper.make_node("Relu", ["middle"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    from hasten import formats

    made = builder(tmp_path / "variants")
    workload = replace(made.case.workload, model=formats.inspect(path))
    made = replace(made, case=replace(made.case, workload=workload))
    step = Recipe((Step("fuse"),), {"name": "onnxruntime"})
    variant = made(step)
    assert isinstance(variant.main, Model)
    assert variant.main.path.is_relative_to(tmp_path / "variants" / made.key(step))
    assert asdict(variant.main.signature) == asdict(workload.model.signature)
    assert not list(here.iterdir()), "toolchains leave their scratch files elsewhere"
    with pytest.raises(InvalidInput, match="batch"):
        made(Recipe((Step("batch"),), {"name": "onnxruntime"}))
    assert not (tmp_path / "variants" / made.key(Recipe((Step("batch"),), {"name": "onnxruntime"}))).exists()
