"""Tables for a terminal, as rich Tables: of a device, its runtimes, a profile's operators, a measurement, a study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hasten.device import Device
from hasten.measurement import Figure, Measurement, Trial
from hasten.study import Study
from hasten.view.number import count, figure, microseconds, percent, ratio, short, size

if TYPE_CHECKING:
    from rich.table import Table

STATUS = {"ok": "green", "rejected": "dim", "undecided": "yellow", "failed": "red"}
LIMITS = {
    "gemm_fp32_gflops": "matrix product, fp32",
    "gemm_bf16_gflops": "matrix product, bf16",
    "gemm_fp16_gflops": "matrix product, fp16",
    "gemm_int8_gops": "matrix product, int8",
    "read_gb_s": "memory, read",
    "copy_gb_s": "memory, copy",
    "cache_gb_s": "level 2 cache, read",
    "dispatch_us": "one call",
    "operator_us": "one more operator",
}
FIGURES = {
    "latency_ms.p50": "p50",
    "latency_ms.p90": "p90",
    "latency_ms.p99": "p99",
    "latency_ms.p999": "p99.9",
    "throughput_per_s": "throughput",
    "peak_memory_mb": "peak memory",
    "size_mb": "size",
    "energy_j_per_inference": "energy",
    "cost_per_million": "cost per million",
    "co2e_g_per_million": "CO2e per million",
}


@dataclass(frozen=True)
class Column:
    """`fold` lets long cells take several lines; other cells are cut with an ellipsis."""

    title: str
    align: Literal["left", "right"] = "left"
    fold: bool = False


def table(title: str, columns: Sequence[Column], rows: Iterable[Sequence[str]], styles: Sequence[str] = ()) -> Table:
    """A plain table. Cells are text, not markup; `styles` has one style for each row."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    found = Table(title=title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        found.add_column(
            column.title, justify=column.align, overflow="fold" if column.fold else "ellipsis", no_wrap=not column.fold
        )
    for number, row in enumerate(rows):
        style = styles[number] if number < len(styles) else ""
        found.add_row(*(Text(cell) for cell in row), style=style or None)
    return found


def device(given: Device) -> Table:
    """What the machine is and its measured limits, each with its source."""
    caches = ", ".join(f"{name} {size(value)}" for name, value in given.caches_bytes.items())
    rows = [
        ["processor", given.name, ", ".join(given.flags)],
        ["cores", str(len(given.cpus)), ", ".join(map(str, given.cpus))],
        ["memory", size(given.memory_bytes), ""],
        ["caches", caches, ""],
    ]
    rows += [[LIMITS.get(name, name), f"{figure(f)} {f.unit}", f.source] for name, f in given.limits.items()]
    return table("Device", [Column("what"), Column("value", fold=True), Column("from", fold=True)], rows)


def runtimes(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The `runtimes` of a doctor's JSON."""
    return table(
        "Runtimes",
        [Column("name"), Column("version"), Column("loads"), Column("precisions"), Column("otherwise", fold=True)],
        [
            [
                row["name"],
                row["version"] or "–",
                ", ".join(row["accepts"]),
                ", ".join(row["precisions"]),
                "" if row["usable"] else " · ".join(filter(None, (row["reason"], row["command"]))),
            ]
            for row in rows
        ],
        ["" if row["usable"] else "dim" for row in rows],
    )


def levers(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The `levers` of a doctor's JSON."""
    return table(
        "Levers",
        [Column("name"), Column("needs"), Column("from"), Column("otherwise", fold=True)],
        [[row["name"], ", ".join(row["needs"]), row["package"], row["reason"]] for row in rows],
        ["" if row["usable"] else "red" for row in rows],
    )


def operators(rows: Sequence[Mapping[str, Any]], most: int = 20) -> Table:
    """The `rows` of a profile's JSON, the longest first; what is left out is summed up in a last row."""
    shown, rest = list(rows[:most]), list(rows[most:])
    cells = [
        [
            row["name"],
            row["kind"],
            microseconds(row["microseconds"]),
            percent(row["share"]),
            count(row["flops"]),
            short(row["intensity"], 2),
            short(row["gflops"]),
            short(row["gb_s"]),
            percent(row["fraction"]),
            row["by"],
            row["executed"],
        ]
        for row in shown
    ]
    if rest:
        time, share = sum(row["microseconds"] for row in rest), sum(row["share"] for row in rest)
        cells.append([f"{len(rest)} more", "", microseconds(time), percent(share), *[""] * 7])
    right = ("time", "share", "FLOP", "FLOP/byte", "GFLOP/s", "GB/s", "of roof")
    columns = [
        Column("operator"),
        Column("kind"),
        *(Column(title, "right") for title in right),
        Column("bound"),
        Column("kernel"),
    ]
    return table("Operators", columns, cells)


def measurement(given: Measurement, title: str = "") -> Table:
    """Every figure with its interval, unit and source, and the quality."""
    rows = [[FIGURES.get(name, name), figure(f), f.unit, f.source] for name, f in given.figures.items()]
    if given.quality is not None:
        quality = given.quality
        rows.append(
            [quality.metric, figure(quality.value), quality.value.unit, f"{quality.kind}, {quality.samples} samples"]
        )
        rows.append(["drop", figure(quality.drop), quality.drop.unit, quality.drop.source])
    columns = [Column("figure"), Column("value (95% interval)", "right"), Column("unit"), Column("from", fold=True)]
    return table(title, columns, rows)


def trials(study: Study, most: int = 40) -> Table:
    """Every trial, best first, with its improvement, its figures and its reason; the chosen one is marked."""
    ordered = sorted(
        study.trials, key=lambda t: (t.id != study.best_id, t.status != "ok", t.status == "failed", -_speedup(t))
    )
    names = [name for name in FIGURES if any(name in trial.measurement.figures for trial in ordered)]
    shown = [name for name in names if name not in ("latency_ms.p90", "latency_ms.p999", "co2e_g_per_million")]
    columns = [
        Column(""),
        Column("recipe", fold=True),
        Column("status"),
        Column("better by", "right"),
        Column("drop", "right"),
        *(Column(FIGURES[name], "right") for name in shown),
        Column("why", fold=True),
    ]
    cells, styles = [], []
    for trial in ordered[:most]:
        mark = "★" if trial.id == study.best_id else "◦" if trial.id in study.pareto else ""
        cells.append(
            [
                mark,
                trial.recipe.describe() or "as brought",
                trial.status,
                _interval(trial.speedup),
                _drop(trial),
                *(_value(trial.measurement.figures.get(name)) for name in shown),
                trial.reason or trial.why,
            ]
        )
        styles.append(
            "bold" if trial.id == study.best_id else STATUS.get(trial.status, "") if trial.status != "ok" else ""
        )
    return table("Trials", columns, cells, styles)


def _speedup(trial: Trial) -> float:
    return trial.speedup.value if trial.speedup is not None else 0.0


def _interval(given: Figure | None) -> str:
    if given is None:
        return "–"
    if given.ci95 is None or given.ci95[0] == given.ci95[1]:
        return ratio(given.value)
    low, high = (ratio(end).removesuffix("x") for end in given.ci95)
    return f"{ratio(given.value)} ({low}–{high})"


def _value(given: Figure | None) -> str:
    return "–" if given is None else f"{short(given.value)} {_unit(given.unit)}".strip()


def _unit(unit: str) -> str:
    return {"per_s": "/s", "1/s": "/s"}.get(unit, unit)


def _drop(trial: Trial) -> str:
    quality = trial.measurement.quality
    return "–" if quality is None else f"{short(quality.drop.value, 2)}{quality.drop.unit}"
