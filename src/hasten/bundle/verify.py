"""Runs a bundle in a fresh process, through its own `run.py`, and compares its outputs with those of the trial."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.bundle.manifest import inside, read_manifest
from hasten.bundle.pack import unpack
from hasten.bundle.program import module_at
from hasten.errors import Failed, InvalidInput
from hasten.model import Signature
from hasten.recipe import Recipe
from hasten.variant import Variant
from hasten.workload import Padding, Samples

if TYPE_CHECKING:
    import numpy as np

    from hasten.isolate import Limits, Scope

EXACT, REDUCED = 1e-3, 2e-2
"""Allowed relative difference (norm of the difference over the norm) at fp32, and for variants that compute in less.

The same recipe gives other last bits where samples are batched in other company; a wrong file or setting gives more.
"""
MOST_SAMPLES, MOST_CLIPS = 256, 32
"""Clips of speech take as long as a hundred samples of most models."""
LEAST_AGREEMENT = 0.98
"""Allowed for outputs that are classes or text, where a tie may fall either way."""


@dataclass(frozen=True)
class Source:
    """What a bundle was made from, to be run by hasten's own runner where the trial's outputs are not at hand."""

    variant: Variant
    recipe: Recipe
    signature: Signature
    padding: Padding | None

    def to_json(self) -> dict[str, Any]:
        return {
            "variant": self.variant.to_json(),
            "recipe": self.recipe.to_json(),
            "signature": asdict(self.signature),
            "padding": None if self.padding is None else self.padding.to_json(),
        }


def verify(
    path: Path,
    reference_outputs: Path | Source,
    samples: Samples,
    *,
    indices: Sequence[int] | None = None,
    tolerance: float | None = None,
    limits: Limits | None = None,
) -> float:
    """The largest relative difference between the bundle's outputs and `reference_outputs`.

    The first 256 samples are compared, of clips of speech the first 32.

    `reference_outputs` is a file of `measure.outputs` for `samples` at `indices` (all by default), in that order, or
    what to run to get them. Raises `Failed` where an output differs by more than `tolerance`, is missing, or is not
    finite where it was.
    """
    from hasten.isolate import Limits, run

    if not samples.path.exists():
        raise InvalidInput(
            f"the samples of the study are gone from {samples.path}, and a bundle is not shipped unchecked",
            "run hasten optimize again: it reads them anew and repeats no trial",
        )
    with tempfile.TemporaryDirectory(prefix="hasten-verify-") as temporary:
        folder = path
        if path.is_file():
            folder = Path(temporary)
            unpack(path, folder)
        payload = {
            "bundle": str(folder),
            "outputs": None if isinstance(reference_outputs, Source) else str(reference_outputs),
            "source": reference_outputs.to_json() if isinstance(reference_outputs, Source) else None,
            "samples": str(samples.path),
            "indices": None if indices is None else [int(index) for index in indices],
        }
        found = run(f"{__name__}:replay", payload, limits or Limits(seconds=600))
        recipe = read_manifest(folder)["recipe"]
    allowed = tolerance if tolerance is not None else tolerance_of(recipe)
    for name, difference in found["differences"].items():
        if not difference <= allowed:
            raise Failed(
                f"the bundle does not give the outputs of its trial: {name} differs by {difference:.2g}, and "
                f"{allowed:g} is allowed ({found['count']} samples)",
                "report this with the recipe: the bundle was not kept",
            )
    return max(found["differences"].values(), default=0.0)


def tolerance_of(recipe: Mapping[str, Any]) -> float:
    """`EXACT` for a recipe that changes neither the numbers nor their precision by much, else `REDUCED`."""
    precision = recipe.get("runtime", {}).get("precision")
    exact = precision == "fp32" or (precision is None and recipe.get("runtime", {}).get("name") == "onnxruntime")
    return EXACT if exact and not recipe.get("step") else REDUCED


def replay(payload: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """In a worker: load `run.py` from the bundle, run the samples, and give the difference of each output."""
    from hasten.data import SampleSet
    from hasten.measure.outputs import load

    samples = SampleSet.open(Path(payload["samples"]))
    indices = payload["indices"] if payload["indices"] is not None else list(range(len(samples)))
    folder = Path(payload["bundle"])
    few = indices[: MOST_CLIPS if read_manifest(folder)["program"] == "encoder_decoder" else MOST_SAMPLES]
    if payload["outputs"] is not None:
        expected = load(Path(payload["outputs"]))
        if len(indices) != len(expected):
            raise InvalidInput(f"there are outputs of {len(expected)} samples, and {len(indices)} samples to compare")
    else:
        expected = _run_source(payload["source"], [samples[i] for i in few])
    with _own_model(folder) as model:
        wanted = [tensor["name"] for tensor in model.manifest["samples"]]
        found = model.run([{name: samples[i][name] for name in wanted} for i in few])
    names = list(expected[0]) if expected else []
    missing = sorted(set(names) - set(found[0]))
    if missing:
        raise Failed(f"the bundle does not give the output {missing[0]}")
    return {
        "count": len(few),
        "differences": {
            name: difference([out[name] for out in found], [out[name] for out in expected[: len(few)]])
            for name in names
        },
    }


def _run_source(source: dict[str, Any], samples: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    from hasten.runner import open_runner

    with open_runner(
        Variant.from_json(source["variant"]),
        Recipe.from_json(source["recipe"]),
        Signature.from_json(source["signature"]),
        Padding.from_json(source["padding"]),
    ) as runner:
        return runner.run(samples)


def _own_model(folder: Path) -> Any:
    """`Model()` of the bundle's run.py, imported from its file."""
    try:
        return module_at(inside(folder, "run.py")).Model()
    except Exception as error:  # its errors are classes of run.py itself, which the parent does not know
        raise Failed(f"the bundle's run.py fails: {error}") from None


def difference(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The norm of the difference over the norm, over all samples.

    For classes and text it is the share that disagrees, or 0 where that is within what ties explain. Infinite where
    shapes differ, or a number is not finite where it was.
    """
    import numpy as np

    total = square = 0.0
    disagree = count = 0
    for ours, theirs in zip(found, expected, strict=True):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        if ours.shape != theirs.shape:
            return float("inf")
        if theirs.dtype.kind != "f":
            disagree += int(np.sum(ours.astype(theirs.dtype) != theirs))
            count += theirs.size
            continue
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return float("inf")
        finite = np.isfinite(b)
        total += float(np.sum(np.square(a[finite] - b[finite])))
        square += float(np.sum(np.square(b[finite])))
    if count:
        return 0.0 if disagree <= (1 - LEAST_AGREEMENT) * count else float(disagree / count)
    return math.sqrt(total / square) if square > 0 else math.sqrt(total)
