"""What a command answered, the folders of a user, and a small model with labels."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hasten.isolate.worker import MARK
from hasten.lab.store import Store

CLASSES, FEATURES = 4, 16


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def plain(self) -> bool:
        """Whether nothing was said that only a developer can read."""
        return not any(word in self.out + self.err for word in ("Traceback", "internal error", '.py", line'))


@dataclass(frozen=True)
class Home:
    """The folders of a user: nothing that a test does leaves them."""

    root: Path

    @property
    def environment(self) -> dict[str, str]:
        folders = {"XDG_DATA_HOME": "data", "XDG_CACHE_HOME": "cache", "TMPDIR": "tmp", "HOME": "home"}
        return {name: str(self.root / folder) for name, folder in folders.items()}

    @property
    def leftovers(self) -> list[str]:
        """Temporary files, half-written samples and bundles, saved tracebacks, and workers that still run."""
        found = [str(path) for path in (self.root / "tmp").rglob("*") if "torchinductor_" not in str(path)]  # PyTorch's
        found += [str(path) for path in (self.root / "cache" / "hasten").glob("errors/*")]
        found += [str(path) for path in self.root.rglob("*.part") if path.exists()]
        return found + [f"worker {pid}" for pid in workers()]

    def settled(self) -> list[str]:
        """What is left behind, once workers that are on their way out have had time to go."""
        deadline = time.monotonic() + 20
        while (found := self.leftovers) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    @property
    def store(self) -> Path:
        return self.root / "data" / "hasten" / "store.db"

    def studies(self) -> list[str]:
        """The keys of all studies that are stored."""
        return [entry.key for entry in Store(self.store).studies()] if self.store.exists() else []


def workers() -> list[int]:
    """Living worker processes that descend from this one, told by the mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        ours = f"HASTEN_TESTS={os.getpid()}".encode() in environment
        if ours and state != "Z" and any(line.startswith(f"{MARK}=".encode()) for line in environment):
            found.append(int(entry.name))
    return found


def classifier(path: Path, *, opset: int = 17, external: str = "") -> Path:
    """Logits of four classes from sixteen features; with `external` its weights lie in that file."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.normal(size=(FEATURES, 32)).astype(np.float32),
        "w2": rng.normal(size=(32, CLASSES)).astype(np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w1"], ["h"], name="first"),
            helper.make_node("Relu", ["h"], ["r"], name="clip"),
            helper.make_node("MatMul", ["r", "w2"], ["logits"], name="second"),
        ],
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", FEATURES])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    if external:
        onnx.save(model, str(path), save_as_external_data=True, location=external, size_threshold=0)
    else:
        onnx.save(model, str(path))
    return path


def answers(x: np.ndarray) -> np.ndarray:
    """What `classifier` says of each row of `x`."""
    rng = np.random.default_rng(0)
    w1 = rng.normal(size=(FEATURES, 32)).astype(np.float32)
    w2 = rng.normal(size=(32, CLASSES)).astype(np.float32)
    return np.argmax(np.maximum(x @ w1, 0) @ w2, axis=1)


def fill(folder: Path) -> None:
    """Leave no room on the disk of a folder."""
    with open(folder / "full", "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 4096)
        except OSError:
            return
