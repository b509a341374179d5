"""A fake runtime for people's own tests: deterministic outputs, a table of costs, and failures on demand."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal

from hasten.errors import Failed
from hasten.model import Model, Tensor
from hasten.runtimes.base import Availability, OperatorTime, Settings

if TYPE_CHECKING:
    from hasten.runtimes.base import Batch

Failure = Literal["raise", "crash", "hang", "allocate", "garbage", "exit"]


class FakeRuntime:
    """Accepts every format. Each output is the sum over the row's numbers in all inputs, repeated to its shape.

    `costs` maps an operator to its microseconds: what `operators` reports, and what `spend` (a fake clock's advance,
    or `time.sleep`) is called with, in seconds, at each run. `fail` chooses what a run does instead: raise an error,
    die of a segmentation fault, hang, allocate without bound, print garbage on stdout and then answer, or exit early.
    """

    accepts = frozenset({"onnx", "openvino", "fake"})
    precisions = ("fp32", "bf16", "fp16")

    def __init__(
        self,
        costs: Mapping[str, float] | None = None,
        fail: Failure | None = None,
        spend: Callable[[float], None] | None = None,
        name: str = "fake",
    ) -> None:
        self.name, self.costs, self.fail, self.spend = name, dict(costs or {}), fail, spend

    def availability(self) -> Availability:
        return Availability(True, version="0")

    def load(self, model: Model, settings: Settings) -> FakeSession:
        return FakeSession(self, model, settings)


class FakeSession:
    """`batches` keeps the input shapes of every run, in order, for tests to look at."""

    def __init__(self, runtime: FakeRuntime, model: Model, settings: Settings) -> None:
        self.runtime, self.model, self.settings = runtime, model, settings
        self.batches: list[dict[str, tuple[int, ...]]] = []
        self.closed = False

    def run(self, batch: Batch) -> dict[str, Any]:
        if self.runtime.fail is not None:
            _misbehave(self.runtime.fail)
        self.batches.append({name: array.shape for name, array in batch.items()})
        if self.runtime.spend is not None:
            self.runtime.spend(sum(self.runtime.costs.values()) * 1e-6)
        sums: Any = 0
        for array in batch.values():
            if array.dtype.kind in "biuf":
                sums = sums + array.reshape(array.shape[0], -1).sum(axis=1, dtype="float32")
        return {output.name: self._shaped(output, sums, batch) for output in self.model.signature.outputs}

    def _shaped(self, output: Tensor, sums: Any, batch: Batch) -> Any:
        """The row sums, repeated to the output's shape; an axis that no input names is 1 long."""
        import numpy as np

        sizes = {
            dim: size
            for tensor in self.model.signature.inputs
            for dim, size in zip(tensor.shape or (), batch[tensor.name].shape, strict=False)
        }
        inner = [dim if isinstance(dim, int) else sizes.get(dim, 1) for dim in (output.shape or ())[1:]]
        rows = sums.reshape(-1, *[1] * len(inner))
        return np.broadcast_to(rows, (len(sums), *inner)).copy()

    def submit(self, batch: Batch) -> Future[dict[str, Any]]:
        future: Future[dict[str, Any]] = Future()
        try:
            future.set_result(self.run(batch))
        except Exception as error:
            future.set_exception(error)
        return future

    def operators(self, batch: Batch, repeats: int = 10) -> list[OperatorTime]:
        return [OperatorTime(name, name, cost, "fake", (name,)) for name, cost in self.runtime.costs.items()]

    def close(self) -> None:
        self.closed = True


def _misbehave(how: Failure) -> None:
    if how == "raise":
        raise Failed("the fake runtime was told to fail")
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if how == "exit":
        os._exit(0)
    if how == "hang":
        while True:
            time.sleep(3600)
    if how == "allocate":
        hoard = []
        while True:
            hoard.append(bytearray(os.urandom(1 << 16) * 256))
    sys.stdout.write("\x00\xff garbage \x1b[31m{]\n" * 100)
    sys.stdout.flush()
