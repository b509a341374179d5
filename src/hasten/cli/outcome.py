"""Runs a verb that ends in a study, and says how it came to its end: whole, interrupted, or refused by a bound."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from hasten.cli.app import INTERRUPTED
from hasten.cli.screen import Screen
from hasten.errors import GateRefused
from hasten.events import OnEvent
from hasten.study import Study


@dataclass(frozen=True)
class Outcome:
    """A study, the bundle that was asked for, and how it ended."""

    study: Study
    interrupted: bool
    refused: GateRefused | None
    out: Path | None

    @property
    def shipped(self) -> Path | None:
        """The bundle, if it was written."""
        return self.out if self.out is not None and self.refused is None and self.out.exists() else None

    def show(self, screen: Screen) -> None:
        """Print everything about the study."""
        from hasten.cli.trials import study_report

        screen.show(*study_report(self.study, screen.console.width))

    def end(self, screen: Screen, more: Sequence[tuple[str, str]] = ()) -> int:
        """Say where things are and what to run now, write the JSON, and return the exit code."""
        key = self.study.key[:12]
        steps = [] if self.shipped is None else [("Bundle", str(self.shipped))]
        steps.append(("Study", key))
        if self.interrupted:
            steps.append(("Go on", shlex.join(["hasten", *sys.argv[1:]])))
        steps += more or [("Report", f"hasten report {key}")]
        screen.steps(steps)
        screen.answer(self.study.to_json())
        if self.refused is not None:
            from hasten.cli.failures import show

            show(self.refused)
        return INTERRUPTED if self.interrupted else 0 if self.refused is None else self.refused.exit_code


def run(screen: Screen, title: str, budget_s: float, out: Path | None, verb: Callable[[OnEvent], Study]) -> Outcome:
    """Call `verb` with an observer that shows a live table."""
    from hasten.cli.live import Board

    refused = None
    with screen.watching(Board, budget_s=budget_s, title=title) as watch, interrupts() as pressed:
        try:
            study = verb(watch)
        except GateRefused as error:
            if not isinstance(error.study, Study):
                raise
            refused, study = error, error.study
    return Outcome(study, bool(pressed), refused, out)


@contextmanager
def interrupts() -> Iterator[list[int]]:
    """Remembers every Ctrl-C: the loop answers the first by ending well, and the exit code must still tell of it."""
    pressed: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        signal.default_int_handler(number, frame)

    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
