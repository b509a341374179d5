"""A PyTorch module becomes an exported program (.pt2) of hasten's own form: tensors by name in, tensors by name out.

torch.export is asked to keep the batch axis, and every axis in which samples differ, dynamic; which of them it kept
is read from the program, and the program is run beside the module on every probe before it counts.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, HastenError, InvalidInput
from hasten.model import Dim, Model, Signature, Tensor

if TYPE_CHECKING:
    import numpy as np
    import torch

    Arrays = Mapping[str, np.ndarray]

TOLERANCE = 1e-3
"""The most that the exported program may differ from the module, as a share of the output's largest magnitude."""


class Untraceable(Failed):
    """torch.export cannot make a program of the module, or makes one that is not the same."""


def export(module: torch.nn.Module, probes: Sequence[Arrays], into: Path, name: str) -> Model:
    """Export `module`, write the program under `into` as `name`, and describe it.

    `probes` are batches (arrays by input name, batch axis included) that differ in every axis that shall be dynamic.
    Raises `InvalidInput` where the module does not run on them, and `Untraceable` where torch.export cannot trace it or
    the program gives other outputs.
    """
    with evaluating(module):
        return _exported(module, probes, into, name)


@contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """The module in evaluation mode, and then as it was; an exported program has one mode only."""
    was_training = module.training
    with contextlib.suppress(NotImplementedError):
        module.eval()
    try:
        yield
    finally:
        with contextlib.suppress(NotImplementedError):
            module.train(was_training)


def _exported(module: torch.nn.Module, probes: Sequence[Arrays], into: Path, name: str) -> Model:
    import torch

    from hasten.formats import pt2

    names = list(probes[0])
    named = Named(module, names)
    tensors, expected = run_probes(named, probes)
    program = _traced(named, tensors)
    strange = sorted({str(n.target) for n in program.graph.nodes if n.op == "call_function" and not _known(n.target)})
    if strange:
        raise Untraceable(f"the module has operators of its own ({', '.join(strange[:3])}), which live in its code")
    found = program.module()
    for row, wanted in zip(tensors, expected, strict=True):
        try:
            with torch.inference_mode():
                got = found(*row)
        except Exception as error:
            shapes = ", ".join(f"{n} {list(t.shape)}" for n, t in zip(names, row, strict=True))
            raise Untraceable(f"the exported program does not run on {shapes}: {first_line(error)}") from None
        worst = difference(got, wanted)
        if worst > TOLERANCE:
            raise Untraceable(
                f"the exported program's outputs differ from the module's by {worst:.2g} of their magnitude"
            )
    return pt2.write(program, names, list(expected[0]), into, name)


def _known(target: Any) -> bool:
    """Whether an operator comes with PyTorch, and not with somebody's code."""
    namespace = getattr(target, "namespace", None)
    return namespace in (None, "aten", "prims", "higher_order", "quantized", "quantized_decomposed", "inductor")


def run_probes(named: Any, probes: Sequence[Arrays]) -> tuple[list[list[Any]], list[dict[str, Any]]]:
    """The probes as tensors in order, and what the module makes of each: tensors by name, real ones.

    A module that writes into its inputs is given copies from then on.
    """
    import torch

    tensors = [[torch.from_numpy(array.copy()) for array in probe.values()] for probe in probes]
    with torch.inference_mode():
        expected = []
        for row in tensors:
            given = [tensor.clone() for tensor in row]
            expected.append(copy.deepcopy(_run(named, given)))  # a module may give what it writes into later
            if not all(torch.equal(before, after) for before, after in zip(row, given, strict=True)):
                named.writes = True
    for name, value in expected[0].items():
        if not isinstance(value, torch.Tensor):
            raise InvalidInput(f"output {name} of the module is a {type(value).__name__}, not a tensor")
        if value.is_complex():
            raise InvalidInput(f"output {name} of the module is complex", "return torch.view_as_real of it")
    return tensors, expected


def described(probes: Sequence[Arrays], outputs: Sequence[Mapping[str, Any]]) -> Signature:
    """The signature that the probes show: an axis whose size differs between them is dynamic, by a name for each way.

    The first axis that differs is `batch`, others `length`, `length_2`, ...; an output's axis that differs in a way of
    its own has no name.
    """
    names: dict[tuple[int, ...], str] = {}

    def dims(shapes: Sequence[Sequence[int]], own: bool) -> tuple[Dim, ...]:
        found: list[Dim] = []
        for axis, sizes in enumerate(zip(*shapes, strict=True)):
            if len(set(sizes)) == 1:
                found.append(int(sizes[0]))
                continue
            if own and sizes not in names:
                lengths = sum(name.startswith("length") for name in names.values())
                first = axis == 0 and "batch" not in names.values()
                names[sizes] = "batch" if first else "length" + (f"_{lengths + 1}" if lengths else "")
            found.append(names.get(sizes))
        return tuple(found)

    def kind(value: Any) -> str:
        name = str(value.dtype).removeprefix("torch.")
        return "float32" if name in ("bfloat16", "float16") and not hasattr(value, "flags") else name

    ins = [Tensor(n, str(a.dtype), dims([p[n].shape for p in probes], True)) for n, a in probes[0].items()]
    outs = [Tensor(n, kind(v), dims([tuple(o[n].shape) for o in outputs], False)) for n, v in outputs[0].items()]
    return Signature(tuple(ins), tuple(outs))


def from_example(module: torch.nn.Module, example: Any) -> dict[str, Any]:
    """The example inputs (a tensor, a tuple of them or a dict) as tensors by the module's own argument names."""
    import torch

    if isinstance(example, Mapping):
        given = dict(example)
    else:
        values = list(example) if isinstance(example, list | tuple) else [example]
        names = arguments(module, len(values))
        if len(values) > len(names):
            raise InvalidInput(f"the module takes {len(names)} inputs, and {len(values)} examples were given")
        given = dict(zip(names, values, strict=False))
    tensors = {name: torch.as_tensor(value) for name, value in given.items() if value is not None}
    if not tensors:
        raise InvalidInput("the example inputs are empty", "return (module, inputs) from the function")
    return tensors


def arguments(module: torch.nn.Module, count: int = 0) -> list[str]:
    """The names of what `forward` takes; `input_0` and so on (`count` of them) where it only says *args."""
    kinds = inspect.Parameter
    found = _parameters(module)
    names = [
        p.name for p in found if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    ]
    if not names or (len(names) < count and any(p.kind is kinds.VAR_POSITIONAL for p in found)):
        names = [f"input_{number}" for number in range(max(count, 1))]
    return names


def _parameters(module: torch.nn.Module) -> list[inspect.Parameter]:
    """What `forward` takes; TorchScript tells it by a schema of its own."""
    schema = getattr(module.forward, "schema", None)
    if schema is None:
        return list(inspect.signature(module.forward).parameters.values())
    return [inspect.Parameter(each.name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in schema.arguments[1:]]


def difference(got: Mapping[str, Any], wanted: Mapping[str, Any]) -> float:
    """The largest difference over all outputs (tensors or arrays), each as a share of its largest magnitude.

    Infinite for another shape, and where only one of two numbers is finite.
    """
    import numpy as np

    def wide(value: Any) -> np.ndarray:
        return value.double().numpy() if hasattr(value, "double") else np.asarray(value, np.float64)

    worst = 0.0
    for name, expected in wanted.items():
        if tuple(got[name].shape) != tuple(expected.shape):
            return float("inf")
        a, b = wide(got[name]), wide(expected)
        odd = ~np.isfinite(a) | ~np.isfinite(b)  # a mask may be minus infinity
        if not np.array_equal(a[odd], b[odd], equal_nan=True):
            return float("inf")
        a, b = a[~odd], b[~odd]
        if b.size:
            worst = max(worst, float(np.abs(a - b).max()) / max(1e-6, float(np.abs(b).max())))
    return worst


def Named(module: torch.nn.Module, names: Sequence[str], writes: bool = False) -> Any:
    """A module that takes the tensors called `names` in order and returns a flat dict of tensors by name.

    With `writes` the module inside is known to write into its inputs, and is given copies.
    """
    import torch

    by_position = _positional(module, names)

    class _Named(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module
            self.writes = writes

        def forward(self, *tensors: Any) -> dict[str, Any]:
            if self.writes:
                tensors = tuple(tensor.clone() for tensor in tensors)
            if by_position:
                return flat(self.inner(*tensors))
            return flat(self.inner(**dict(zip(names, tensors, strict=True))))

    named = _Named()
    named.training = False  # and the module inside as it is
    return named


def flat(value: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Outputs by name: keys of dicts, fields and places in tuples joined by dots; `output` where there is just one.

    >>> flat({"a": 1, "b": None, "c": (2, 3)})
    {'a': 1, 'c.0': 2, 'c.1': 3}
    """
    parts: Any = None
    if isinstance(value, Mapping):
        parts = value.items()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = zip(value._fields, value, strict=True)
    elif isinstance(value, tuple | list):
        parts = enumerate(value)
    if parts is not None:
        return {name: leaf for key, part in parts for name, leaf in flat(part, (*path, str(key))).items()}
    if value is None:
        return {}
    name = ".".join(path) or "output"
    return {f"output_{name}" if name[:1].isdigit() else name: value}


def _positional(module: torch.nn.Module, names: Sequence[str]) -> bool:
    """Whether the inputs go in by position: `forward` has no arguments of these names."""
    known = _parameters(module)
    keyword = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known)
    takes = {
        p.name for p in known if p.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)
    }
    return not keyword and not set(names) <= takes


def _run(named: torch.nn.Module, tensors: Sequence[Any]) -> dict[str, Any]:
    try:
        outputs: dict[str, Any] = named(*tensors)
    except HastenError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{list(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in tensors)
        raise InvalidInput(
            f"the module does not run on inputs of {shapes}: {type(error).__name__}: {first_line(error)}",
            "check the names, shapes and types of the samples",
        ) from None
    if not outputs:
        raise InvalidInput("the module returns nothing")
    return outputs


def _traced(named: torch.nn.Module, tensors: Sequence[Sequence[Any]]) -> Any:
    """The exported program. Axes in which the probes differ are dynamic where torch.export can keep them so."""
    import torch
    from torch.export import Dim

    axes = tuple(
        {axis: Dim.AUTO for axis, sizes in enumerate(zip(*(t.shape for t in same), strict=True)) if len(set(sizes)) > 1}
        for same in zip(*tensors, strict=True)
    )
    reasons = []
    largest = max(tensors, key=lambda row: sum(t.numel() for t in row))
    for strict in (False, True):
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.export.export(named, tuple(largest), dynamic_shapes=(axes,), strict=strict)
        except Exception as error:
            reasons.append(first_line(error))
    raise Untraceable(f"torch.export cannot trace the module: {reasons[0]}")


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
