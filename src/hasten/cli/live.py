"""Shows a verb at work: a live display on a terminal, plain lines elsewhere.

The observers only keep what they are told; a display thread draws it several times a second. So an event costs nothing
while something is being measured, and a Ctrl-C never finds a lock held.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from hasten.events import Event
from hasten.measurement import Trial

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

FRAMES_PER_S = 6.0
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
CHROME_LINES = 11
"""Lines of the live display that are not rows of its table."""


def clock_text(seconds: float) -> str:
    """0:07, 12:34 or 1:02:03."""
    whole = max(0, int(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


@dataclass
class Watch:
    """What every observer keeps: the stage, what moves inside it, the last note, and the time."""

    console: Console
    budget_s: float | None = None
    title: str = ""
    clock: Callable[[], float] = time.monotonic
    stage: str = "starting"
    detail: str = ""
    note: str = ""
    fraction: float = 0.0
    trials: dict[str, Trial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begun = self.clock()
        self.searching_since: float | None = None

    def __call__(self, event: Event) -> None:
        if event.kind == "stage":
            self.stage, self.detail = event.text, ""
        elif event.kind in ("progress", "round"):
            self.detail = event.text
        elif event.kind == "note":
            self.note = event.text
        elif event.kind == "trial" and event.trial is not None:
            self.trials[event.trial.id] = event.trial
            self._synchronise(event.fraction)
        if event.fraction is not None and event.kind != "progress":
            self.fraction = max(self.fraction, event.fraction)

    def _synchronise(self, fraction: float | None) -> None:
        """A trial's fraction is the share of the budget that is spent, which tells when the search began."""
        if self.budget_s and fraction is not None and self.searching_since is None:
            self.searching_since = self.clock() - fraction * self.budget_s

    @property
    def elapsed(self) -> float:
        return self.clock() - self.begun

    @property
    def share(self) -> float:
        """How much is done: of the budget where there is one."""
        if self.budget_s and self.searching_since is not None:
            return min(0.99, max((self.clock() - self.searching_since) / self.budget_s, 0.0))
        return min(self.fraction, 0.99)

    @property
    def time_words(self) -> str:
        if self.budget_s is None:
            return clock_text(self.elapsed)
        if self.searching_since is None:
            return f"{clock_text(self.elapsed)}, budget {clock_text(self.budget_s)}"
        left = self.budget_s - (self.clock() - self.searching_since)
        return f"{clock_text(left)} left of {clock_text(self.budget_s)}" if left > 0 else "finishing"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


@dataclass
class Plain(Watch):
    """One line for each thing that happened, with the time since the start."""

    said: str = ""

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if event.kind == "trial" and event.trial is not None:
            self._say("  " + trial_line(event.trial))
        elif event.kind in ("stage", "note"):
            self._say(event.text)
        elif event.kind == "progress" and event.text:
            self._say(f"  {event.text}")

    def _say(self, text: str) -> None:
        if text == self.said:
            return
        self.said = text
        self.console.print(
            f"[{clock_text(self.elapsed):>5}] {text}", markup=False, soft_wrap=True, no_wrap=True, overflow="ignore"
        )


def trial_line(trial: Trial) -> str:
    """A trial in one line of plain text."""
    from hasten.cli import cells

    spread = cells.interval(trial.speedup)
    parts = [
        f"{cells.speedup(trial):>7}",
        f"({spread})" if spread else "",
        cells.name(trial).plain,
        cells.status(trial).plain,
    ]
    return "  ".join(part for part in parts if part)


@dataclass
class Line(Watch):
    """A spinner, the stage and a bar: for verbs that have no table to show while they work."""

    def __enter__(self) -> Self:
        from rich.live import Live

        self._live = Live(_Drawn(self.draw), console=self.console, refresh_per_second=FRAMES_PER_S, transient=True)
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def draw(self) -> Iterator[RenderableType]:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        spin = SPINNER[int(self.elapsed * FRAMES_PER_S) % len(SPINNER)]
        grid = Table.grid(expand=True, padding=(0, 1))
        grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        grid.add_column(justify="right", no_wrap=True)
        grid.add_row(Text.assemble((f"{spin} ", "cyan"), (self.stage, "bold")), Text(self.time_words, style="dim"))
        bar = ProgressBar(total=1.0, completed=self.share, complete_style="cyan", finished_style="cyan")
        grid.add_row(bar, Text(f"{self.share:.0%}", style="dim"))
        yield grid
        if self.detail:
            yield Text(f"  {self.detail}", style="dim", no_wrap=True, overflow="ellipsis")
        if self.note:
            yield Text(f"  {self.note}", style="yellow", no_wrap=True, overflow="ellipsis")


@dataclass
class Board(Line):
    """The live table of a study: best on top, with the stage and the time left under it."""

    def draw(self) -> Iterator[RenderableType]:
        from rich.text import Text

        if self.title:
            yield Text(self.title, style="dim", no_wrap=True, overflow="ellipsis")
            yield Text("")
        if self.trials:
            yield self.table()
            yield Text("")
        yield from super().draw()

    def table(self) -> Table:
        from rich.text import Text

        from hasten.cli import cells
        from hasten.cli.tables import light

        rows = sorted(list(self.trials.values()), key=cells.order)
        room = max(3, self.console.height - CHROME_LINES)
        hidden = len(rows) - room if len(rows) > room else 0
        table = light(expand=True)
        table.add_column("Recipe", no_wrap=True, overflow="ellipsis", ratio=3, min_width=20)
        table.add_column("Speed-up", justify="right", no_wrap=True)
        table.add_column("95% interval", justify="right", no_wrap=True, style="dim")
        table.add_column("Drop", justify="right", no_wrap=True)
        table.add_column("Status", no_wrap=True, overflow="ellipsis", ratio=2, min_width=12)
        for place, trial in enumerate(rows[: len(rows) - hidden]):
            winning = place == 0 and trial.status == "ok" and trial.origin == "search"
            table.add_row(
                cells.name(trial),
                cells.speedup(trial),
                cells.interval(trial.speedup),
                cells.drop(trial),
                cells.status(trial),
                style="bold" if winning else cells.STYLE[trial.status] if trial.status == "rejected" else "",
            )
        if hidden:
            table.add_row(Text(f"and {hidden} more", style="dim"))
        return table


@dataclass(frozen=True)
class _Drawn:
    """Draws anew at every frame."""

    draw: Callable[[], Iterator[RenderableType]]

    def __rich_console__(self, console: Console, options: Any) -> Iterator[RenderableType]:
        yield from self.draw()
