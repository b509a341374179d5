"""A bundle of a language model in use: texts in, what the model adds to them out.

This part, and all that it stands on, also ships in `run.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hasten.bundle.program import BundledModel
from hasten.errors import InvalidInput
from hasten.model import Model
from hasten.runner.generate import Generator, open_generator
from hasten.workload import Padding


class BundledGenerator(BundledModel):
    """The language model of the bundle in `folder`: `{"text": prompts}` in, `{"text": answers}` out."""

    _runner: Generator

    def _open(
        self, runtime: Any, model: Model, recipe: Mapping[str, Any], padding: Padding | None, tokenizer: Path | None
    ) -> Any:
        if self.manifest["program"] != "generate" or tokenizer is None:
            raise InvalidInput(f"this version does not run the program {self.manifest['program']!r}")
        return open_generator(
            runtime, model, tokenizer, recipe.get("runtime", {}), recipe.get("runner", {}), recipe.get("cache", {})
        )

    def answer(self, prompt: str, new_tokens: int | None = None) -> str:
        """What the model adds to one text, in at most `new_tokens` (those of the recipe, where not given)."""
        return self._runner.answer(prompt, new_tokens)

    def stream(self, prompt: str, new_tokens: int | None = None) -> Iterator[str]:
        """The same in pieces, as they come."""
        yield from self._runner.stream(prompt, new_tokens)
