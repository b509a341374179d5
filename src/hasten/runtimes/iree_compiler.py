"""IREE's importer and compiler: a program for this processor from an ONNX file, in processes of their own, and kept."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hasten.errors import Failed
from hasten.model import Model
from hasten.paths import cache_dir

COMPILER = "iree-base-compiler"
IMPORT_TOOL = "iree.compiler.tools.import_onnx"
COMPILE_TOOL = "iree.compiler.tools.scripts.iree_compile"
OPT_LEVELS = ("O0", "O1", "O2", "O3")
KEPT_BYTES = 4 << 30
"""Room for compiled programs; what was used longest ago makes room."""
LEFT_OVER_S = 24 * 3600.0
"""A folder that a killed compilation left behind is removed after this time."""
ANOTHER_RUNTIME = 'use name = "onnxruntime" or name = "openvino"'

FixedShapes = tuple[tuple[str, tuple[int, ...]], ...]
"""The shape of each input, sorted by name."""


class NotCompiled(Failed):
    """The importer read the model, and the compiler could not make a program of it for these shapes."""


def compiled_program(model: Model, shapes: FixedShapes | None, level: str | None) -> Path:
    """The compiled file of `model` for these input shapes (None: for any), made now or before.

    Importer and compiler are processes of their own, and children of this one: what they crash on is a failure with a
    reason, and their memory goes when they end. Raises `Failed` where one of them cannot read the model.
    """
    folder = cache_dir() / "iree"
    target = folder / f"{_program_key(model, shapes, level)}.vmfb"
    if target.is_file():
        os.utime(target)
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="making-") as name:
        made = _compile(model, shapes, level, Path(name))
        os.replace(made, target)
    _make_room(folder, target)
    return target


def _program_key(model: Model, shapes: FixedShapes | None, level: str | None) -> str:
    content = model.sha256 or hashlib.sha256(model.path.read_bytes()).hexdigest()
    told = [content, shapes, level, version(COMPILER), version("onnx"), _processor()]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]


def _processor() -> str:
    """The name and the instruction sets of this machine's processor, for which programs are compiled."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.node()}"
    told = ("model name", "flags", "Features", "CPU part")
    return " ".join(sorted({line for line in lines if line.startswith(told)}))


def _compile(model: Model, shapes: FixedShapes | None, level: str | None, folder: Path) -> Path:
    source, program = folder / "model.mlir", folder / "model.vmfb"
    path, beside = model.path, []
    if shapes is not None:
        path, beside = _with_shapes(model, dict(shapes), folder), ["--data-dir", str(model.path.parent.absolute())]
    _tool(model, "importer", [IMPORT_TOOL, str(path.absolute()), *beside, "-o", str(source)], folder)
    flags = ["--iree-input-type=onnx", "--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host"]
    flags += [f"--iree-opt-level={level}"] if level else []
    _tool(model, "compiler", [COMPILE_TOOL, str(source), *flags, "-o", str(program)], folder)
    return program


def _tool(model: Model, what: str, command: Sequence[str], folder: Path) -> None:
    # Not from a shell's path, and with nothing imported from the current folder.
    ended = subprocess.run(
        [sys.executable, "-P", "-m", *command],
        cwd=folder,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if ended.returncode:
        ended_by = f"its {what} crashed" if "Stack dump:" in ended.stderr or ended.returncode < 0 else ""
        cause = f"iree cannot load {model.path.name}: {ended_by or told_by(ended.stderr)}"
        raise (NotCompiled if what == "compiler" else Failed)(cause, ANOTHER_RUNTIME)


def told_by(stderr: str) -> str:
    """The reason in what IREE's importer or compiler wrote, on one line.

    >>> told_by("m.mlir:4:10: error: failed to legalize operation 'torch.operator' ... <{name = \\"onnx.Foo\\"}> ...")
    'its compiler has no operator Foo for these types and shapes'
    """
    unknown = re.search(r"error: failed to legalize operation 'torch\.operator'.*?\"onnx\.(\w+)\"", stderr)
    if unknown:
        return f"its compiler has no operator {unknown[1]} for these types and shapes"
    lines = [" ".join(line.split()) for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line] or [line for line in reversed(lines) if "Error" in line]
    text = (errors or lines[-1:] or ["it does not say why"])[0]
    return re.sub(r"^.*?\berror: (loc\([^)]*\): )?", "", text)[:300]


def _with_shapes(model: Model, shapes: dict[str, tuple[int, ...]], folder: Path) -> Path:
    """The model with these input shapes; what was known of the shapes inside is worked out anew by the importer."""
    import onnx

    proto: Any = onnx.load(model.path, load_external_data=False)
    del proto.graph.value_info[:]
    for value in proto.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            dim.Clear()
            dim.dim_value = size
    for value in proto.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def _make_room(folder: Path, kept: Path) -> None:
    """Delete the programs that were used longest ago until the rest fits, and what killed compilations left."""
    found = []
    for path in folder.iterdir():
        try:
            stat = path.stat()
        except OSError:  # another process was quicker
            continue
        if path.is_dir() and stat.st_mtime < time.time() - LEFT_OVER_S:
            shutil.rmtree(path, ignore_errors=True)
        elif path.suffix == ".vmfb":
            found.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= KEPT_BYTES:
            break
        if path != kept:
            path.unlink(missing_ok=True)
            total -= size
