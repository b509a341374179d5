"""Multiplies figures by constants and keeps their intervals."""

from __future__ import annotations

from hasten.measurement import Figure


def value_of(number: Figure | float) -> float:
    return number.value if isinstance(number, Figure) else float(number)


def scaled(number: Figure | float, factor: float, unit: str, source: str) -> Figure:
    """`number` times `factor`, in `unit`; the interval of a figure is scaled along."""
    ci95 = number.ci95 if isinstance(number, Figure) else None
    interval = None if ci95 is None else (ci95[0] * factor, ci95[1] * factor)
    return Figure(value_of(number) * factor, unit, source, interval)


def origin(number: Figure | float, given: str) -> str:
    """Where a number came from, for the text after the colon of a source: a figure's own source, else `given`."""
    return number.source if isinstance(number, Figure) else given
