"""Where a command writes: tables for people, JSON for programs, and progress in between."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, InvalidInput
from hasten.events import OnEvent, ignore

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from hasten.cli.live import Watch

PLAIN_WIDTH = 100
"""Columns of a table that goes to a file or a pipe."""


@dataclass(frozen=True)
class Screen:
    """`json_to` is a file, "-" for standard output, or None. With "-" everything for people goes to standard error."""

    json_to: str | None = None
    quiet: bool = False

    def __post_init__(self) -> None:
        warnings.showwarning = _warn
        if self.json_to not in (None, "-") and not Path(str(self.json_to)).absolute().parent.is_dir():
            raise InvalidInput(f"--json {self.json_to}: its folder does not exist", "make the folder, or use --json -")

    @property
    def console(self) -> Console:
        """For people: as wide as the terminal, and of a fixed width elsewhere."""
        from rich.console import Console

        stream = sys.stderr if self.json_to == "-" else sys.stdout
        console = Console(file=stream, highlight=False, quiet=self.quiet)
        if not console.is_terminal and "COLUMNS" not in console._environ:
            console = Console(file=stream, highlight=False, quiet=self.quiet, width=PLAIN_WIDTH)
        return console

    def show(self, *parts: RenderableType) -> None:
        console = self.console
        if console.is_terminal:
            console.print(*parts, sep="\n")
            return
        with console.capture() as capture:
            console.print(*parts, sep="\n")
        console.file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))
        console.file.flush()

    def steps(self, steps: Sequence[tuple[str, str]]) -> None:
        """Where things are and what to run now. These lines are never wrapped or cut, so that they can be copied."""
        from rich.text import Text

        console, width = self.console, max(len(name) for name, _ in steps)
        console.print()
        for name, text in steps:
            console.print(Text.assemble("  ", (f"{name:<{width}}", "dim"), "  ", text), soft_wrap=True)

    def answer(self, data: Mapping[str, Any]) -> None:
        """Write the JSON where `--json` wants it."""
        if self.json_to is None:
            return
        text = json.dumps(data, indent=2, allow_nan=False, default=str)
        if self.json_to == "-":
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
            return
        try:
            Path(self.json_to).write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise Failed(
                f"cannot write {self.json_to}: {error.strerror}", "choose a place that can be written"
            ) from None

    @contextmanager
    def watching(self, watch: type[Watch] | None = None, **about: Any) -> Iterator[OnEvent]:
        """An observer for the verbs: a live display on a terminal, plain lines elsewhere, nothing with --quiet."""
        from hasten.cli.app import Interrupted

        try:
            if self.quiet:
                yield ignore
                return
            from hasten.cli.live import Line, Plain

            console = self.console
            chosen = (watch or Line) if console.is_terminal and not console.is_dumb_terminal else Plain
            with chosen(console, **about) as observer:
                yield observer
        except KeyboardInterrupt:
            raise Interrupted from None


def _warn(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: Any = None) -> None:
    """A warning is one line for people; where in the code it arose helps nobody who runs a command."""
    print(f"note: {message}", file=sys.stderr)
