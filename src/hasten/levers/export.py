"""Export: an exported PyTorch program becomes an ONNX file or OpenVINO's own, so that their runtimes can run it.

Both ways are tried, and they differ: ONNX takes attention apart and lets the graph levers in, OpenVINO keeps it whole.
Each result is run beside the program before it counts.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.formats import pt2
from hasten.intake import factory
from hasten.intake.module import difference
from hasten.levers.base import Case, Need, Prediction, Proposal
from hasten.levers.modelfile import (
    EXTERNAL_ABOVE_BYTES,
    fresh_folder,
    options_of,
    part_of,
    same_signature,
    save_openvino,
)
from hasten.levers.prediction import default_runtime, rate
from hasten.model import Model
from hasten.recipe import Step
from hasten.variant import Variant

DEFAULTS: dict[str, Any] = {"to": "onnx"}
"""Every option and its default. to: onnx or openvino."""

TARGETS = ("onnx", "openvino")
RUNTIMES = {"onnx": ("openvino", "onnxruntime"), "openvino": ("openvino",)}
PRIOR = Prediction(1.5, "prior: a compiled graph over PyTorch eager (1 to 3x measured on CPUs)")
BF16 = 1.2
TOLERANCE = 1e-2
"""The most that an exported graph may differ from the program, as a share of the output's largest magnitude."""
PROBES = 3


class Export:
    name = "export"
    needs = frozenset({Need.TORCH})
    converts: Mapping[str, tuple[str, ...]] = {"pt2": TARGETS, "torch": TARGETS}

    def refuse(self, case: Case) -> str | None:
        if case.workload.model.format not in self.converts:
            return f"the model is {case.workload.model.format} already"
        if case.recipe.steps:
            return "the recipe has exported it already"
        return None

    def propose(self, case: Case) -> Iterable[Proposal]:
        if self.refuse(case):
            return
        for target in reversed(TARGETS):
            for runtime in RUNTIMES[target]:
                if runtime not in case.runtimes:
                    continue
                step = Step(self.name, {"to": target})
                fp32 = case.recipe.with_step(step).edit("runtime", name=runtime, precision=None, device=None)
                way = "through ONNX" if target == "onnx" else "directly"
                if runtime == "onnxruntime":
                    yield Proposal(
                        fp32.edit("runtime", precision="fp32"),
                        PRIOR,
                        "export to ONNX and execute on ONNX Runtime",
                        self.name,
                    )
                    continue
                yield Proposal(
                    fp32.edit("runtime", precision="fp32"), PRIOR, f"export {way} to OpenVINO, at fp32", self.name
                )
                ratio = rate(case.device, "bf16")
                if ratio > BF16:
                    gain = Prediction(PRIOR.factor * min(ratio, 4.0) ** 0.5, f"{PRIOR.source}, and bf16's rate")
                    why = f"export {way} to OpenVINO, in bf16, which this processor multiplies faster"
                    yield Proposal(fp32.edit("runtime", precision="bf16"), gain, why, self.name)

    def apply(self, variant: Variant, step: Step, case: Case) -> Variant:
        from hasten import formats

        model = part_of(variant, step)
        target = options_of(step, DEFAULTS)["to"]
        if target not in TARGETS:
            raise InvalidInput(f"export knows no format {target!r}", f"use one of: {', '.join(TARGETS)}")
        if model.format not in self.converts:
            raise InvalidInput(f"export takes PyTorch models, and this one is {model.format}", "leave the step out")
        folder = fresh_folder(case.workdir, self.name)
        write = to_onnx if target == "onnx" else to_openvino
        found = same_signature(model, formats.inspect(write(model, folder)), self.name)
        check(model, found, case)
        return variant.with_part(step.part, found)


def to_onnx(model: Model, folder: Path) -> Path:
    """Write the program as ONNX by PyTorch's own exporter."""
    import onnx
    import torch

    from hasten.levers.modelfile import save_onnx

    try:
        import onnxscript  # noqa: F401  the exporter needs it
    except ImportError:
        raise InvalidInput("exporting to ONNX needs onnxscript", "install the extra", "pip install 'hasten[torch]'") \
            from None  # fmt: skip
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    whole = model.format == "pt2"
    program = pt2.open_program(model.path) if whole else factory.reopened(model)
    names: dict[str, Any] = {
        "input_names": [t.name for t in model.signature.inputs],
        "output_names": [t.name for t in model.signature.outputs],
    }
    large = model.facts.size_bytes > EXTERNAL_ABOVE_BYTES
    raw = folder / "exported.onnx"
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if whole:
                torch.onnx.export(program, (), raw, **names, dynamo=True, external_data=large, verbose=False)
            else:  # what cannot be exported may still be traced; where that goes another way, the check finds it
                axes = {
                    t.name: {
                        axis: f"{t.name}_{axis}" for axis, dim in enumerate(t.shape or ()) if not isinstance(dim, int)
                    }
                    for t in (*model.signature.inputs, *model.signature.outputs)
                }
                torch.onnx.export(_in_order(program), _example(model), raw, **names, dynamic_axes=axes, dynamo=False)
    except Exception as error:
        raise Failed(f"PyTorch cannot export the program to ONNX: {_told(error)}") from None
    if large:
        return raw
    proto = onnx.load(str(raw))
    raw.unlink()
    forget_traces(proto)
    return save_onnx(proto, folder / "model.onnx")


def forget_traces(proto: Any) -> None:
    """Remove what the exporter notes of the source code: it holds paths of this machine and stack traces."""
    del proto.metadata_props[:]
    graphs = [proto.graph, *proto.functions]
    for graph in graphs:
        parts = [graph, *graph.node]
        for field in ("value_info", "input", "output", "initializer"):
            parts += [part for part in getattr(graph, field, ()) if not isinstance(part, str)]
        for part in parts:
            del part.metadata_props[:]
            part.doc_string = ""


def to_openvino(model: Model, folder: Path) -> Path:
    """Write the program as OpenVINO's own format, from the exported program, else from a TorchScript trace of it."""
    import torch

    from hasten.runtimes.openvino_graph import import_openvino

    ov = import_openvino()
    if model.format == "pt2":
        program = pt2.open_program(model.path)
        ways = [lambda: ov.convert_model(program), lambda: _traced(ov, program.module(check_guards=False), model)]
    else:
        ways = [lambda: _traced(ov, factory.reopened(model), model)]
    reasons = []
    for convert in ways:
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                graph = convert()
            _name(graph, model)
            return save_openvino(graph, folder / "model.xml")
        except Exception as error:
            reasons.append(_told(error))
    raise Failed(f"OpenVINO cannot convert the program: {'; nor a trace of it: '.join(reasons)}")


def check(before: Model, after: Model, case: Case) -> None:
    """Run both on a few calibration samples, alone and, where their shapes agree, together: outputs must agree."""
    import numpy as np

    from hasten.data import SampleSet
    from hasten.runtimes import Settings, runtime

    known = SampleSet.open(case.workload.samples.path)
    names = [tensor.name for tensor in before.signature.inputs]
    rows = [{name: known[i][name] for name in names} for i in case.split.calibration[:PROBES]]
    batched = [t.name for t in before.signature.inputs if t.shape and len(t.shape) == rows[0][t.name].ndim + 1]
    batches = [{n: (a[None] if n in batched else a) for n, a in row.items()} for row in rows]
    fixed = any(isinstance(t.shape[0], int) for t in before.signature.inputs if t.name in batched and t.shape)
    alike = [row for row in rows if all(row[n].shape == rows[0][n].shape for n in row)]
    if batched and not fixed:
        first = alike[0]
        pair = (first, alike[-1])
        batches.append({n: np.stack([row[n] for row in pair]) if n in batched else first[n] for n in first})
    exact = Settings(precision="fp32")
    with_ = default_runtime(after.format)
    one = runtime("torch").load(before, exact)
    try:
        other = runtime(with_).load(after, exact)
        try:
            for batch in batches:
                worst = difference(other.run(batch), one.run(batch))
                if not worst <= TOLERANCE:
                    raise Failed(f"the exported graph's outputs differ by {worst:.2g} of their magnitude")
        finally:
            other.close()
    finally:
        one.close()


def _name(graph: Any, model: Model) -> None:
    """Give the graph's ports the names that the program's inputs and outputs have."""
    for ports, tensors in ((graph.inputs, model.signature.inputs), (graph.outputs, model.signature.outputs)):
        if len(ports) != len(tensors):
            raise Failed(f"the graph has {len(ports)} ports where the program has {len(tensors)}")
        for port, tensor in zip(ports, tensors, strict=True):
            port.get_tensor().set_names({tensor.name})


def _traced(ov: Any, module: Any, model: Model) -> Any:
    return ov.convert_model(_in_order(module), example_input=_example(model))


def _in_order(module: Any) -> Any:
    """The module with its outputs as a tuple: a trace holds no dict."""
    import torch

    class InOrder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *tensors: Any) -> tuple[Any, ...]:
            return tuple(self.inner(*tensors).values())

    return InOrder().eval()


def _example(model: Model) -> tuple[Any, ...]:
    """Zeros of the signature's shapes, dynamic axes of length 2."""
    import torch

    return tuple(
        torch.zeros([n if isinstance(n, int) else 2 for n in tensor.shape or ()], dtype=getattr(torch, tensor.dtype))
        for tensor in model.signature.inputs
    )


def _told(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:300]}"
