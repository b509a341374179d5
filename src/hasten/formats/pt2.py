"""Exported PyTorch programs (.pt2) in hasten's own form: what they are called and take is told in `hasten.json` inside.

Loading one runs whatever its pickles and expressions say, so only those that hasten wrote itself, or that the user
trusts, may be opened; `inspect` reads nothing but the JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, InvalidInput
from hasten.formats.arithmetic import POOLS, RECURRENT, Known, flops, traffic
from hasten.model import Dim, Facts, Model, Operator, Signature, Tensor

if TYPE_CHECKING:
    import torch

DESCRIPTION = "hasten.json"
_MAX_JSON_BYTES = 64 << 20

KINDS = {
    "conv1d": "Conv", "conv2d": "Conv", "conv3d": "Conv", "convolution": "Conv", "conv_transpose2d": "ConvTranspose",
    "linear": "MatMul", "addmm": "Gemm", "mm": "MatMul", "bmm": "MatMul", "baddbmm": "MatMul", "matmul": "MatMul",
    "einsum": "Einsum", "scaled_dot_product_attention": "Attention", "layer_norm": "LayerNormalization",
    "group_norm": "GroupNormalization", "batch_norm": "BatchNormalization", "rms_norm": "RMSNormalization",
    "gelu": "Gelu", "relu": "Relu", "silu": "Swish", "sigmoid": "Sigmoid", "tanh": "Tanh", "softmax": "Softmax",
    "log_softmax": "LogSoftmax", "embedding": "Gather", "index_select": "Gather", "add": "Add", "sub": "Sub",
    "mul": "Mul", "div": "Div", "mean": "ReduceMean", "sum": "ReduceSum", "amax": "ReduceMax", "lstm": "LSTM",
    "gru": "GRU", "max_pool2d": "MaxPool", "avg_pool2d": "AveragePool", "adaptive_avg_pool2d": "GlobalAveragePool",
    "cat": "Concat", "permute": "Transpose", "transpose": "Transpose", "reshape": "Reshape", "view": "Reshape",
    "flatten": "Reshape", "clone": "Identity", "hardtanh": "Clip", "clamp": "Clip", "where": "Where", "pow": "Pow",
    "sqrt": "Sqrt", "rsqrt": "Sqrt", "exp": "Exp",
}  # fmt: skip
"""ATen's operators by the ONNX operator that does the same arithmetic; others keep their own names."""


def kind_of(target: Any) -> str:
    """The ONNX name of an FX node's target, or ATen's own.

    >>> kind_of("aten.conv2d.default"), kind_of("aten.add_.Tensor"), kind_of("aten.roll.default")
    ('Conv', 'Add', 'roll')
    """
    parts = str(target).split(".")
    name = parts[1] if len(parts) > 1 and parts[0] in ("aten", "prims") else parts[-1]
    name = name.strip("_").removeprefix("native_")
    return KINDS.get(name, name)


def write(
    program: torch.export.ExportedProgram, inputs: Sequence[str], outputs: Sequence[str], into: Path, name: str
) -> Model:
    """Save `program` as `<sha256>/<name>.pt2` under `into`. The hash is of its code and weights, not of the file."""
    import torch

    signature = _signature(program, inputs, outputs)
    digest = hashlib.sha256(program.graph_module.code.encode())
    digest.update(json.dumps([list(inputs), list(outputs)]).encode())
    stored = 0
    weights = {**program.state_dict, **{k: v for k, v in program.constants.items() if isinstance(v, torch.Tensor)}}
    for key, tensor in sorted(weights.items()):
        digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(content(tensor))
        stored += tensor.numel() * tensor.element_size()
    kinds = Counter(kind_of(node.target) for node in program.graph.nodes if node.op == "call_function")
    facts = Facts(
        sum(p.numel() for p in program.parameters()),
        stored,
        None,
        f"torch {torch.__version__}",
        dict(kinds),
    )
    folder = into / digest.hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.pt2"
    model = Model(path, "pt2", digest.hexdigest(), signature, facts)
    partial = folder / f"{os.getpid()}.part.pt2"
    try:
        torch.export.save(program, partial, extra_files={DESCRIPTION: json.dumps(model.to_json())})
        partial.replace(path)
    except OSError as error:
        raise Failed(f"the exported program cannot be written to {into}: {error.strerror}", "free some space") from None
    finally:
        partial.unlink(missing_ok=True)
    return model


def content(tensor: torch.Tensor) -> memoryview:
    """The tensor's bytes."""
    import torch

    flat = tensor.detach().cpu().contiguous().view(-1)
    found: memoryview = flat.view(torch.uint8).numpy().data
    return found


def inspect_pt2(path: Path) -> Model:
    """The handle of a program that hasten wrote. Raises `InvalidInput` for one that it did not."""
    try:
        with zipfile.ZipFile(path) as archive:
            entry = next((i for i in archive.infolist() if i.filename.endswith(f"/{DESCRIPTION}")), None)
            if entry is None or entry.file_size > _MAX_JSON_BYTES:
                raise InvalidInput(
                    f"{path.name} is an exported PyTorch program, and opening one can run code that it holds",
                    "pass --trust if you made it or trust who did",
                )
            return Model.from_json({**json.loads(archive.read(entry)), "path": str(path)})
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path.name} is not an exported PyTorch program: {error}", "save it again") from None
    except OSError as error:
        raise Failed(f"{path} cannot be read: {error.strerror}") from None


def open_program(path: Path, device: str = "cpu") -> torch.export.ExportedProgram:
    """Load the program to `device`, with what it makes itself when it runs: only for files that are trusted."""
    import logging

    import torch
    from torch.export.passes import move_to_device_pass

    logging.getLogger("torch.export").setLevel(logging.ERROR)
    try:
        program = torch.export.load(path)
        return program if device == "cpu" else move_to_device_pass(program, device)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise Failed(
            f"PyTorch cannot load {path.name}: {type(error).__name__}: {text}",
            "export it again with this version of torch",
        ) from None


def operators_of(path: Path, shapes: Mapping[str, Sequence[int]]) -> tuple[Operator, ...]:
    """Each node's arithmetic for inputs of these shapes: the program runs once on zeros, and every shape is noted."""
    import torch

    model = inspect_pt2(path)
    missing = [tensor.name for tensor in model.signature.inputs if tensor.name not in shapes]
    if missing:
        raise InvalidInput(f"no shape was given for the input {missing[0]}")
    graph = open_program(path).module(check_guards=False)
    weights = {name for name, _ in [*graph.named_parameters(), *graph.named_buffers()]}
    found: list[Operator] = []

    class Noting(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> Any:
            result = super().run_node(node)
            if node.op == "call_function":
                operator = _operator(node, self.env, result, weights)
                if operator is not None:
                    found.append(operator)
            return result

    example = [
        torch.zeros([int(n) for n in shapes[tensor.name]], dtype=getattr(torch, tensor.dtype))
        for tensor in model.signature.inputs
    ]
    with torch.inference_mode():
        Noting(graph, garbage_collect_values=False).run(*example)
    return tuple(found)


def _operator(node: torch.fx.Node, values: Mapping[Any, Any], result: Any, weights: set[str]) -> Operator | None:
    import torch

    produced = [t for t in (result if isinstance(result, list | tuple) else [result]) if isinstance(t, torch.Tensor)]
    if not produced:
        return None
    kind = kind_of(node.target)
    taken = [
        _known(value, argument.op == "get_attr" and str(argument.target) in weights)
        for argument in node.all_input_nodes
        if isinstance(value := values.get(argument), torch.Tensor)
    ]
    if kind == "Gemm":
        taken = [*taken[1:], *taken[:1]]  # ATen names the bias first
    made = [_known(tensor) for tensor in produced]
    moved, weight_bytes = traffic(kind, taken, made)
    counted = 0 if kind in RECURRENT else flops(kind, _attributes(node, kind), taken, made)
    return Operator(node.name, kind, counted, moved, weight_bytes, (node.name,), made[0].shape)


def _known(tensor: Any, weight: bool = False) -> Known:
    return Known(str(tensor.dtype).removeprefix("torch."), tuple(int(n) for n in tensor.shape), weight=weight)


def _attributes(node: torch.fx.Node, kind: str) -> dict[str, Any]:
    """What `flops` asks of an ONNX node."""
    if "linear" in str(node.target):
        return {"transB": 1}
    if kind == "Einsum":
        return {"equation": node.args[0]}
    if kind in POOLS and len(node.args) > 1 and isinstance(node.args[1], list | tuple):
        return {"kernel_shape": node.args[1]}
    return {}


def _signature(program: Any, inputs: Sequence[str], outputs: Sequence[str]) -> Signature:
    """Shapes from the program's own symbols: the first axis' is `batch`, others `length`, `length_2`, ..."""
    nodes = {node.name: node for node in program.graph.nodes}
    names: dict[str, str] = {}

    def dims(value: Any) -> tuple[Dim, ...]:
        found: list[Dim] = []
        for axis, size in enumerate(value.shape):
            text = str(size)
            if text.isdigit():
                found.append(int(text))
                continue
            if text not in names and text.replace("_", "").isalnum():
                others = sum(1 for name in names.values() if name.startswith("length"))
                first = axis == 0 and "batch" not in names.values()
                names[text] = "batch" if first else "length" + (f"_{others + 1}" if others else "")
            found.append(names.get(text))
        return tuple(found)

    def tensor(name: str, value: Any) -> Tensor:
        dtype = str(value.dtype).removeprefix("torch.")
        return Tensor(name, "float32" if dtype == "bfloat16" else dtype, dims(value))

    ins = [
        tensor(name, nodes[node].meta["val"])
        for name, node in zip(inputs, program.graph_signature.user_inputs, strict=True)
    ]
    outs = [
        tensor(name, nodes[node].meta["val"])
        for name, node in zip(outputs, program.graph_signature.user_outputs, strict=True)
    ]
    return Signature(tuple(ins), tuple(outs))
