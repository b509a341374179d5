"""Loads a bundle: every hash checked, then its model opened in this process."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.bundle.generation import BundledGenerator
from hasten.bundle.manifest import check_files, pins, read_manifest, refuse_code
from hasten.bundle.pack import MAX_BYTES, unpack
from hasten.bundle.program import BundledModel
from hasten.bundle.read import usable
from hasten.bundle.transcription import BundledTranscriber
from hasten.errors import InvalidInput
from hasten.recipe import Recipe
from hasten.runtimes.base import language_of, runtime, speech_of

if TYPE_CHECKING:
    from hasten.runtimes.base import LanguageRuntime, Runtime, SpeechRuntime


class _Loaded:
    """What a bundle is beside what it runs: where it was unpacked to, and a recipe that must be the one written."""

    manifest: dict[str, Any]

    def __init__(
        self, folder: Path, engine: Runtime | LanguageRuntime | SpeechRuntime, temporary: Path | None = None
    ) -> None:
        self._temporary = temporary
        super().__init__(folder, engine, verify=False)  # type: ignore[call-arg]
        if self.recipe.sha256 != self.manifest.get("recipe_sha256"):
            raise InvalidInput(
                f"{folder.name}: the recipe in bundle.json was changed", "copy or write the bundle again"
            )

    @property
    def recipe(self) -> Recipe:
        return Recipe.from_json(self.manifest["recipe"])

    def close(self) -> None:
        super().close()  # type: ignore[misc]
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


class LoadedBundle(_Loaded, BundledModel):
    """A bundle in use: `loaded(inputs)` gives a dict of arrays; `close()`, or a `with` block, frees it."""


class LoadedGenerator(_Loaded, BundledGenerator):
    """A language model in use: `loaded.answer(prompt)`, `loaded.stream(prompt)`, or `loaded({"text": prompts})`."""


class LoadedTranscriber(_Loaded, BundledTranscriber):
    """A speech model in use: `loaded({"audio": samples})`, or `loaded.transcribe("clip.wav")`."""


def load(
    path: str | Path, *, trust: bool = False, max_bytes: int = MAX_BYTES
) -> LoadedBundle | LoadedGenerator | LoadedTranscriber:
    """The bundle at `path`, a folder or a .pack file. Raises `InvalidInput` naming the file that was changed, if any.

    `trust` allows a model that can run code when it is opened. A pack is unpacked into a temporary folder, at most
    `max_bytes` large, which `close` removes.
    """
    path = Path(path)
    if not path.exists():
        raise InvalidInput(f"there is no bundle at {path}", "check the path")
    temporary = None
    if path.is_file():
        temporary = Path(tempfile.mkdtemp(prefix="hasten-bundle-"))
    try:
        if temporary is not None:
            unpack(path, temporary, max_bytes)
        folder = temporary or path
        manifest = read_manifest(folder)
        check_files(folder, manifest)
        folder, manifest = usable(folder, manifest)
        refuse_code(folder, manifest, trust)
        if manifest.get("program") == "generate":
            return LoadedGenerator(folder, language_of(_runtime(manifest)), temporary)
        if manifest.get("program") == "encoder_decoder":
            return LoadedTranscriber(folder, speech_of(_runtime(manifest)), temporary)
        return LoadedBundle(folder, _runtime(manifest), temporary)
    except BaseException:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        raise


def _runtime(manifest: dict[str, Any]) -> Runtime:
    """The runtime that the bundle was made for; where it is missing, the error names the exact version."""
    wanted = manifest.get("runtime") or {}
    try:
        return runtime(str(wanted.get("name")))
    except InvalidInput as error:
        needed = pins(wanted)
        raise InvalidInput(
            f"this bundle needs {needed}: {error.cause}", "install it", f"pip install {needed}"
        ) from None
