"""Fifteen models that exporters and runtimes find awkward: each function is a factory as a user would write it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from hasten.intake.module import flat

COUNT = 96
"""Samples of each model: enough to tell a small loss of quality from none."""
WIDTH = 16
PROBES = 12
ROWS = 600_000
"""Rows of the large table: 600,000 rows of 1,024 numbers are 2.46 GB."""


def rows(*shape: int, seed: int = 0) -> Iterator[np.ndarray]:
    draw = np.random.default_rng(seed)
    return (draw.normal(size=shape).astype(np.float32) for _ in range(COUNT))


def vectors() -> Iterator[dict[str, Any]]:
    return ({"x": x} for x in rows(WIDTH))


def layers(*widths: int, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    found: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        found += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*found[:-1])


# -- control flow that depends on the data


class Branches(nn.Module):
    """It looks at the sum of its whole batch to choose a way."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = layers(WIDTH, 32, 4), layers(WIDTH, 32, 4, seed=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x) if x.sum() > 0 else self.down(x)


def branches() -> nn.Module:
    return Branches()


# -- operations in place, on the input itself


class InPlace(nn.Module):
    """It overwrites what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.body = layers(WIDTH, 32, 4)
        self.register_buffer("scratch", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scratch.copy_(torch.linspace(0.5, 1.5, WIDTH))
        x.mul_(self.scratch)
        x[:, 0] = 1.0
        return self.body(x)


def in_place() -> nn.Module:
    return InPlace()


# -- complex numbers, and no parameters at all


class Spectrum(nn.Module):
    """Power in eight bands, by way of complex numbers; there is nothing to learn in it."""

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        power = torch.fft.rfft(wave * torch.hann_window(wave.shape[-1])).abs().square()
        return torch.log1p(power[:, 1:].unflatten(1, (8, -1)).sum(2))


def spectrum() -> nn.Module:
    return Spectrum()


def waves() -> Iterator[dict[str, Any]]:
    return ({"wave": x} for x in rows(128))


# -- an operator of the user's own


@torch.library.custom_op("hasten_awkward::soft_clip", mutates_args=())
def soft_clip(x: torch.Tensor) -> torch.Tensor:
    return x / (1 + x.abs())


@soft_clip.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = layers(WIDTH, 32), layers(32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(soft_clip(self.first(x)))


def custom() -> nn.Module:
    return Custom()


# -- tied weights, in a very deep graph


class Tied(nn.Module):
    """One layer that is applied sixty times, and an embedding that is also the head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(50, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, 50, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.words(ids)
        for _ in range(60):
            hidden = hidden + 0.05 * torch.tanh(self.layer(hidden))
        return self.out(hidden)


def tied() -> nn.Module:
    return Tied()


def sentences() -> Iterator[dict[str, Any]]:
    draw = np.random.default_rng(0)
    return ({"ids": draw.integers(0, 50, 8)} for _ in range(COUNT))


# -- more than 2 GB


def large(folder: Path) -> Path:
    """An ONNX file whose table of 2.46 GB is a hole in a file, so that neither making nor keeping it costs anything."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    table = TensorProto(name="table", data_type=TensorProto.FLOAT, dims=(ROWS, 1024))
    table.data_location = TensorProto.EXTERNAL
    size = 4 * ROWS * 1024
    for key, value in {"location": "large.bin", "offset": "0", "length": str(size)}.items():
        table.external_data.add(key=key, value=value)
    head = np.random.default_rng(0).normal(size=(WIDTH, 4)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("ReduceMean", ["rows"], ["mean"], axes=[1], keepdims=1),
            helper.make_node("MatMul", ["x", "head"], ["logits"]),
            helper.make_node("Add", ["logits", "mean"], ["scores"]),
        ],
        "large",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch"]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH]),
        ],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 4])],
        [table, numpy_helper.from_array(head, "head")],
    )
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "large.bin", "wb") as file:
        file.truncate(size)
    path = folder / "large.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )
    onnx.checker.check_model(str(path))
    return path


def numbered() -> Iterator[dict[str, Any]]:
    draw = np.random.default_rng(1)
    return ({"ids": np.int64(draw.integers(0, ROWS)), "x": x} for x in rows(WIDTH))


# -- inputs of several types, and weights of others


class Mixed(nn.Module):
    """Token numbers, half-precision features and a mask of truth values."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(50, WIDTH)
        self.low = nn.Linear(WIDTH, WIDTH).to(torch.bfloat16)
        self.high = nn.Linear(WIDTH, 4).to(torch.float64)

    def forward(self, ids: torch.Tensor, features: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        hidden = self.words(ids) + self.low(features.to(torch.bfloat16)).float()
        hidden = torch.where(keep[:, :, None], hidden, 0.0).mean(1)
        return self.high(hidden.double()).half()


def mixed() -> nn.Module:
    return Mixed()


def types() -> Iterator[dict[str, Any]]:
    draw = np.random.default_rng(0)
    for features in rows(8, WIDTH):
        yield {
            "ids": draw.integers(0, 50, 8),
            "features": features.astype(np.float16),
            "keep": draw.random(8) < 0.8,
        }


# -- dicts and tuples of outputs, and arguments that nobody gives


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = layers(WIDTH, 32, 8)

    def forward(self, x: torch.Tensor, bias: torch.Tensor | None = None, *, scale: float = 2.0) -> dict[str, Any]:
        hidden = self.body(x)
        if bias is not None:
            hidden = hidden + bias
        return {"scores": hidden, "rest": (hidden * scale, {"deep": hidden.sum(1)}), "nothing": None}


def nested() -> nn.Module:
    return Nested()


# -- axes of size zero


class Empty(nn.Module):
    """It puts what it remembers, which is nothing yet, in front of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.body = layers(WIDTH, 32, 4)

    def forward(self, x: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
        return self.body(torch.cat([past, x[:, None]], 1).sum(1))


def empty() -> nn.Module:
    return Empty()


def pasts() -> Iterator[dict[str, Any]]:
    return ({"x": x, "past": np.zeros((0, WIDTH), np.float32)} for x in rows(WIDTH))


# -- an empty batch


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = layers(WIDTH, 32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def without_rows() -> tuple[nn.Module, torch.Tensor]:
    """The example that comes with the module has no rows."""
    return Plain(), torch.zeros(0, WIDTH)


# -- an output whose shape depends on the data


class Nonzero(nn.Module):
    """The places of what is positive: as many as there happen to be."""

    def __init__(self) -> None:
        super().__init__()
        self.body = layers(WIDTH, 32, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nonzero(self.body(x) > 0)


def nonzero() -> nn.Module:
    return Nonzero()


# -- left in training mode


class Training(nn.Module):
    """Dropout and batch normalisation, and whoever trained it forgot to call `eval`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Linear(WIDTH, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 4)
        )
        for _ in range(20):
            self.body(torch.randn(32, WIDTH))
        self.train()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def training() -> nn.Module:
    return Training()


# -- a state that changes at each call


class Stateful(nn.Module):
    """Its answer depends on how often it was asked before."""

    def __init__(self) -> None:
        super().__init__()
        self.body = layers(WIDTH, 32, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.body(x) * self.calls


def stateful() -> nn.Module:
    return Stateful()


# -- chance


class Noisy(nn.Module):
    """It adds noise of its own to what it is given, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.body = layers(WIDTH, 32, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x + torch.randn_like(x))


def noisy() -> nn.Module:
    return Noisy()


# -- a loop over the sequence, and the batch in the second axis of what comes out


class Recurrent(nn.Module):
    """An LSTM and a loop in Python; PyTorch's recurrent layers give time first, batch second."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(8, WIDTH)
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        steps, _ = self.lstm(x.transpose(0, 1))
        state = torch.zeros(x.shape[0], WIDTH)
        for step in steps:
            state = self.cell(step, state)
        return steps, state


def recurrent() -> nn.Module:
    return Recurrent()


def series() -> Iterator[dict[str, Any]]:
    return ({"x": x} for x in rows(12, 8))


SAMPLES = {
    "branches": "vectors",
    "in_place": "vectors",
    "spectrum": "waves",
    "custom": "vectors",
    "tied": "sentences",
    "large": "numbered",
    "mixed": "types",
    "nested": "vectors",
    "empty": "pasts",
    "without_rows": "vectors",
    "nonzero": "vectors",
    "training": "vectors",
    "stateful": "vectors",
    "noisy": "vectors",
    "recurrent": "series",
}
"""Each model with the function that yields its samples."""


# -- in workers


def prepared(payload: dict[str, Any], scope: Any) -> dict[str, str]:
    """What is handed to `hasten optimize`: the names of two functions, or of a file that is made here."""
    name = payload["name"]
    model = str(large(Path(payload["folder"]))) if name == "large" else f"{__name__}:{name}"
    return {"model": model, "data": f"{__name__}:{SAMPLES[name]}"}


def judged(payload: dict[str, Any], scope: Any) -> float:
    """How far a bundle's outputs are from the model's own, for some samples one by one and all together."""
    import hasten

    name = payload["name"]
    samples = list(itertools.islice(globals()[SAMPLES[name]](), PROBES))
    wanted = [expected(name, sample) for sample in samples]
    with hasten.load(payload["bundle"], trust=True) as bundle:
        alone = [bundle.run([sample])[0] for sample in samples]
        together = bundle.run(samples)
    return max(apart(found, wanted) for found in (alone, together))


def expected(name: str, sample: dict[str, Any]) -> dict[str, np.ndarray]:
    """The model's own outputs for one sample, without batch axis."""
    if name == "large":
        return {"scores": sample["x"] @ np.random.default_rng(0).normal(size=(WIDTH, 4)).astype(np.float32)}
    module = globals()[name]()
    module = module[0] if isinstance(module, tuple) else module
    with torch.no_grad():
        found = module.eval()(**{key: torch.tensor(value)[None] for key, value in sample.items()})
    if name == "recurrent":
        return {"output_0": found[0][:, 0].numpy(), "output_1": found[1][0].numpy()}
    return {key: value[0].float().numpy() for key, value in flat(found).items()}


def apart(found: list[dict[str, np.ndarray]], wanted: list[dict[str, np.ndarray]]) -> float:
    """The norm of the difference over the norm, of the worst output; infinite for other names or shapes."""
    worst = 0.0
    for key in wanted[0]:
        if any(set(ours) != set(theirs) or ours[key].shape != theirs[key].shape
               for ours, theirs in zip(found, wanted, strict=True)):  # fmt: skip
            return float("inf")
        a, b = (np.stack([row[key] for row in rows]).astype(np.float64) for rows in (found, wanted))
        worst = max(worst, float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-6)))
    return worst
