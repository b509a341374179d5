"""Writes a bundle: whole or not at all, and only after its own `run.py` has shown the outputs that the trial had."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten import intake
from hasten.bundle.files import files_of
from hasten.bundle.manifest import FALLBACK, MANIFEST, SCHEMA, digest, read_manifest
from hasten.bundle.pack import SUFFIX, is_pack, pack
from hasten.bundle.readme import readme
from hasten.bundle.script import run_script
from hasten.bundle.verify import Source, verify
from hasten.data.text import PAIR, TEXT
from hasten.errors import Failed, HastenError, InvalidInput
from hasten.measurement import Trial
from hasten.runtimes.base import Runtime, runtime
from hasten.study import Study
from hasten.variant import Variant

if TYPE_CHECKING:
    from hasten.isolate import Limits


WORDS = {"single": ("tokenizers",), "generate": ("openvino-tokenizers",), "encoder_decoder": ()}
"""What a bundle needs to turn text into token numbers, by its program."""


def write(
    study: Study,
    trial: Trial,
    variant: Variant,
    out: Path,
    *,
    pack: bool = False,
    outputs: Path | None = None,
    indices: Sequence[int] | None = None,
    limits: Limits | None = None,
    fallback: tuple[Trial, Variant] | None = None,
) -> Path:
    """Write the bundle of `trial`, whose model is `variant`, to the folder `out`; with `pack` to the file `out`.pack.

    `fallback` is another trial with its variant, for machines that lack the runtime: a bundle of its own inside.
    Before it takes its place the bundle is run in a fresh process and its outputs are compared with the trial's:
    `outputs` is a file of them (see `measure.outputs`) for the samples at `indices` (all by default); where it is not
    given, `variant` is run once more through hasten's own runner. Returns where the bundle is.
    Raises `InvalidInput` where something that is no bundle stands there, and `Failed` where it cannot be written or
    does not give those outputs; nothing half-written is left, and an older bundle stays.
    """
    target = check_target(out, pack=pack)
    engine = runtime(runtime_name(trial, variant))
    with _staging(target) as folder:
        try:
            if fallback is not None:
                second, other = fallback
                _fill(folder / FALLBACK, study, second, other, runtime(runtime_name(second, other)), limits)
            manifest = _fill(folder, study, trial, variant, engine, limits)
        except OSError as error:
            raise _unwritable(target, error) from None
        signature, padding = study.workload.model.signature, study.workload.padding
        source = outputs or Source(variant, trial.recipe, signature, padding)
        verify(folder, source, study.workload.samples, indices=indices, limits=limits)
        if fallback is not None:
            source = Source(other, second.recipe, signature, padding)
            verify(folder / FALLBACK, source, study.workload.samples, indices=indices, limits=limits)
        try:
            _move(folder, target, manifest if pack else None)
        except OSError as error:
            raise _unwritable(target, error) from None
    return target


def check_target(out: Path, *, pack: bool = False) -> Path:
    """Where the bundle will be, checked to be free, an empty folder or an older bundle, and writable.

    Call it before a long search, so that a bad path costs nothing.
    """
    target = out if not pack or out.suffix == SUFFIX else out.with_name(out.name + SUFFIX)
    target = target.absolute()
    try:
        if target.is_symlink() or (target.exists() and not _replaceable(target)):
            raise InvalidInput(f"{target} exists and is not a hasten bundle", "remove it, or name another path")
        above = target.parent
        while not above.exists():
            above = above.parent
        if not above.is_dir():
            raise InvalidInput(f"{above} is a file, not a folder", "name another path for the bundle")
        if not os.access(above, os.W_OK | os.X_OK):
            raise Failed(f"the folder {above} is not writable", "change its permissions, or name another path")
    except (OSError, ValueError) as error:
        raise InvalidInput(f"the bundle cannot be written to {target}: {error}", "name another path") from None
    return target


def runtime_name(trial: Trial, variant: Variant) -> str:
    """The runtime that the recipe names, or the one that its model's format implies."""
    from hasten.runtimes import DEFAULT_RUNTIMES

    name = trial.recipe.runtime.get("name") or DEFAULT_RUNTIMES.get(variant.main.format)
    if not name:
        raise InvalidInput(f"no runtime is known for the format {variant.main.format!r}", "name one in [runtime]")
    return str(name)


def _replaceable(target: Path) -> bool:
    if not target.is_dir():
        return is_pack(target)
    if not any(target.iterdir()):
        return True
    try:
        read_manifest(target)
    except HastenError:
        return False
    return True


@contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """A folder beside `target`, so that the last step is a rename; whatever is left in it is removed."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        above = Path(tempfile.mkdtemp(prefix=f".{target.name[:64]}.", suffix=".part", dir=target.parent))
    except OSError as error:
        raise _unwritable(target, error) from None
    try:
        folder = above / "bundle"
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(above, ignore_errors=True)


def _move(folder: Path, target: Path, manifest: Mapping[str, Any] | None) -> None:
    if manifest is not None:
        packed = folder.with_name("packed")
        pack(folder, packed, manifest)
        os.replace(packed, target)
        return
    folder.chmod(0o755)
    if not target.exists():
        os.rename(folder, target)
        return
    old = folder.with_name("old")
    os.rename(target, old)
    try:
        os.rename(folder, target)
    except OSError:
        os.rename(old, target)
        raise


def _fill(
    folder: Path, study: Study, trial: Trial, variant: Variant, engine: Runtime, limits: Limits | None
) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    second = (folder / FALLBACK).is_dir()
    package, beside = _package(engine), tuple(getattr(engine, "beside", ()))
    texts = "tokenizer" in variant.parts
    words = WORDS[variant.program] if texts and variant.parts["tokenizer"].format != "gguf" else ()
    versions = {name: study.versions.get(name) or version(name) for name in (package, *beside, "numpy", *words)}
    parts = {
        name: _copy(folder, name, model, limits)
        for name, model in variant.parts.items()
        if not _same_file(variant, name)
    }
    if _same_file(variant, "tokenizer"):
        parts["tokenizer"] = {**variant.parts["tokenizer"].to_json(), "path": parts["main"]["path"]}
    for name, text in {
        "recipe.toml": trial.recipe.to_toml(),
        "study.json": _json(_without_folders(study).to_json()),
        "requirements.txt": "".join(f"{name}=={number}\n" for name, number in sorted(versions.items())),
        "README.md": readme(study, trial, _listed(package, beside)),
        "run.py": run_script(engine, _listed(package, beside), version("hasten"), variant.program, fallback=second),
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
    os.chmod(folder / "run.py", 0o755)
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    source = study.workload.model
    manifest = {
        "schema": SCHEMA,
        "hasten": version("hasten"),
        "study": study.key,
        "trial": trial.id,
        "recipe": trial.recipe.to_json(),
        "recipe_sha256": trial.recipe.sha256,
        "runtime": {
            "name": engine.name,
            "package": package,
            "version": versions[package],
            "beside": {name: versions[name] for name in beside},
        },
        "program": variant.program,
        "fallback": second,
        "parts": parts,
        "source": {"name": source.path.name, "format": source.format, "sha256": source.sha256},
        "signature": source.to_json()["signature"],
        "samples": [
            tensor
            for tensor in study.workload.samples.to_json()["inputs"]
            if not (texts and WORDS[variant.program]) or tensor["name"] in (TEXT, PAIR)
        ],
        "padding": None if study.workload.padding is None else study.workload.padding.to_json(),
        "table": {key: value for key, value in intake.told(source).items() if key in ("columns", "missing")},
        "device": study.device.to_json(),
        "versions": dict(study.versions),
        "files": {name: digest(folder / name) for name in files},
    }
    (folder / MANIFEST).write_text(_json(manifest), encoding="utf-8")
    return manifest


def _copy(folder: Path, part: str, model: Any, limits: Limits | None) -> dict[str, Any]:
    """Copy the files of one part to model/PART, and describe it with a path relative to the bundle."""
    home = folder / "model" / part
    for name in files_of(model, limits):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(model.path.parent / name, home / name)
    return {**model.to_json(), "path": (home / model.path.name).relative_to(folder).as_posix()}


def _same_file(variant: Variant, part: str) -> bool:
    """Whether a part is the file of the main one: a GGUF file holds its tokenizer."""
    return part in variant.parts and part != "main" and variant.parts[part].path == variant.main.path


def _package(engine: Runtime) -> str:
    """The PyPI name of what provides `engine`: that of the package it wraps, or of the plugin."""
    if own := getattr(engine, "package", None):
        return str(own)
    found = packages_distributions()
    top = type(engine).__module__.partition(".")[0]
    providers = found.get(engine.name, []) if top == "hasten" else found.get(top, [])
    return sorted(providers, key=len)[0] if providers else engine.name


def _listed(package: str, beside: Sequence[str]) -> str:
    """What a bundle needs, in words."""
    return f"{', '.join((package, *beside[:-1]))} and {beside[-1]}" if beside else package


def _without_folders(study: Study) -> Study:
    """The study without the folders of the machine where it was made: a bundle goes to strangers."""
    workload = study.workload
    model = replace(workload.model, path=Path(workload.model.path.name))
    samples = replace(workload.samples, path=Path(workload.samples.path.name))
    return replace(study, workload=replace(workload, model=model, samples=samples))


def _json(data: Any) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _unwritable(target: Path, error: OSError) -> Failed:
    return Failed(
        f"the bundle {target} cannot be written: {error.strerror or error}", "free space there, or name another path"
    )
