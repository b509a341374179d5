"""HTML written as nested calls that escape everything by default."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Union

Child = Union[str, "Markup", None, Iterable["Child"]]

_VOID = frozenset({"meta", "br", "hr", "line", "rect", "circle", "path", "col"})


class Markup(str):
    """Text that is already HTML. Everything else is escaped when it becomes a child or an attribute."""

    __slots__ = ()


def markup(child: Child) -> Markup:
    """`child` as HTML: markup stays, text is escaped, None is nothing, an iterable is its items in order."""
    if child is None:
        return Markup("")
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return Markup(html.escape(child, quote=False))
    return Markup("".join(markup(item) for item in child))


def el(tag: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Markup:
    """One element. `class_` is `class`, `_` in a name is `-`; True is a bare attribute, None and False are left out."""
    parts = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        text = f"{value:g}" if isinstance(value, float) else str(value)
        parts.append(name if value is True else f'{name}="{html.escape(text)}"')
    opening = " ".join(parts)
    if tag in _VOID:
        return Markup(f"<{opening}>" if tag in ("meta", "br", "hr", "col") else f"<{opening}/>")
    return Markup(f"<{opening}>{markup(children)}</{tag}>")
