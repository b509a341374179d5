"""A committed search space, as all the recipes that it means on this machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.levers.bucket import edges
from hasten.recipe import Recipe

SPACES = Path(__file__).parent.parent / "spaces"


@dataclass(frozen=True)
class Space:
    """`structures` are recipes; each is crossed with every division of the cores and every runner of its runtime.

    In a division N stands for the number of cores. A runner with `buckets = 4` means the four buckets that pad the
    samples' lengths least.
    """

    structures: Sequence[Recipe]
    divisions: Sequence[str]
    runners: Mapping[str, Sequence[Mapping[str, Any]]]

    @classmethod
    def read(cls, name: str) -> Space:
        data = json.loads((SPACES / f"{name}.json").read_text(encoding="utf-8"))
        return cls([Recipe.from_json(each) for each in data["structures"]], data["divisions"], data["runners"])

    def recipes(self, cores: int, lengths: Sequence[int] = ()) -> list[Recipe]:
        """Every recipe once, in the file's order."""
        found: dict[str, Recipe] = {}
        for structure in self.structures:
            for division in self.divisions:
                streams, threads = (cores if part == "N" else int(part) for part in division.split("x"))
                for runner in self.runners[str(structure.runtime["name"])]:
                    settled = dict(runner)
                    if isinstance(settled.get("buckets"), int):
                        settled["buckets"] = list(edges(lengths, settled["buckets"]))
                    recipe = structure.edit("runtime", streams=streams, threads=threads).edit("runner", **settled)
                    found.setdefault(recipe.id, recipe)
        return list(found.values())
