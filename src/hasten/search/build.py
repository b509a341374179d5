"""Builds the variant of a recipe: applies its steps in workers, each result kept under the hash of what made it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.isolate import Limits, Scope, run
from hasten.levers import Case, lever
from hasten.recipe import Recipe
from hasten.variant import Variant

BUILD_S = 1800.0


@dataclass
class Builder:
    """Recipe in, variant out. The key is steps + model + calibration data + seed + versions, so that nothing is built twice.

    A step may depend on the runtime it is for (INT8 is written differently for each), so the runtime's name is part of
    the key. `seconds` says how long a step may take.
    """

    case: Case
    folder: Path
    versions: Mapping[str, str]
    memory_bytes: int | None = None
    seconds: float = BUILD_S
    on_progress: Callable[[float | None, str], None] | None = None
    failed: dict[str, Failed] = field(default_factory=dict)

    def __call__(self, recipe: Recipe) -> Variant:
        variant = Variant({"main": self.case.workload.model})
        for number, step in enumerate(recipe.steps):
            prefix = Recipe(recipe.steps[: number + 1], {"name": recipe.runtime.get("name")})
            variant = self._step(prefix, variant, replace(self.case, recipe=prefix))
        return variant

    def key(self, prefix: Recipe) -> str:
        work = self.case.workload
        text = json.dumps(
            [prefix.to_json(), work.model.sha256, work.samples.sha256, self.case.seed, dict(self.versions)],
            sort_keys=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def _step(self, prefix: Recipe, variant: Variant, case: Case) -> Variant:
        key = self.key(prefix)
        if key in self.failed:
            raise self.failed[key]
        folder = self.folder / key
        built = folder / "variant.json"
        if built.is_file():
            return Variant.from_json(json.loads(built.read_text()))
        shutil.rmtree(folder, ignore_errors=True)  # what a killed build left behind
        folder.mkdir(parents=True)
        step = prefix.steps[-1]
        payload = {
            "variant": variant.to_json(),
            "step": step.to_json(),
            "case": replace(case, workdir=folder).to_json(),
        }
        try:
            answer = run(
                "hasten.search.build:apply",
                payload,
                Limits(self.memory_bytes, self.seconds, case.device.cpus or None),
                on_progress=self.on_progress,
            )
        except Failed as error:
            self.failed[key] = error
            raise
        partial = folder / "variant.json.part"
        partial.write_text(json.dumps(answer))
        partial.rename(built)
        return Variant.from_json(answer)


def apply(payload: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """Worker function: apply one step to a variant and check that the signature's names survived."""
    from hasten.recipe import Step

    variant = Variant.from_json(payload["variant"])
    step = Step.from_json(payload["step"])
    case = Case.from_json(payload["case"])
    scope.progress(None, f"applying {step.lever}")
    if step.part not in variant.parts:
        raise InvalidInput(f"step {step.lever} is for part {step.part!r}, which the variant does not have")
    result = lever(step.lever).apply(variant, step, case)
    before = variant.parts[step.part].signature
    after = result.parts[step.part].signature
    for kind in ("inputs", "outputs"):
        names = [t.name for t in getattr(before, kind)]
        found = [t.name for t in getattr(after, kind)]
        if sorted(names) != sorted(found):
            raise Failed(f"lever {step.lever} changed the {kind} from {names} to {found}")
    return result.to_json()
