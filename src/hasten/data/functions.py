"""Reads samples from the user's own `module:function`, which yields `(inputs, label)` or inputs."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

from hasten.data.fit import Fitter, Row, expects
from hasten.errors import HastenError, InvalidInput


def rows(name: str, fitter: Fitter, label: str | None) -> Iterator[Row]:
    """The samples that the function yields; `inputs` is a dict, or a plain array where the model has one input."""
    from hasten.isolate import resolve

    inputs = [tensor.name for tensor in fitter.signature.inputs]
    found = guard(name, resolve(name))
    try:
        iterator = iter(found)
    except TypeError:
        raise InvalidInput(
            f"{name} returned a {type(found).__name__}, which gives no samples", "yield (inputs, label) or inputs"
        ) from None
    number = 0
    while True:
        try:
            item = guard(name, lambda: next(iterator))
        except StopIteration:
            return
        where = f"{name}: sample {number}"
        value, given = item if isinstance(item, tuple) and len(item) == 2 else (item, None)
        if not isinstance(value, dict):
            if len(inputs) != 1:
                raise InvalidInput(
                    f"{where} is a {type(value).__name__}, the model expects {expects(fitter.signature)}",
                    "yield a dict with one key an input",
                )
            value = {inputs[0]: value}
        if label is not None:
            if label not in value:
                raise InvalidInput(f"{where} has no label {label!r}", "yield it, or leave out --label")
            given = value[label]
            value = {key: array for key, array in value.items() if key != label}
        yield Row(value, given, where)
        number += 1


def guard(name: str, call: Callable[[], Any]) -> Any:
    """Call the user's code. Whatever it raises becomes an `InvalidInput` that says where."""
    try:
        return call()
    except (HastenError, StopIteration):
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise InvalidInput(
            f"{name} raised {type(error).__name__}: {error} ({frame.filename}, line {frame.lineno})",
            "repair the function: it runs in a process of its own",
        ) from error
