"""Builds the variant of a recipe: applies its steps in workers, each result kept under the hash of what made it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.goal import parse_bytes
from hasten.isolate import Limits, Scope, run
from hasten.lab.cache import VariantCache
from hasten.levers import Case, lever
from hasten.recipe import Recipe
from hasten.runner.packing import SPECIAL
from hasten.variant import Variant

BUILD_S = 1800.0
CACHE_LIMIT = "10GB"
ABANDONED_S = 86400.0
"""A folder without a finished variant is deleted this long after a killed build last touched it."""


@dataclass
class Builder:
    """Recipe in, variant out. The key is steps + model + calibration data + seed + versions: nothing is built twice.

    A step may depend on the runtime it is for (INT8 is written differently for each), so the runtime's name is part of
    the key. `seconds` says how long a step may take, and `left`, where given, how long now. A build that failed is not
    tried again by the same builder. Variants of all studies share `folder`, which is kept within `limit_bytes`.
    """

    case: Case
    folder: Path
    versions: Mapping[str, str]
    memory_bytes: int | None = None
    seconds: float = BUILD_S
    on_progress: Callable[[float | None, str], None] | None = None
    left: Callable[[], float] | None = None
    limit_bytes: int = field(default_factory=lambda: size_limit("HASTEN_CACHE_LIMIT", CACHE_LIMIT))
    failed: dict[str, Failed] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    def __call__(self, recipe: Recipe) -> Variant:
        variant = self.case.workload.brought
        for count in range(1, len(recipe.steps) + 1):
            prefix = Recipe(recipe.steps[:count], {"name": recipe.runtime.get("name")})
            variant = self._step(prefix, variant, replace(self.case, recipe=prefix))
        return variant

    def key(self, prefix: Recipe) -> str:
        work = self.case.workload
        text = json.dumps(
            [
                prefix.to_json(),
                *(work.model.sha256, *(part.sha256 for _, part in sorted(work.parts.items()))),
                work.samples.sha256,
                self.case.seed,
                dict(self.versions),
            ],
            sort_keys=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def limit_s(self) -> float:
        """How long one step may take now."""
        return self.seconds if self.left is None else min(self.seconds, self.left())

    def tidy(self) -> None:
        """Delete what was used longest ago beyond the limit, but nothing of this study; and what killed builds left."""
        if not self.folder.is_dir():
            return
        known = self.cache.keys()
        for path in self.folder.iterdir():
            if path.name in known or not path.is_dir():
                continue
            if (path / "variant.json").is_file():
                self.cache.add(path.name, keep=self.used)
            elif time.time() - path.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(path, ignore_errors=True)
        self.cache.evict(keep=self.used)

    @cached_property
    def cache(self) -> VariantCache:
        try:
            return VariantCache(self.folder, self.limit_bytes)
        except Failed as error:
            raise Failed(
                f"the folder of built variants cannot be used: {error.cause}", "name another cache with XDG_CACHE_HOME"
            ) from None

    def _step(self, prefix: Recipe, variant: Variant, case: Case) -> Variant:
        """The variant of `prefix`, whose last step is applied to `variant` unless that was done before."""
        key = self.key(prefix)
        if key in self.failed:
            raise self.failed[key]
        self.used.add(key)
        try:
            with _alone(self.folder, key):
                return self._found(key) or self._build(key, prefix, variant, case)
        except OSError as error:
            raise Failed(
                f"a variant cannot be written to {self.folder}: {error.strerror or error}",
                "free some space, or name another cache with XDG_CACHE_HOME",
            ) from None

    def _found(self, key: str) -> Variant | None:
        """What was built before, if all its files are there: some may lie in the folder of an earlier step."""
        folder = self.folder / key
        if not (folder / "variant.json").is_file():
            return None
        try:
            variant = Variant.from_json(json.loads((folder / "variant.json").read_text(encoding="utf-8")))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        if not all(part.path.exists() for part in variant.parts.values()):
            return None
        if self.cache.find(key) is None:
            self.cache.add(key, keep=self.used)
        return variant

    def _build(self, key: str, prefix: Recipe, variant: Variant, case: Case) -> Variant:
        folder = self.folder / key
        shutil.rmtree(folder, ignore_errors=True)  # what a killed build left behind
        folder.mkdir(parents=True)
        payload = {
            "variant": variant.to_json(),
            "step": prefix.steps[-1].to_json(),
            "case": replace(case, workdir=folder).to_json(),
        }
        try:
            answer = run(
                "hasten.search.build:apply",
                payload,
                Limits(self.memory_bytes, self.limit_s, case.device.cpus or None),
                on_progress=self.on_progress,
            )
            partial = folder / "variant.json.part"
            partial.write_text(json.dumps(answer), encoding="utf-8")
            partial.rename(folder / "variant.json")
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, Failed):
                self.failed[key] = error
            raise
        self.cache.add(key, keep=self.used)
        return Variant.from_json(answer)


def size_limit(variable: str, default: str) -> int:
    """Bytes from an environment variable."""
    text = os.environ.get(variable) or default
    try:
        return parse_bytes(text)
    except InvalidInput as error:
        raise InvalidInput(f"{variable}: {error.cause}", error.fix) from None


@contextmanager
def _alone(folder: Path, key: str) -> Iterator[None]:
    """Hold the lock of a key, which a killed process lets go of: two studies must not write into one folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{key}.lock"
    while True:
        with open(path, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists() or os.fstat(lock.fileno()).st_ino != path.stat().st_ino:
                continue  # the one before us removed it: ours is nobody else's lock
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def apply(payload: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """Worker function: apply one step to a variant and check that the signature's names survived."""
    from hasten.recipe import Step

    variant = Variant.from_json(payload["variant"])
    step = Step.from_json(payload["step"])
    case = Case.from_json(payload["case"])
    scope.progress(None, f"applying {step.lever}")
    os.chdir(case.workdir)  # toolchains leave scratch files in the working folder
    if step.part not in variant.parts:
        raise InvalidInput(f"step {step.lever} is for part {step.part!r}, which the variant does not have")
    result = lever(step.lever).apply(variant, step, case)
    before = variant.parts[step.part].signature
    after = result.parts[step.part].signature
    for kind in ("inputs", "outputs"):
        names = [t.name for t in getattr(before, kind)]
        found = [t.name for t in getattr(after, kind) if t.name in names or t.name not in SPECIAL]
        if sorted(names) != sorted(found):
            raise Failed(f"lever {step.lever} changed the {kind} from {names} to {found}")
    return result.to_json()
