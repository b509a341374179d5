"""Modules that the tests bring, well-behaved and awkward: each function is a factory as a user would write it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.head = nn.Linear(8, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(image))


class Encoder(nn.Module):
    """Token numbers and mask to a pooled vector, as a small transformer does."""

    def __init__(self, vocabulary: int = 40, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        at = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.words(input_ids) + self.places(at)
        hidden = self.layers(hidden, src_key_padding_mask=attention_mask == 0)
        weight = attention_mask.to(hidden.dtype)[:, :, None]
        return {"hidden": hidden, "pooled": (hidden * weight).sum(1) / weight.sum(1)}


def cnn() -> Any:
    torch.manual_seed(0)
    return Cnn(), torch.randn(1, 3, 12, 12)


def bare_cnn() -> nn.Module:
    torch.manual_seed(0)
    return Cnn()


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return Encoder()


class Branches(nn.Module):
    """Control flow that depends on the data: no single graph holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(x) if x.sum() > 0 else self.down(x)


def branches() -> Any:
    torch.manual_seed(0)
    return Branches(), torch.randn(2, 4)


def unseeded() -> Any:
    return Branches(), torch.randn(2, 4)


class InPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[:, 0] = 1.0
        y.mul_(2).add_(x)
        return y


def in_place() -> Any:
    return InPlace(), torch.randn(2, 4)


class Overwriting(Branches):
    """It writes into its input and into a buffer, and cannot be exported."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scratch", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.scratch.copy_(torch.ones(4))
        return super().forward(x.mul_(2).add_(self.scratch))


def overwriting() -> Any:
    torch.manual_seed(0)
    return Overwriting(), torch.randn(2, 4)


class Doubling(nn.Module):
    """It writes into its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)


def doubling() -> Any:
    return Doubling(), torch.randn(2, 4)


def scripted() -> Any:
    """TorchScript: `inspect` finds no signature in it."""
    torch.manual_seed(0)
    return torch.jit.script(Cnn().eval())


class Complex(nn.Module):
    """Complex numbers inside, real ones outside."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x).abs()


def complex_inside() -> Any:
    return Complex(), torch.randn(2, 16)


class ComplexOut(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x)


def complex_out() -> Any:
    return ComplexOut(), torch.randn(2, 16)


@torch.library.custom_op("hasten_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return twice(self.linear(x))


def custom_op() -> Any:
    torch.manual_seed(0)
    return Custom(), torch.randn(2, 4)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.out = nn.Linear(8, 20, bias=False)
        self.out.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(ids))


def tied() -> Any:
    torch.manual_seed(0)
    return Tied(), torch.randint(0, 20, (2, 6))


class Mixed(nn.Module):
    """Weights in three types."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Linear(4, 4).to(torch.bfloat16)
        self.mid = nn.Linear(4, 4)
        self.high = nn.Linear(4, 4).to(torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.low(x.to(torch.bfloat16)).float()
        return self.high(self.mid(x).double()).float()


def mixed_types() -> Any:
    torch.manual_seed(0)
    return Mixed(), torch.randn(2, 4)


class Nested(nn.Module):
    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> dict[str, Any]:
        return {"first": x * scale, "rest": [x + 1, {"deep": x - 1}], "nothing": None}


def nested_outputs() -> Any:
    return Nested(), {"x": torch.randn(2, 4), "scale": torch.randn(2, 4)}


class NoRows(nn.Module):
    """An axis of size zero on the way."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x[:, :0]], dim=1)


def zero_size() -> Any:
    return NoRows(), torch.randn(2, 4)


class Stubborn(nn.Module):
    """It refuses a batch of any other size than that of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.ones(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.state


def fixed_batch() -> Any:
    return Stubborn(), torch.randn(2, 4)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0][:, -1]


def recurrent() -> Any:
    torch.manual_seed(0)
    return Recurrent(), torch.randn(2, 5, 4)


class Raises(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("not today")


def raises() -> Any:
    return Raises(), torch.randn(2, 4)


class Numbers(nn.Module):
    """It returns a Python number."""

    def forward(self, x: torch.Tensor) -> Any:
        return {"y": x, "count": 3}


def python_output() -> Any:
    return Numbers(), torch.randn(2, 4)


class Random(nn.Module):
    """Every call gives another answer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


def random_output() -> Any:
    return Random(), torch.randn(2, 4)


def not_a_module() -> Any:
    return 3


def samples(count: int = 24) -> Any:
    """Token numbers of mixed length with a label."""
    torch.manual_seed(1)
    for number in range(count):
        length = int(torch.randint(3, 20, ()))
        yield (
            {
                "input_ids": torch.randint(0, 40, (length,)).numpy(),
                "attention_mask": torch.ones(length, dtype=torch.int64).numpy(),
            },
            number % 2,
        )


def images(count: int = 24) -> Any:
    torch.manual_seed(2)
    for number in range(count):
        yield {"image": torch.randn(3, 12, 12).numpy()}, number % 5


def rows(count: int = 24) -> Any:
    torch.manual_seed(3)
    for _ in range(count):
        yield {"x": torch.randn(4).numpy()}
