"""An event: what the loop tells whoever watches it, while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hasten.measurement import Trial

EventKind = Literal["stage", "progress", "trial", "round", "note", "done"]


@dataclass(frozen=True)
class Event:
    """One thing that happened. `fraction` is the share of the whole that is done, where it is known.

    "stage" opens a part of the loop, "progress" moves inside it, "trial" carries a finished `trial`, "round" a round of
    a race, "note" a sentence that belongs into the report, "done" the end.
    """

    kind: EventKind
    text: str = ""
    fraction: float | None = None
    trial: Trial | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


OnEvent = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The observer that nobody watches."""
