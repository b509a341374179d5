"""The parts that answers share: a light table, prose, notes and figures.

Everything fits within 100 columns, and within 80 with less in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hasten.measurement import Measurement
from hasten.report.words import LABELS, interval, say

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDE = 96
"""With fewer columns than this, the least of a table's columns are left out."""


def light(**options: Any) -> Table:
    """A table with one rule under its head and air between its columns."""
    return Table(
        box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, **options
    )


def sentence(text: str, style: str = "") -> Padding:
    """Prose under a table, set in from the left."""
    return Padding(Text(text, style=style), (0, 0, 0, 2), expand=False)


def heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def notes(said: Sequence[str]) -> Iterator[RenderableType]:
    if said:
        yield heading("Notes")
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(style="dim", width=3, justify="right")
        table.add_column()
        for note in said:
            table.add_row("·", note)
        yield table


def figures_table(measurements: dict[str, Measurement]) -> Table:
    """Figures down, subjects across; with one subject also where each figure came from."""
    alone = len(measurements) == 1
    table = light()
    table.add_column("Figure", no_wrap=True)
    for name in measurements:
        table.add_column("" if alone else name, justify="right", overflow="fold")
        table.add_column("95% interval", justify="right", no_wrap=True, style="dim")
    if alone:
        table.add_column("Source", style="dim", overflow="fold")
    for key, label in LABELS.items():
        found = [m.figures.get(key) for m in measurements.values()]
        if not any(found):
            continue
        row = [label]
        for figure in found:
            row += [say(figure), interval(figure)]
        if alone and found[0] is not None:
            row.append(found[0].source)
        table.add_row(*row)
    return table
