"""Reads how images become inputs from one option, such as `resize=224,mean=0.485/0.456/0.406,std=0.225,layout=nchw`."""

from __future__ import annotations

from typing import Any

from hasten.errors import InvalidInput

EXAMPLE = "write it as resize=224,mean=0.485/0.456/0.406,std=0.229/0.224/0.225,layout=nchw, or as module:function"


def settings(text: str) -> dict[str, Any]:
    """Keyword arguments of `data.ingest`; sizes are HEIGHTxWIDTH or one number, channels are apart by a slash."""
    found: dict[str, Any] = {}
    for item in text.split(","):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in _READERS:
            raise InvalidInput(f"--preprocess {text}: {item.strip()!r} is none of {', '.join(_READERS)}", EXAMPLE)
        name, read = _READERS[key]
        try:
            found[name] = read(value.lower())
        except ValueError:
            raise InvalidInput(f"--preprocess {text}: cannot read the {key} {value!r}", EXAMPLE) from None
    return found


def _size(text: str) -> list[int]:
    sides = [int(side) for side in text.split("x")]
    if len(sides) > 2 or min(sides) < 1:
        raise ValueError
    return sides * 2 if len(sides) == 1 else sides


def _channels(text: str) -> list[float]:
    return [float(value) for value in text.split("/")]


def _layout(text: str) -> str:
    if text not in ("nchw", "nhwc"):
        raise ValueError
    return text.upper()


_READERS = {
    "resize": ("image_size", _size),
    "mean": ("mean", _channels),
    "std": ("std", _channels),
    "layout": ("layout", _layout),
}
