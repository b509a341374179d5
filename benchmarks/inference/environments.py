"""Tools in virtual environments of their own: installed at first use, and asked for one artefact under a time limit."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import downloads
from hasten.errors import Failed

INSTALL_S, MAKE_S = 300.0, 180.0
PINNED = ("torch==2.13.0", "onnx==1.23.2", "onnxruntime==1.32.0")
"""As hasten's own environment has them, so that an artefact is not refused for its version."""
SCRIPTS = Path(__file__).parent / "tools"
QUIET = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


@dataclass(frozen=True)
class Tool:
    """`undeclared` names packages that the tool imports and does not ask for: without them it does not start.

    `harmful` names those that it asks for and that keep it from starting here, as they do not fit this PyTorch: they
    are removed. `command` has the places {bin}, {script}, {model}, its {folder}, {samples}, {output} (the name of the
    output that counts), {source} (the Hugging Face folder that the model was exported from) and {into}; a file ending
    in .onnx or .xml in the folder {into} is what it made. A tool without a command is a library: it is installed alone,
    beside hasten's own torch.
    """

    name: str
    packages: tuple[str, ...]
    command: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()
    harmful: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """Changes with whatever is installed."""
        what = [self.packages, self.undeclared, PINNED, sys.version, *([self.harmful] if self.harmful else [])]
        key = hashlib.sha256(json.dumps(what).encode()).hexdigest()
        return downloads() / "peers" / key[:16]

    @property
    def setup(self) -> tuple[str, ...]:
        """The commands that set it up, as one would type them."""
        packages = " ".join(self.packages + self.undeclared)
        if not self.command:
            return (f"pip install --no-deps {packages}",)
        removed = [f"peer/bin/pip uninstall -y {' '.join(self.harmful)}"] if self.harmful else []
        return "python -m venv peer", f"peer/bin/pip install {packages}", *removed


@dataclass(frozen=True)
class Made:
    """An artefact and how long it took, installation (when it happened) aside and included."""

    path: Path
    seconds: float
    setup_s: float


def installed(tool: Tool) -> float:
    """Seconds that the installation took, whenever it was. Raises `Failed` with the reason where it does not work.

    It is tried once in a run: what failed fails again at once.
    """
    marker = tool.folder / "installed.json"
    if marker.is_file():
        return float(json.loads(marker.read_text())["seconds"])
    if tool.folder in _FAILED:
        raise Failed(_FAILED[tool.folder])
    try:
        return _install(tool, marker)
    except Failed as error:
        _FAILED[tool.folder] = error.cause
        raise


_FAILED: dict[Path, str] = {}


def _install(tool: Tool, marker: Path) -> float:
    shutil.rmtree(tool.folder, ignore_errors=True)
    tool.folder.mkdir(parents=True)
    constraints = tool.folder / "constraints.txt"
    constraints.write_text("\n".join(PINNED) + "\n")
    start = time.monotonic()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    if tool.command:
        within([sys.executable, "-m", "venv", "--without-pip", str(tool.folder / "venv")], INSTALL_S, "installing")
        pip += ["--python", _python(tool), "install", "-c", str(constraints)]
    else:
        pip += ["install", "--no-deps", "--target", str(tool.folder / "beside")]
    within([*pip, "--quiet", *tool.packages, *tool.undeclared], INSTALL_S, "installing")
    if tool.harmful:
        within([*pip[:-3], "uninstall", "--yes", "--quiet", *tool.harmful], INSTALL_S, "installing")
    seconds = time.monotonic() - start
    marker.write_text(json.dumps({"seconds": seconds}))
    return seconds


def made(tool: Tool, model: Path, samples: Path, into: Path, *, source: str = "", output: str = "") -> Made:
    """Install the tool and run its command. Raises `Failed` with the last line that it wrote."""
    setup_s = installed(tool)
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    alone = into.with_name(f"{into.name}-source")  # some tools take all that lies beside the model
    alone.mkdir(exist_ok=True)
    shutil.copy(model, alone / "model.onnx")
    places = {
        "bin": str(Path(_python(tool)).parent),
        "script": str(SCRIPTS),
        "model": str(alone / "model.onnx"),
        "folder": str(alone),
        "samples": str(samples),
        "source": source,
        "output": output,
        "into": str(into),
    }
    start = time.monotonic()
    said = within([word.format(**places) for word in tool.command], MAKE_S, "converting", cwd=into)
    found = sorted(path for end in ("*.onnx", "*.xml") for path in into.rglob(end))
    if not found:
        raise Failed(f"it ended without a model: {last_line(said)}")
    return Made(found[0], time.monotonic() - start, setup_s)


def within(command: Sequence[str], seconds: float, doing: str, cwd: Path | None = None) -> str:
    """What the command wrote. It ends with its children when its time is over. Raises `Failed` with its last line."""
    with subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **QUIET},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise Failed(f"{doing} took over {seconds:.0f} s") from None
    if process.returncode:
        raise Failed(f"{doing} failed: {last_line(said)}")
    return said


def last_line(said: str) -> str:
    """What a program said last, for a table.

    >>> last_line("Traceback\\n  File x\\nModuleNotFoundError: No module named 'requests'\\n\\n")
    "ModuleNotFoundError: No module named 'requests'"
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0]]
    return " ".join((errors or lines or ["it said nothing"])[-1].split())[:240]


def _python(tool: Tool) -> str:
    return str(tool.folder / "venv" / "bin" / "python")


TOOLS = (
    Tool(
        "Intel Neural Compressor INT8",
        ("onnx-neural-compressor==1.0",),
        ("{bin}/python", "{script}/inc.py", "{model}", "{samples}", "{into}/model.onnx"),
        ("prettytable", "psutil", "py-cpuinfo", "scipy"),
    ),
    Tool(
        "Olive optimize INT8",
        ("olive-ai[cpu]==0.13.0",),
        (
            "{bin}/olive",
            "optimize",
            "-m",
            "{model}",
            "--precision",
            "int8",
            "--provider",
            "CPUExecutionProvider",
            "-o",
            "{into}/out",
            "--disable_telemetry",
        ),
        ("requests", "datasets"),
    ),
    Tool(
        "Olive run-pass OnnxDynamicQuantization",
        ("olive-ai[cpu]==0.13.0",),
        (
            "{bin}/olive",
            "run-pass",
            "--pass-name",
            "OnnxDynamicQuantization",
            "-m",
            "{model}",
            "-o",
            "{into}/out",
            "--disable_telemetry",
        ),
        ("requests", "datasets"),
    ),
    Tool(
        "Optimum quantize INT8 (dynamic)",
        ("optimum-onnx[onnxruntime]==0.1.0",),
        (
            "{bin}/optimum-cli",
            "onnxruntime",
            "quantize",
            "--onnx_model",
            "{folder}",
            "--avx512_vnni",
            "-o",
            "{into}/out",
        ),
        ("datasets",),
    ),
    Tool(
        "Optimum ORTQuantizer INT8 (static)",
        ("optimum-onnx[onnxruntime]==0.1.0",),
        ("{bin}/python", "{script}/optimum_onnx.py", "{model}", "{samples}", "{into}/model.onnx"),
        ("datasets",),
    ),
)
OPTIMUM_INTEL = tuple(
    Tool(
        f"Optimum Intel {name}",
        ("optimum-intel[nncf,openvino]==2.2.0", "openvino==2026.4.1", "nncf==3.4.0"),
        (
            "{bin}/python",
            "{script}/optimum_intel.py",
            how,
            "{source}",
            "{samples}",
            "{output}",
            "{into}/model.xml",
        ),
        harmful=("torchvision",),
    )
    for how, name in (("weights", "INT8 weights"), ("full", "INT8 (OVQuantizer)"))
)
"""For models that came as Hugging Face folders."""
TORCHAO = Tool("torchao INT8 (dynamic), compiled", ("torchao==0.18.0",))
