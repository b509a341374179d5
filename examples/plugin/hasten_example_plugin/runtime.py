"""ONNX's own reference evaluator as a runtime: slow, and right by definition."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.model import Model
from hasten.runtimes import Availability, OperatorTime, Settings


class OnnxReference:
    """Executes ONNX models in plain NumPy, node by node."""

    name = "onnx-reference"
    accepts = frozenset({"onnx"})
    precisions = ("fp32",)

    def availability(self) -> Availability:
        try:
            return Availability(True, version=version("onnx"))
        except PackageNotFoundError:
            return Availability(False, "the package onnx is not installed", "pip install onnx")

    def load(self, model: Model, settings: Settings) -> ReferenceSession:
        if settings.precision not in (None, *self.precisions):
            raise InvalidInput(f"{self.name} computes in fp32, not in {settings.precision}")
        return ReferenceSession(model)


class ReferenceSession:
    def __init__(self, model: Model) -> None:
        import onnx
        from onnx.reference import ReferenceEvaluator

        try:
            self._evaluator = ReferenceEvaluator(onnx.load(str(model.path)))
        except Exception as error:
            raise Failed(f"the reference evaluator cannot load {model.path.name}: {error}") from None

    def run(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        try:
            outputs = self._evaluator.run(None, dict(batch))
        except Exception as error:
            raise Failed(f"the reference evaluator failed: {error}") from None
        return dict(zip(self._evaluator.output_names, outputs, strict=True))

    def submit(self, batch: Mapping[str, Any]) -> Future[dict[str, Any]]:
        future: Future[dict[str, Any]] = Future()
        try:
            future.set_result(self.run(batch))
        except Exception as error:
            future.set_exception(error)
        return future

    def operators(self, batch: Mapping[str, Any], repeats: int = 10) -> list[OperatorTime]:
        return []  # it has no profiler

    def close(self) -> None:
        pass
