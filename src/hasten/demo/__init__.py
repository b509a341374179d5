"""Real models with real labelled data, ready to be made faster: what `hasten demo` runs on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hasten.errors import InvalidInput


@dataclass(frozen=True)
class Demo:
    """A workload with nothing to set up. `model` and `data` are what `hasten optimize` takes."""

    name: str
    title: str
    model: str
    data: str
    metric: str | None
    max_drop: str
    budget_s: float
    beside: str = ""
    new_tokens: int | None = None


def demo(name: str) -> Demo:
    """The demo called `name`. Raises `InvalidInput` for another name, or for what it needs and is not installed."""
    if name not in DEMOS:
        raise InvalidInput(f"there is no demo called {name!r}", f"use one of: {', '.join(DEMOS)}")
    return DEMOS[name]()


def _vision() -> Demo:
    from hasten.demo import vision

    return vision.demo()


def _text() -> Demo:
    from hasten.demo import text

    return text.demo()


def _llm() -> Demo:
    from hasten.demo import llm

    return llm.demo()


DEMOS: Mapping[str, Callable[[], Demo]] = {"vision": _vision, "text": _text, "llm": _llm}
