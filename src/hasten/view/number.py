"""Writes numbers for people: three digits and a unit that suits."""

from __future__ import annotations

import math


def short(value: float | None, digits: int = 3) -> str:
    """`value` with `digits` significant digits, without an exponent, thousands separated; an en dash for nothing."""
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    if rounded == 0:
        return "0"
    # 9.996 rounds to 10.0: it has gained a digit and loses a decimal.
    places = digits - 1 - math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, min(places, 9))}f}"


def ratio(value: float | None) -> str:
    """A speed-up such as 3.52x."""
    if value is None:
        return "–"
    return f"{value:.2f}x" if 0.1 <= abs(value) < 9.995 else f"{short(value)}x"


def percent(share: float | None) -> str:
    """A share such as 0.123 as 12%; what is not nothing is never written as 0%."""
    if share is None:
        return "–"
    if 0 < share < 0.005:
        return "<1%"
    return f"{share:.0%}"


def microseconds(value: float | None) -> str:
    """A time given in microseconds, in the unit that suits."""
    if value is None:
        return "–"
    if abs(value) < 1e3:
        return f"{short(value)} µs"
    return f"{short(value / 1e3)} ms" if abs(value) < 1e6 else f"{short(value / 1e6)} s"


def size(value: float | None) -> str:
    """A number of bytes in the unit that suits (powers of 1024)."""
    if value is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
        value /= 1024
    raise AssertionError("the last unit returns")
