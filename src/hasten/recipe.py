"""A recipe: the ordered lever steps plus the runtime, runner and cache settings; plain data, hashable, TOML."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hasten.errors import Failed, InvalidInput

SECTIONS = ("runtime", "runner", "cache")


_SAID = frozenset({"name", "precision", "streams", "threads"})
UNSAID: Mapping[str, Any] = {"scheme": "mixed", "transformer": True}
"""Options that nearly every recipe of their kind has, which one line need not say."""


@dataclass(frozen=True)
class Step:
    """One lever applied to one part of the variant. `options` are what the lever needs to do the same thing again."""

    lever: str
    options: Mapping[str, Any] = field(default_factory=dict)
    part: str = "main"

    def to_json(self) -> dict[str, Any]:
        part = {} if self.part == "main" else {"part": self.part}
        return {"lever": self.lever, **part, **self.options}

    def describe(self) -> str:
        """The lever with what tells its options apart, such as `int8 (smooth 0.5, keep 9)`.

        >>> Step("int8", {"scheme": "mixed", "keep": ["a", "b"], "bias_correction": "full"}).describe()
        'int8 (keep 2, bias correction full)'
        """
        told = [
            f"{name} {len(value)}" if isinstance(value, list | tuple) else name if value is True else f"{name} {value}"
            for name, value in self.options.items()
            if UNSAID.get(name) != value
        ]
        inside = ", ".join(told).replace("_", " ")
        return f"{self.lever} ({inside})" if inside else self.lever

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Step:
        options = {key: value for key, value in data.items() if key not in ("lever", "part")}
        return cls(data["lever"], options, data.get("part", "main"))


@dataclass(frozen=True)
class Recipe:
    """The whole truth about a variant.

    `runtime` holds name, precision, threads, streams and the runtime's own options; `runner` holds batch, form, sort,
    buckets and the like; `cache` the response cache. An absent key means the default.
    """

    steps: tuple[Step, ...] = ()
    runtime: Mapping[str, Any] = field(default_factory=dict)
    runner: Mapping[str, Any] = field(default_factory=dict)
    cache: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.canonical)

    @property
    def canonical(self) -> str:
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    @property
    def id(self) -> str:
        """The short hash that names the trial of this recipe."""
        return self.sha256[:12]

    def with_step(self, step: Step) -> Recipe:
        return replace(self, steps=(*self.steps, step))

    def edit(self, section: str, **values: Any) -> Recipe:
        """A copy with keys of `[section]` set; a value of None removes the key."""
        merged = {**getattr(self, section), **values}
        edited: dict[str, Any] = {section: {key: value for key, value in merged.items() if value is not None}}
        return replace(self, **edited)

    def has(self, lever: str) -> bool:
        return any(step.lever == lever for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {}
        if self.steps:
            data["step"] = [step.to_json() for step in self.steps]
        for section in SECTIONS:
            if getattr(self, section):
                data[section] = dict(getattr(self, section))
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recipe:
        unknown = set(data) - {"step", *SECTIONS}
        if unknown:
            raise InvalidInput(
                f"the recipe has unknown sections: {', '.join(sorted(unknown))}",
                f"keep only [[step]], {', '.join(f'[{name}]' for name in SECTIONS)}",
            )
        steps = data.get("step", [])
        if not isinstance(steps, list) or not all(isinstance(s, Mapping) and "lever" in s for s in steps):
            raise InvalidInput("every [[step]] of a recipe needs a lever", 'write lever = "NAME" in each step')
        for section in SECTIONS:
            if not isinstance(data.get(section, {}), Mapping):
                raise InvalidInput(
                    f"[{section}] of the recipe is not a table", f"write [{section}] and KEY = VALUE below it"
                )
        return cls(tuple(Step.from_json(s) for s in steps), *(dict(data.get(section, {})) for section in SECTIONS))

    def to_toml(self) -> str:
        import tomli_w

        data = self.to_json()
        steps = [f"[[step]]\n{tomli_w.dumps(step)}" for step in data.pop("step", [])]
        return "\n".join([*steps, tomli_w.dumps(data)] if data else steps)

    @classmethod
    def from_toml(cls, text: str) -> Recipe:
        try:
            return cls.from_json(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise InvalidInput(
                f"the recipe is not TOML: {error}", "write it as in the recipe.toml of a bundle"
            ) from None

    @classmethod
    def read(cls, path: Path) -> Recipe:
        try:
            return cls.from_toml(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise InvalidInput(f"{path} is not a text file", "give a recipe in TOML") from None
        except OSError as error:
            fix = "give the path of a recipe, such as the recipe.toml of a bundle"
            raise Failed(f"cannot read the recipe {path}: {error.strerror}", fix) from None

    def describe(self) -> str:
        """One line for a table, such as `int8 | openvino bf16 2x1 | batch 32 sort`."""
        steps = " + ".join(step.describe() for step in self.steps)
        r = self.runtime
        runtime = [str(r.get("name", "")), str(r.get("precision", ""))]
        if "streams" in r or "threads" in r:
            runtime.append(f"{r.get('streams', 1)}x{r.get('threads', 'all')}")
        runtime += [
            (key if value is True else f"{key} {value}").replace("_", " ")
            for key, value in r.items()
            if key not in _SAID and isinstance(value, str | int) and value is not False
        ]
        settings = dict(self.runner)
        buckets = settings.pop("buckets", None)
        form = settings.pop("form", "batch")
        if form == "bucket" and buckets:
            settings = {f"{len(buckets)} buckets": True, **settings}
        if form == "pack":  # the lever has said the rest
            settings = {f"{settings.get('rows')} rows of {settings.get('row_tokens')}": True}
        runner = [f"{k} {v}" if v is not True else k for k, v in settings.items() if v is not False]
        cache = ["cache"] if self.cache else []
        if self.cache.get("kind") == "semantic":
            cache = [f"similar within {self.cache.get('distance')}"]
        parts = [steps, " ".join(filter(None, runtime)), " ".join(runner + cache)]
        return " | ".join(filter(None, parts))
