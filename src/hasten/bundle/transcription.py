"""A bundle of a speech model in use: clips in, what they say out.

This part, and all that it stands on, also ships in `run.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hasten.bundle.manifest import inside
from hasten.bundle.program import BundledModel
from hasten.data.sound import read_wav
from hasten.errors import InvalidInput
from hasten.model import Facts, Model, Signature
from hasten.runner.transcribe import Transcriber, open_transcriber
from hasten.workload import Padding


class BundledTranscriber(BundledModel):
    """The speech model of the bundle in `folder`: `{"audio": samples at 16 kHz}` in, `{"text": what is said}` out."""

    _runner: Transcriber

    def _open(
        self, runtime: Any, model: Model, recipe: Mapping[str, Any], padding: Padding | None, tokenizer: Path | None
    ) -> Any:
        if self.manifest["program"] != "encoder_decoder" or tokenizer is None:
            raise InvalidInput(f"this version does not run the program {self.manifest['program']!r}")
        parts = {"main": model}
        for name, part in self.manifest["parts"].items():
            if name in ("main", "tokenizer"):
                continue
            parts[name] = Model(
                inside(self.folder, part["path"]).absolute(),
                part["format"],
                part["sha256"],
                Signature.from_json(part["signature"]),
                Facts.from_json(part["facts"]),
            )
        return open_transcriber(
            runtime, parts, tokenizer, recipe.get("runtime", {}), recipe.get("runner", {}), recipe.get("cache", {})
        )

    def transcribe(self, path: str | Path) -> str:
        """What the .wav file at `path` says."""
        return str(self._runner.run_one({"audio": read_wav(path)})["text"])
