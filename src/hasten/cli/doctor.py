"""`hasten doctor`: this machine, its measured limits, and what can be used on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from hasten import api
from hasten.cli import options
from hasten.cli.screen import Screen
from hasten.cli.tables import heading, light, notes
from hasten.events import Event
from hasten.measurement import Figure
from hasten.report.words import interval, say
from hasten.view.number import size

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hasten.diagnose.doctor import DeviceRow, Doctor, KindRow, LeverRow, RuntimeRow

    AnyRow = RuntimeRow | DeviceRow | LeverRow | KindRow


def command(
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure the limits again.")] = False,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> int:
    """The limits are measured once, through the installed runtimes, and remembered until something changes."""
    screen = Screen(json, quiet)
    with screen.watching() as watch:
        watch(Event("stage", "measuring the limits of this machine (once, then remembered)", 0.1))
        found = api.doctor(refresh=refresh)
    screen.show(*doctor_report(found))
    rows: Sequence[RuntimeRow | DeviceRow | KindRow] = [*found.runtimes, *found.devices, *found.kinds]
    missing = [(row.name, row.command) for row in rows if row.command and not row.usable]
    if missing:
        screen.show(heading("How to get the others"))
        screen.steps(missing)
    screen.answer(found.to_json())
    return 0


def doctor_report(found: Doctor) -> Iterator[RenderableType]:
    """The device and its limits, the runtimes, the levers, and how energy will be found."""
    device = found.device
    caches = ", ".join(f"{name} {size(amount)}" for name, amount in device.caches_bytes.items())
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    cores = len(device.cpus)
    facts.add_row("Device", f"{device.name}, {cores} core{'s' if cores != 1 else ''} may be used")
    facts.add_row("GPU", ", ".join(device.accelerators) or "none")
    facts.add_row("Memory", f"{size(device.memory_bytes)}, caches {caches}")
    facts.add_row("Energy", ("measured: " if found.energy_measured else "") + found.energy)
    facts.add_row("System", f"{found.system}, Python {found.python}")
    yield facts
    yield heading("Limits")
    yield limits_table(dict(device.limits))
    yield heading("Models")
    yield _plugins(("Kind",), [(row, []) for row in found.kinds])
    yield heading("Runtimes")
    yield _plugins(
        ("Runtime", "Version", "Takes", "Precisions"),
        [
            (
                row,
                [row.version, ", ".join(row.accepts), ", ".join(row.precisions)],
            )
            for row in found.runtimes
        ],
    )
    if device.accelerators and found.devices:
        yield _plugins(("On the GPU",), [(row, []) for row in found.devices])
    yield heading("Levers")
    yield _plugins(("Lever", "Needs"), [(row, [", ".join(row.needs) or "nothing"]) for row in found.levers])
    yield from notes(found.notes)


def _plugins(titles: Sequence[str], rows: Sequence[tuple[AnyRow, list[str]]]) -> Table:
    """Plugins of one kind; whoever is not hasten's own is named, and what cannot be used says why."""
    table = light()
    table.add_column("", width=1)
    for title in titles:
        table.add_column(title, overflow="fold")
    table.add_column("", style="dim", overflow="fold")
    for row, cells_ in rows:
        said = [row.reason] if not row.usable else []
        package = getattr(row, "package", "")
        said += [f"from {package}"] if package not in ("hasten", "") else []
        mark = Text("✓", style="green") if row.usable else Text("✗", style="red")
        table.add_row(mark, row.name, *cells_, "; ".join(said))
    return table


def limits_table(limits: dict[str, Figure]) -> Table:
    labels = {
        "gemm_fp32_gflops": "GEMM fp32",
        "gemm_bf16_gflops": "GEMM bf16",
        "gemm_fp16_gflops": "GEMM fp16",
        "gemm_int8_gops": "GEMM int8",
        "read_gb_s": "Memory, read",
        "copy_gb_s": "Memory, copy",
        "cache_gb_s": "Level 2 cache",
        "dispatch_us": "One operator, alone",
        "operator_us": "One more operator",
    }
    table = light()
    table.add_column("Limit", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("95% interval", justify="right", no_wrap=True, style="dim")
    table.add_column("Source", style="dim", overflow="fold")
    for key, figure in limits.items():
        table.add_row(labels.get(key, key), say(figure), interval(figure), figure.source.removeprefix("measured: "))
    return table
