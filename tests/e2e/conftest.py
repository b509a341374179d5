"""A user with empty folders, a small model with labelled samples, and the command line: in this process or its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e_case import CLASSES, FEATURES, Home, Said, answers, classifier

from hasten.cli import main
from hasten.diagnose import device as machine
from hasten.measurement import Figure


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """One user for all tests, whose machine was measured before: limits are made up, no test here needs true ones."""
    found = Home(tmp_path_factory.mktemp("user"))
    for folder in found.environment.values():
        Path(folder).mkdir()
    bare = machine.machine()
    rates = {"fp32": 150.0, "bf16": 400.0 if "amx_bf16" in bare.flags else 75.0}
    limits = {f"gemm_{name}_gflops": Figure(rate, "GFLOP/s", "measured") for name, rate in rates.items()}
    limits |= {"gemm_int8_gops": Figure(600.0, "GOP/s", "measured"), "read_gb_s": Figure(20.0, "GB/s", "measured")}
    limits |= {"copy_gb_s": Figure(10.0, "GB/s", "measured"), "dispatch_us": Figure(10.0, "us", "measured")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", found.environment["XDG_CACHE_HOME"])
        for cpus in (bare.cpus, bare.cpus[:1]):
            of = machine.machine(cpus)
            machine._write(
                machine.cache_folder() / f"device-{machine.key(of, 'full')}.json", replace(of, limits=limits)
            )
    return found


@pytest.fixture
def hasten(
    home: Home, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Said]:
    """`hasten("optimize", ...)` in this process and in an empty folder."""
    for name, folder in home.environment.items():
        monkeypatch.setenv(name, folder)
    monkeypatch.setenv("HASTEN_TESTS", str(os.getpid()))
    monkeypatch.delenv("HASTEN_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)

    def call(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["hasten", *map(str, arguments)])
        code = main()
        written = capfd.readouterr()
        return Said(code, written.out, written.err)

    return call


@pytest.fixture
def process(home: Home, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`process("optimize", ...)` starts the command in a session of its own, as a shell would in a terminal."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
        options.setdefault("cwd", tmp_path)
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; from hasten.cli import main; sys.exit(main())", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, **home.environment, "HASTEN_TESTS": str(os.getpid()), "PYTHONUNBUFFERED": "1"},
            **options,
        )
        started.append(child)
        return child

    yield start
    for child in started:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return classifier(tmp_path / "model.onnx")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Four hundred samples with labels, nine in ten of which the model gets right."""
    x = np.random.default_rng(1).normal(size=(400, FEATURES)).astype(np.float32)
    labels = answers(x)
    labels[::10] = (labels[::10] + 1) % CLASSES
    np.savez(tmp_path / "data.npz", x=x, label=labels)
    return tmp_path / "data.npz"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """`disk("size=64k")` is a disk of its own; skipped where this user may mount none."""
    mounted: list[Path] = []

    def mount(options: str) -> Path:
        path = tmp_path / f"disk{len(mounted)}"
        path.mkdir()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True)
        if made.returncode:
            pytest.skip("mounting a small disk needs root")
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)
