"""A variant: what a recipe builds: one or more model parts and the program that joins them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from hasten.model import Model

Program = Literal["single", "encoder_decoder", "generate", "cascade", "early_exit"]


@dataclass(frozen=True)
class Variant:
    """`parts` by name (a plain model has the one part "main")."""

    parts: Mapping[str, Model]
    program: Program = "single"

    @property
    def main(self) -> Model:
        return self.parts["main"]

    def with_part(self, name: str, model: Model) -> Variant:
        return replace(self, parts={**self.parts, name: model})

    def to_json(self) -> dict[str, Any]:
        return {"parts": {name: part.to_json() for name, part in self.parts.items()}, "program": self.program}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Variant:
        return cls({name: Model.from_json(part) for name, part in data["parts"].items()}, data["program"])
