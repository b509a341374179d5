"""What bounds the model before and after: shares of time, a roofline with both, and the operators that take most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hasten.diagnose.profile import Profile
from hasten.diagnose.roofline import PRECISIONS, roofs
from hasten.diagnose.rows import OperatorRow
from hasten.errors import HastenError
from hasten.report.chart import Chart, Scale, legend
from hasten.report.html import Markup, el
from hasten.report.words import number
from hasten.study import Study

CLASSES = {
    "compute": "arithmetic",
    "memory": "moving data",
    "overhead": "starting operators",
    "io": "preparing data",
    "unknown": "unknown",
}
TOP_OPERATORS = 8


def read(data: Mapping[str, Any] | None) -> Profile | None:
    """The profile in `data`; None where there is none or it is not one."""
    if not data:
        return None
    try:
        return Profile.from_json(data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, HastenError):
        return None


def bounds_section(
    study: Study, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> list[Markup] | None:
    """None where neither profile was taken."""
    found = [(name, profile) for name, data in (("before", before), ("after", after)) if (profile := read(data))]
    if not found:
        return None
    parts = [_shares(found)]
    roofline = roofline_figure(found)
    if roofline is not None:
        parts.append(roofline)
    name, last = found[-1]
    lead = "What bounds the winner now." if name == "after" else "What bounds the model as brought."
    words = [sentence for sentence in last.words() if sentence not in last.notes]
    if words:
        parts.append(el("div", el("h3", lead), [el("p", sentence) for sentence in words], class_="prose"))
    if last.rows:
        parts.append(_operators(last))
    parts += [el("p", note, class_="aside") for note in last.notes]
    return parts


def _shares(found: Sequence[tuple[str, Profile]]) -> Markup:
    rows = []
    for name, profile in found:
        at, parts = 0.0, []
        for kind in CLASSES:
            share = profile.shares.get(kind, 0.0)
            if share <= 0:
                continue
            words = f"{CLASSES[kind]}: {share:.0%}"
            parts.append(
                el("rect", el("title", words), x=f"{100 * at:.2f}%", y=0, width=f"{100 * share:.2f}%", height=18,
                   class_=f"class-{kind}")
            )  # fmt: skip
            if share > 0.12:
                parts.append(el("text", f"{share:.0%}", x=f"{100 * at:.2f}%", dx=6, y=13, class_=f"on-{kind}"))
            at += share
        each = profile.wall_us.value / max(profile.batch, 1)
        time = f"{number(each / 1e3)} ms" if each >= 100 else f"{number(each)} µs"
        rows.append(
            el(
                "div",
                el("span", el("b", name), el("code", profile.recipe.describe() or "no change"), class_="name"),
                el("svg", parts, class_="strip shares", height=18, role="img", aria_label=_spoken(profile)),
                el("span", el("b", time), el("small", "a sample"), class_="num"),
                class_="chosen" if name == "after" else None,
            )
        )
    used = [kind for kind in CLASSES if any(profile.shares.get(kind, 0) > 0 for _, profile in found)]
    key = legend([(f"square class-{kind}", CLASSES[kind]) for kind in used])
    return el("div", rows, el("div", el("span"), key, el("span"), class_="scale"), class_="drops bounds")


def _spoken(profile: Profile) -> str:
    return ", ".join(f"{CLASSES.get(kind, kind)} {share:.0%}" for kind, share in profile.shares.items() if share > 0)


def roofline_figure(found: Sequence[tuple[str, Profile]]) -> Markup | None:
    """Every operator with known arithmetic, its area its share of the time, under the roofs of the whole device.

    A stream has only its share of the cores, so its rates are scaled to all streams together: before and after are then
    under the same roofs.
    """
    points = [
        (name, row, row.intensity, row.gflops / profile.device_share)
        for name, profile in found
        for row in profile.rows
        if row.intensity and row.gflops and row.share > 0.002 and profile.device_share > 0
    ]
    if not points:
        return None
    limits = roofs(found[-1][1].device)
    used = {row.precision for _, row, *_ in points}
    rates = {name: limits.gflops[name] for name in PRECISIONS if name in limits.gflops and name in used}
    bandwidth = limits.memory_gb_s
    xs, ys = [x for _, _, x, _ in points], [y for *_, y in points]
    top = max([*ys, *rates.values()])
    ridge = max((rate / bandwidth for rate in rates.values()), default=1.0) if bandwidth else max(xs)
    across = Scale(min(*xs, 1.0) * 0.7, max(*xs, ridge) * 2.2, log=True)
    up = Scale(max(min(ys) * 0.6, top / 1e5), top * 1.8, log=True)
    chart = Chart(across, up, 320)
    marks: list[Markup] = []
    if bandwidth:
        marks += _slope(chart, bandwidth, max(rates.values(), default=top))
    for name, rate in rates.items():
        start = rate / bandwidth if bandwidth else across.low
        marks.append(chart.segment((max(start, across.low), rate), (across.high, rate), "roof"))
        words = f"{name}, {number(rate)} {'GOP/s' if name == 'int8' else 'GFLOP/s'}"
        marks.append(el("text", words, x="100%", y=chart.y(rate) - 6, text_anchor="end", class_="tick"))
    for name, row, intensity, rate in sorted(points, key=lambda p: (p[0] == "after", -p[1].share)):
        of = f", {row.fraction:.0%} of its roof" if row.fraction else ""
        words = f"{name}: {row.kind} {row.name}, {row.share:.1%} of the time, {number(rate)} GFLOP/s{of}"
        radius = round(2.5 + 14 * min(row.share, 1.0) ** 0.5, 1)
        marks.append(
            el("circle", el("title", words), cx=chart.x(intensity), cy=chart.y(rate), r=radius, class_=f"op {name}")
        )
    return chart.render(
        marks,
        x_title="arithmetic intensity, FLOP for each byte →",
        y_title="↑ achieved GFLOP/s, all streams",
        label=f"Roofline of {len(points)} operators.",
        legend=legend([(f"dot op {name}", name) for name, _ in found]),
    )


def _slope(chart: Chart, bandwidth: float, peak: float) -> list[Markup]:
    """The memory roof: a straight line on two log axes, cut at the frame."""
    low = max(chart.across.low, chart.up.low / bandwidth)
    high = min(peak / bandwidth, chart.across.high)
    if high <= low:
        return []
    words = f"memory, {number(bandwidth)} GB/s"
    return [
        chart.segment((low, low * bandwidth), (high, high * bandwidth), "roof"),
        el("text", words, x=chart.x(low), dx=30, y=chart.y(low * bandwidth) + 4, class_="tick"),
    ]


def _operators(profile: Profile) -> Markup:
    rows = [_operator(row) for row in profile.rows[:TOP_OPERATORS]]
    rest = profile.rows[TOP_OPERATORS:]
    if rest:
        label = f"{len(rest)} more"
        rows.append(
            el("tr", el("th", label, scope="row"), el("td", f"{sum(r.share for r in rest):.1%}"), *[el("td")] * 3)
        )
    heads = ["Operator", "Share", "Kernel", "Rate", "Of its roof"]
    return el(
        "table",
        el("thead", el("tr", [el("th", head, scope="col") for head in heads])),
        el("tbody", rows),
        class_="operators",
    )


def _operator(row: OperatorRow) -> Markup:
    rate = "–"
    if row.by == "memory" and row.gb_s is not None:
        rate = f"{number(row.gb_s)} GB/s"
    elif row.gflops:
        rate = f"{number(row.gflops)} GFLOP/s"
    return el(
        "tr",
        el("th", el("b", row.kind), " ", el("span", row.name), scope="row"),
        el("td", f"{row.share:.1%}"),
        el("td", row.executed or row.precision, class_="kernel"),
        el("td", rate),
        el("td", "–" if row.fraction is None else f"{row.fraction:.0%}"),
    )
