"""The help of one command: its arguments, then its options in groups, in plain columns."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from typer.core import TyperCommand, TyperGroup

WIDEST = 100
LEFT = 26
"""Columns for an option's name and value; what is wider gets a line of its own."""


class HelpfulCommand(TyperCommand):
    """A command whose help looks like the overview."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write("\n".join(command_help(self, ctx)) + "\n")


class HelpfulGroup(TyperGroup):
    """A group of commands whose help looks like the overview."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        rows = [(name, command.get_short_help_str(WIDEST)) for name, command in self.commands.items()]
        lines = [*_text(self.help or ""), "", f"{_bold('Usage:')} {ctx.command_path} COMMAND [OPTIONS]", ""]
        formatter.write("\n".join([*lines, _bold("Commands"), *_rows(rows)]) + "\n")


def command_help(command: Any, ctx: Any) -> Iterator[str]:
    """The lines: what it does, how it is called, its arguments, and its options by group."""
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    groups: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.params:
        if parameter.param_type_name == "option" and not parameter.hidden:
            panel = getattr(parameter, "rich_help_panel", None) or "Options"
            groups.setdefault(panel, []).append((_names(parameter), _words(parameter)))
    yield from _text(command.help or "")
    yield ""
    called = " ".join([ctx.command_path, *(_metavar(p) for p in arguments), "[OPTIONS]"])
    yield f"{_bold('Usage:')} {called}"
    if arguments:
        yield ""
        yield _bold("Arguments")
        yield from _rows([(_metavar(p), p.help or "") for p in arguments])
    # What every command has comes last.
    for panel in sorted(groups, key=lambda name: name in ("Options", "Output")):
        yield ""
        yield _bold(panel)
        yield from _rows(groups[panel])


def _names(option: Any) -> str:
    names = ", ".join(sorted(option.opts, key=len))
    return names if option.is_flag else f"{names} {_metavar(option)}"


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _words(option: Any) -> str:
    default = option.default
    needless = default is None or default is False or default == () or default == [] or callable(default)
    shown = "required" if option.required else "" if needless or not option.show_default else f"default: {default}"
    return f"{option.help or ''} [{shown}]".strip() if shown else option.help or ""


def _rows(rows: list[tuple[str, str]]) -> Iterator[str]:
    for left, right in rows:
        lines = textwrap.wrap(right, _width() - LEFT - 2) or [""]
        if len(left) > LEFT - 2:
            yield f"  {left}"
            left = ""
        yield f"  {left:<{LEFT}}{lines[0]}".rstrip()
        for line in lines[1:]:
            yield " " * (LEFT + 2) + line


def _text(paragraphs: str) -> Iterator[str]:
    for place, paragraph in enumerate(paragraphs.split("\n\n")):
        if place:
            yield ""
        yield from textwrap.wrap(" ".join(paragraph.split()), _width())


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() else text


def _width() -> int:
    return min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
