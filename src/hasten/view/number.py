"""Writes numbers for people: three digits, a unit that suits, and the interval beside the value."""

from __future__ import annotations

import math

from hasten.measurement import Figure


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


def count(value: float | None) -> str:
    """A large count such as FLOPs: 1.2 k, 3.4 M, 5.6 G."""
    if value is None:
        return "–"
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{short(value / factor)} {unit}"
    return f"{value:.0f}"


def figure(given: Figure | None, factor: float = 1.0) -> str:
    """The value with its 95% interval where it has one: `3.5 (3.3–3.7)`."""
    if given is None:
        return "–"
    text = short(given.value * factor)
    if given.ci95 is None or given.ci95[0] == given.ci95[1]:
        return text
    return f"{text} ({short(given.ci95[0] * factor)}–{short(given.ci95[1] * factor)})"
