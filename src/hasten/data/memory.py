"""Samples that are in memory: a list of samples, or a PyTorch data loader whose batches are taken apart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hasten.data.fit import Row
from hasten.errors import InvalidInput


def rows(data: Any, names: Sequence[str]) -> Iterator[Row]:
    """One row a sample. `names` are the model's inputs, for samples that come in order instead of by name.

    An item is a dict of inputs, an array, or (inputs, label). A data loader's items are batches: every tensor of one
    is cut along its first axis.
    """
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | Mapping):
        raise InvalidInput(
            f"a {type(data).__name__} is no samples", "give a path, module:function, a list of samples or a data loader"
        )
    batched = is_loader(data)
    for number, item in enumerate(data):
        where = f"{'batch' if batched else 'sample'} {number}"
        inputs, label = item if isinstance(item, tuple | list) and len(item) == 2 else (item, None)
        named = _named(inputs, names, where)
        if not batched:
            yield Row(named, _plain(label), where)
            continue
        count = min((len(array) for array in named.values()), default=0)
        labels = [None] * count if label is None else _plain(label)
        if len(labels) != count:
            raise InvalidInput(f"{where} has {count} samples and {len(labels)} labels", "give one label a sample")
        for at in range(count):
            yield Row({name: array[at] for name, array in named.items()}, labels[at], f"{where}, row {at}")


def is_loader(data: Any) -> bool:
    """Whether `data` is a PyTorch DataLoader, told without importing PyTorch."""
    return any(base.__module__ == "torch.utils.data.dataloader" for base in type(data).__mro__)


def _named(inputs: Any, names: Sequence[str], where: str) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        return {str(name): _plain(value) for name, value in inputs.items()}
    values = list(inputs) if isinstance(inputs, tuple) else [inputs]
    if len(values) > len(names):
        raise InvalidInput(f"{where} has {len(values)} inputs, the model takes {', '.join(names)}", "yield a dict")
    return {name: _plain(value) for name, value in zip(names, values, strict=False)}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    return value.detach().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
