"""Places labels beside points so that no label covers another or a point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

CHARACTER = 0.56
"""Average width of a character over the font size, for Helvetica-like fonts (measured on operator names)."""


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels, y growing downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def inside(self, width: float, height: float) -> bool:
        return self.left >= 0 and self.top >= 0 and self.right <= width and self.bottom <= height


@dataclass(frozen=True)
class Anchor:
    """A point at (x, y) in pixels with a marker of `radius` and the text that it should carry ("" for none)."""

    x: float
    y: float
    radius: float
    text: str = ""


@dataclass(frozen=True)
class Label:
    """Where a text goes: `x` is its left, middle or right end, as `align` says; `y` is its middle."""

    text: str
    x: float
    y: float
    align: Literal["left", "center", "right"]
    box: Box


def text_width(text: str, font_size: float) -> float:
    return len(text) * font_size * CHARACTER


def place(
    anchors: Sequence[Anchor],
    width: float,
    height: float,
    *,
    font_size: float = 11,
    taken: Sequence[Box] = (),
) -> list[Label]:
    """Labels for the anchors that have a text, the first ones first; what fits nowhere is left out."""
    markers = [Box(a.x - a.radius, a.y - a.radius, a.x + a.radius, a.y + a.radius) for a in anchors]
    used = list(taken)
    placed: list[Label] = []
    for number, anchor in enumerate(anchors):
        if not anchor.text:
            continue
        others = markers[:number] + markers[number + 1 :]
        for label in _candidates(anchor, font_size):
            free = not any(label.box.meets(box) for box in used) and not any(label.box.meets(box) for box in others)
            if free and label.box.inside(width, height):
                placed.append(label)
                used.append(label.box)
                break
    return placed


def _candidates(anchor: Anchor, font_size: float) -> list[Label]:
    """Right, left, above and below, then the corners, then the same a little farther out."""
    wide, half = text_width(anchor.text, font_size), font_size * 0.62
    found = []
    for gap in (anchor.radius + 5, anchor.radius + 14, anchor.radius + 26):
        up, down = anchor.y - gap - half, anchor.y + gap + half
        slant = gap * 0.75
        found += [
            _label(anchor.text, anchor.x + gap, anchor.y, "left", wide, half),
            _label(anchor.text, anchor.x - gap, anchor.y, "right", wide, half),
            _label(anchor.text, anchor.x, up, "center", wide, half),
            _label(anchor.text, anchor.x, down, "center", wide, half),
            _label(anchor.text, anchor.x + slant, anchor.y - slant - half, "left", wide, half),
            _label(anchor.text, anchor.x + slant, anchor.y + slant + half, "left", wide, half),
            _label(anchor.text, anchor.x - slant, anchor.y - slant - half, "right", wide, half),
            _label(anchor.text, anchor.x - slant, anchor.y + slant + half, "right", wide, half),
        ]
    return found


def _label(text: str, x: float, y: float, align: Literal["left", "center", "right"], wide: float, half: float) -> Label:
    left = {"left": x, "center": x - wide / 2, "right": x - wide}[align]
    return Label(text, x, y, align, Box(left, y - half, left + wide, y + half))
