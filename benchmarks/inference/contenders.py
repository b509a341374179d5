"""Makes and tunes today's tools for one model and shape: each is a contender that can be raced, or the reason why not.

All are judged by the study's own metric on the study's own verification samples, and may lose as much as hasten may.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.common import Run
from benchmarks.inference import environments
from benchmarks.inference.environments import Tool
from benchmarks.inference.hands import settings
from benchmarks.inference.optimised import Optimised
from benchmarks.inference.peers import INT8, PEERS
from benchmarks.racing import Subject, subject
from hasten import formats
from hasten.device import Device
from hasten.errors import Failed, HastenError
from hasten.goal import Drop
from hasten.isolate import Limits, Worker
from hasten.isolate import run as in_worker
from hasten.recipe import Recipe, Step
from hasten.study import Study
from hasten.variant import Variant

BOX_S = 180.0
"""One peer may take this long to be made, and as long again to be tuned."""
ALLOWED_S = {1: 170.0, 32: 130.0}
"""All peers of a shape together: none is begun after that. What a tool made for the first shape serves the second."""
MORE_S = 60.0
"""A model that came as a Hugging Face folder has two peers more."""
JUDGED = 400
NO_TIME = "not tried: the time for the peers of this shape was over"
PLAIN_INT8 = {"scheme": "mixed"}
EXACT = Recipe((), {"name": "onnxruntime"}, {"batch": 1})
ON_ONNXRUNTIME = Recipe((), {"name": "onnxruntime"})


@dataclass(frozen=True)
class Scene:
    """One model at one shape: `hand` samples go through together; `folder` is for whatever is made.

    `source` is the Hugging Face folder that the model was exported from, where it was.
    """

    run: Run
    model: str
    hand: int
    found: Optimised
    device: Device
    folder: Path
    transformer: bool = False
    factory: str | None = None
    source: str | None = None

    @property
    def indices(self) -> list[int]:
        """The samples of a round."""
        return self._verification[: 32 if self.hand > 1 else 24]

    @property
    def judged(self) -> list[int]:
        return self._verification[: self.run.pick(JUDGED, 64)]

    @property
    def _verification(self) -> list[int]:
        study = self.found.study
        return list(study.workload.split(study.seed).verification)

    @property
    def cores(self) -> int:
        return max(1, len(self.device.cpus))

    def reference(self) -> Path:
        """Outputs of the model as brought on the judged samples."""
        path = self.folder / "fp32.npz"
        if not path.is_file():
            brought = Variant({"main": self.found.study.workload.model})
            _tuned(self, brought, [EXACT], path)
        return path

    def judgement(self, outputs: Path) -> dict[str, Any]:
        workload = self.found.study.workload
        payload = {
            "metric": workload.metric,
            "baseline": str(self.reference()),
            "variant": str(outputs),
            "samples": str(workload.samples.path) if workload.samples.labels else None,
            "indices": self.judged,
            "output": workload.output or workload.model.signature.outputs[0].name,
            "max_drop": self.found.max_drop,
        }
        found: dict[str, Any] = in_worker("hasten.measure.quality:evaluate", payload)
        return found


@dataclass(frozen=True)
class Contender:
    """`per_second` is its speed when it was tuned, in a process of its own, and `reason` why it takes no part."""

    name: str
    settings: str = ""
    subject: Subject | None = None
    per_second: float | None = None
    judgement: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    commands: tuple[str, ...] = ()
    reason: str = ""

    @property
    def status(self) -> str:
        if self.subject is None:
            return "failed"
        return "left out" if self.reason else "ran"

    def row(self, scene: Scene, shape: str, eager: float | None, raced: float | None) -> dict[str, Any]:
        """A line of the table; `eager` is the rate of eager when tuned, `raced` the speed-up over it in the race."""
        tuned = self.per_second / eager if self.per_second and eager else None
        return {
            "model": scene.model,
            "shape": shape,
            "peer": self.name,
            "status": self.status,
            "settings": self.settings,
            "speedup": raced or tuned,
            "raced": raced is not None,
            "quality": self.judgement.get("value"),
            "metric": self.judgement.get("metric"),
            "drop": self.judgement.get("drop"),
            "drop_unit": self.judgement.get("drop_unit"),
            "seconds": round(self.seconds, 1),
            "commands": list(self.commands),
            "reason": self.reason,
        }


def contenders(scene: Scene) -> list[Contender]:
    """Every peer, those that failed with their reason; the quickest first. Installations do not count as their time."""
    tries: list[tuple[str, tuple[str, ...], Callable[[], Contender]]] = []
    for name, recipe in in_process(scene.transformer).items():
        tries.append((name, (_installed(name),), lambda name=name, recipe=recipe: _built(scene, name, recipe)))  # type: ignore[misc]
    if scene.factory is not None:
        for way in ("bf16", "compile", "compile bf16"):
            name = f"PyTorch {way if way != 'bf16' else 'eager bf16'}"
            tries.append((name, ("pip install torch==2.13.0",), lambda name=name, way=way: torch(scene, name, way)))  # type: ignore[misc]
    if not scene.run.quick:
        prepare_tools(scene)
        name = "NNCF INT8 with accuracy control"
        tries.append((name, (_installed(name),), lambda: _controlled(scene)))
        for tool in _tools(scene):
            tries.append((tool.name, (*tool.setup, " ".join(tool.command)), lambda tool=tool: _made(scene, tool)))  # type: ignore[misc]
        if scene.factory is not None:
            tool = environments.TORCHAO
            tries.append((tool.name, tool.setup, lambda: _torchao(scene)))
    until = time.monotonic() + ALLOWED_S[scene.hand] + (MORE_S if scene.source is not None else 0.0)
    found = [
        attempt(scene, *each) if time.monotonic() < until else Contender(each[0], commands=each[1], reason=NO_TIME)
        for each in tries
    ]
    return sorted(found, key=lambda each: -(each.per_second or 0.0))


def prepare_tools(scene: Scene) -> None:
    """Install what is not yet there; what cannot be installed says so again when it is its turn."""
    for tool in (*_tools(scene), environments.TORCHAO):
        try:
            seconds = environments.installed(tool)
        except HastenError as error:
            scene.run.say(f"  {tool.name}: {error.cause}")
        else:
            scene.run.say(f"  {tool.name}: installed, which takes {seconds:.0f} s")


def _tools(scene: Scene) -> tuple[Tool, ...]:
    return environments.TOOLS + (environments.OPTIMUM_INTEL if scene.source is not None else ())


def in_process(transformer: bool) -> dict[str, Recipe]:
    """The tools that hasten builds with itself, each with its own defaults."""
    named = {**PEERS, "ONNX Runtime static INT8 (QDQ)": Recipe((Step("int8", INT8),), {"name": "onnxruntime"})}
    if transformer:
        return named
    plain = {
        name: replace(recipe, steps=tuple(Step("int8", PLAIN_INT8) if s.lever == "int8" else s for s in recipe.steps))
        for name, recipe in named.items()
    }
    return {name: recipe for name, recipe in plain.items() if "fusions" not in name}


def attempt(scene: Scene, name: str, commands: Sequence[str], make: Callable[[], Contender]) -> Contender:
    """What `make` gives with the time that it took, or why there is nothing."""
    start = time.monotonic()
    try:
        found = make()
    except HastenError as error:
        found = Contender(name, reason=error.cause.rpartition(" failed in its worker: ")[2])
    except Exception as error:  # one broken tool must not take the others down
        found = Contender(name, reason=f"{type(error).__name__}: {error}")
    seconds = found.seconds + time.monotonic() - start
    limit = Drop.parse(scene.found.max_drop).amount
    drop = found.judgement.get("drop")
    reason = found.reason
    if drop is not None and drop > limit:
        reason = f"{found.judgement['metric']} falls by {drop:.3g} {found.judgement['drop_unit']}"
    found = replace(found, seconds=seconds, commands=tuple(commands), reason=" ".join(reason.split())[:300])
    rate = "" if found.per_second is None else f"{found.per_second:.1f}/s "
    scene.run.say(f"  {name}: {rate}{found.settings} {found.status} {found.reason} ({seconds:.0f} s)")
    return found


def tuned(scene: Scene, name: str, variant: Variant, recipes: Sequence[Recipe]) -> Contender:
    """The variant at the best of these recipes, judged."""
    outputs = scene.folder / f"{slug(name)}.npz"
    answer = _tuned(scene, variant, recipes, outputs)
    recipe = recipes[answer["chosen"]]
    rate = float(answer["per_second"])
    one = subject(name, variant, recipe, scene.found.study.workload, scene.indices)
    raced = replace(one, repeat=repeats(rate, len(scene.indices)))
    return Contender(name, recipe.describe(), raced, rate, scene.judgement(outputs))


def slug(name: str) -> str:
    """The name as a file's.

    >>> slug("NNCF INT8 + bf16")
    'nncf-int8-bf16'
    """
    return "-".join(re.findall(r"[a-z0-9]+", name.lower()))


def repeats(per_second: float, count: int, round_s: float = 0.3) -> int:
    """How often a scene of `count` samples must run for a round to take about `round_s`.

    >>> repeats(1000.0, 30), repeats(10.0, 30)
    (10, 1)
    """
    return max(1, round(round_s * per_second / count))


def torch(scene: Scene, name: str, way: str, path: str | None = None) -> Contender:
    """The module in this way of running it, with as many threads as serve it best."""
    workload = scene.found.study.workload
    base = {
        "factory": scene.factory,
        "way": way,
        "samples": str(workload.samples.path),
        "indices": scene.indices,
        "hand": scene.hand,
        "inputs": [tensor.name for tensor in workload.model.signature.inputs],
        "output": workload.output or workload.model.signature.outputs[0].name,
        "path": path,
    }
    threads = [scene.cores] if scene.hand > 1 or "compile" in way or path else list({1, scene.cores})
    outputs = scene.folder / f"{slug(name)}.npz"
    tries: list[tuple[float, dict[str, Any]]] = []
    for count in threads:
        payload = {**base, "threads": count}
        with Worker(Limits(cpus=scene.device.cpus or None)) as worker:
            answer = worker.call("benchmarks.inference.modules:open", payload, BOX_S)
            tries.append((answer["per_second"], payload))
            if count == threads[-1]:
                call = {"indices": scene.judged, "path": str(outputs)}
                worker.call("benchmarks.inference.modules:outputs", call, BOX_S)
    rate, payload = max(tries, key=lambda each: each[0])
    raced = Subject(name, payload, "benchmarks.inference.modules", repeats(rate, len(scene.indices)))
    return Contender(name, f"{payload['threads']} threads", raced, rate, scene.judgement(outputs))


def _tuned(
    scene: Scene, variant: Variant, recipes: Sequence[Recipe], into: Path, judged: Sequence[int] | None = None
) -> dict[str, Any]:
    whole = subject("", variant, recipes[0], scene.found.study.workload).payload
    kept = {name: whole[name] for name in ("variant", "signature", "padding", "samples", "scenario")}
    payload = {
        **kept,
        "recipes": [recipe.to_json() for recipe in recipes],
        "scene": scene.indices,
        "judged": list(judged or scene.judged),
        "into": str(into),
    }
    with Worker(Limits(cpus=scene.device.cpus or None)) as worker:
        answer: dict[str, Any] = worker.call("benchmarks.inference.hands:tune", payload, BOX_S)
        return answer


def _built(scene: Scene, name: str, recipe: Recipe) -> Contender:
    return tuned(scene, name, scene.found.build(recipe), list(settings(recipe, scene.hand, scene.cores)))


def _kept(scene: Scene, name: str, make: Callable[[Path], tuple[Path, float]]) -> tuple[Path, float]:
    """What a tool made of this model, or why it did not: asked for once, as it serves both shapes."""
    key = f"{scene.model} {name}"
    if key not in scene.run.shared:
        folder = scene.folder.parent / f"{scene.model}-{slug(name)}"
        try:
            scene.run.shared[key] = make(folder)
        except HastenError as error:
            scene.run.shared[key] = error
    found = scene.run.shared[key]
    if isinstance(found, HastenError):
        raise Failed(found.cause)
    path, seconds = found
    return path, seconds


def _made(scene: Scene, tool: Tool) -> Contender:
    def make(folder: Path) -> tuple[Path, float]:
        done = made_by(tool, scene.found.study, folder, scene.source or "")
        return done.path, done.setup_s

    path, setup_s = _kept(scene, tool.name, make)
    variant = Variant({"main": formats.load(path)})
    recipes = on_openvino(scene) if path.suffix == ".xml" else settings(ON_ONNXRUNTIME, scene.hand, scene.cores)
    return replace(tuned(scene, tool.name, variant, list(recipes)), seconds=setup_s)


def made_by(tool: Tool, study: Study, folder: Path, source: str) -> environments.Made:
    """What the tool makes of the study's model, with its calibration samples. Raises `Failed` with the reason."""
    samples, workload = folder.with_suffix(".npz"), study.workload
    call = {
        "samples": str(workload.samples.path),
        "indices": list(workload.split(study.seed).calibration)[:100],
        "names": [tensor.name for tensor in workload.model.signature.inputs],
        "into": str(samples),
    }
    in_worker("benchmarks.inference.contenders:stack", call)
    output = workload.output or workload.model.signature.outputs[0].name
    return environments.made(tool, workload.model.path, samples, folder, source=source, output=output)


def on_openvino(scene: Scene) -> list[Recipe]:
    """Every setting of a file for OpenVINO, in both precisions."""
    return [
        each
        for precision in ("fp32", "bf16")
        for each in settings(Recipe((), {"name": "openvino", "precision": precision}), scene.hand, scene.cores)
    ]


def stack(payload: dict[str, Any], scope: Any) -> None:
    """Worker function: samples as one array for each input, for tools that know nothing of hasten.

    Those of different sizes are padded with zeros, which texts take.
    """
    import numpy as np

    from hasten.data import SampleSet

    samples = SampleSet.open(Path(payload["samples"]))
    rows = [samples[i] for i in payload["indices"]]

    def stacked(arrays: list[Any]) -> Any:
        largest = np.max([array.shape for array in arrays], axis=0)
        room = [[(0, most - size) for most, size in zip(largest, array.shape, strict=True)] for array in arrays]
        return np.stack([np.pad(array, pads) if pads else array for array, pads in zip(arrays, room, strict=True)])

    np.savez(payload["into"], **{name: stacked([row[name] for row in rows]) for name in payload["names"]})


def _controlled(scene: Scene) -> Contender:
    name = "NNCF INT8 with accuracy control"

    def make(folder: Path) -> tuple[Path, float]:
        study = scene.found.study
        workload = study.workload
        split = workload.split(study.seed)
        outputs = folder.with_suffix(".npz")
        selection = list(split.selection)[:150]
        _tuned(scene, Variant({"main": workload.model}), [EXACT], outputs, selection)
        payload = {
            "model": workload.model.to_json(),
            "samples": str(workload.samples.path),
            "metric": workload.metric,
            "calibration": list(split.calibration)[:100],
            "selection": selection,
            "baseline": str(outputs),
            "name": workload.output or workload.model.signature.outputs[0].name,
            "max_drop": Drop.parse(scene.found.max_drop).amount / 100,
            "transformer": scene.transformer,
            "into": str(folder),
        }
        done = in_worker("benchmarks.inference.controlled:quantise", payload, Limits(seconds=BOX_S))
        return Path(done), 0.0

    path, _ = _kept(scene, name, make)
    variant = Variant({"main": formats.load(path)})
    return tuned(scene, name, variant, on_openvino(scene))


def _torchao(scene: Scene) -> Contender:
    tool = environments.TORCHAO
    setup_s = environments.installed(tool)
    found = torch(scene, tool.name, "torchao int8", str(tool.folder / "beside"))
    return replace(found, seconds=setup_s)


def _installed(name: str) -> str:
    if name.startswith("ONNX Runtime"):
        return "pip install onnxruntime==1.32.0"
    if "NNCF" in name:
        return "pip install openvino==2026.4.1 nncf==3.4.0"
    return "pip install openvino==2026.4.1"
