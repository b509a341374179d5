"""The colours and fonts of plots, and the way from a chart to an SVG that fits light and dark pages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from altair import TopLevelMixin

FONT = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_INK, _SURFACE = "#010203", "#fdfcfb"
"""Stand-ins that no palette has: they become the theme's own colours once the SVG is drawn."""

BLUE, AMBER, VIOLET, GREEN, RED, TEAL, GREY = (
    "#3b82f6",
    "#d97706",
    "#8b5cf6",
    "#16a34a",
    "#ef4444",
    "#0d9488",
    "#8b93a1",
)
"""Each has a contrast of at least 3 to 1 on white and on near-black, so one palette serves both."""
SERIES = (BLUE, AMBER, VIOLET, GREEN, RED, TEAL, GREY)
BOUND = {"compute": BLUE, "memory": AMBER, "overhead": VIOLET, "io": TEAL, "unknown": GREY}


@dataclass(frozen=True)
class Theme:
    """`ink` draws text and lines, `surface` is the page behind. The adaptive theme takes both from the page's CSS."""

    ink: str
    surface: str
    background: str | None = None


ADAPTIVE = Theme("currentColor", "var(--surface, Canvas)")
LIGHT = Theme("#1b1f27", "#ffffff", "#ffffff")
DARK = Theme("#e6e8ec", "#14171c", "#14171c")


def altair() -> Any:
    """The plotting library, loaded at first use; its stubs are too loose to be checked against."""
    import altair as module

    return module


def ink() -> str:
    """The colour of text in a chart."""
    return _INK


def surface() -> str:
    """The colour of the page behind a chart, for halos around text."""
    return _SURFACE


def config() -> dict[str, Any]:
    """What every chart shares."""
    quiet = {
        "labelColor": _INK,
        "labelOpacity": 0.72,
        "titleColor": _INK,
        "titleOpacity": 0.85,
        "labelFontSize": 11,
        "titleFontSize": 12,
        "titleFontWeight": 500,
        "titlePadding": 10,
        "labelPadding": 6,
        "domainColor": _INK,
        "domainOpacity": 0.28,
        "tickColor": _INK,
        "tickOpacity": 0.28,
        "tickSize": 4,
        "gridColor": _INK,
        "gridOpacity": 0.08,
    }
    return {
        "background": None,
        "font": FONT,
        "view": {"stroke": None},
        "axis": quiet,
        "legend": {
            "labelColor": _INK,
            "titleColor": _INK,
            "labelOpacity": 0.85,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "symbolStrokeWidth": 0,
            "symbolOpacity": 1,
            "orient": "top",
            "title": None,
            "padding": 0,
            "offset": 12,
            "symbolSize": 90,
            "columnPadding": 18,
        },
        "text": {"color": _INK, "fontSize": 11, "font": FONT},
        "range": {"category": list(SERIES)},
        "padding": {"left": 4, "right": 4, "top": 4, "bottom": 4},
    }


def svg(chart: TopLevelMixin, *, theme: Theme = ADAPTIVE, label: str = "", key: str = "plot") -> str:
    """Draw `chart` without any network. `label` is read by screen readers.

    `key` must be unique on a page: the ids inside the SVG carry it, so that two plots never share a clip path.
    """
    import vl_convert

    drawn: str = vl_convert.vegalite_to_svg(specification(chart), allowed_base_urls=[])
    return _dress(drawn, theme, label, key)


def specification(chart: TopLevelMixin) -> dict[str, Any]:
    """The Vega-Lite specification with hasten's configuration."""
    spec: dict[str, Any] = chart.to_dict()
    spec["config"] = config()
    return spec


def _dress(drawn: str, theme: Theme, label: str, key: str) -> str:
    """Colours of the theme, size from the page, ids of its own, and a tooltip on every described mark."""
    drawn = drawn.replace(_INK, theme.ink).replace(_SURFACE, theme.surface)
    drawn = re.sub(r'\bid="([^"]+)"', rf'id="{key}-\1"', drawn)
    drawn = re.sub(r'url\(#([^)"]+)\)', rf"url(#{key}-\1)", drawn)
    drawn = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{key}-\1"', drawn)
    drawn = re.sub(
        r'(<path aria-label="([^"]+)" role="graphics-symbol"[^>]*?)(?:/>|></path>)',
        r"\1><title>\2</title></path>",
        drawn,
    )
    # Vega describes every axis and mark for screen readers in its own words; one sentence of ours says more.
    drawn = re.sub(r' (?:role|aria-label|aria-roledescription|aria-hidden)="[^"]*"', "", drawn)
    width = re.search(r'viewBox="0 0 (\d+(?:\.\d+)?)', drawn)
    limit = f"max-width:{width[1]}px;" if width else ""
    style = f"width:100%;{limit}height:auto;" + (f"background:{theme.background};" if theme.background else "")
    named = f'role="img" aria-label="{escape(label, quote=True)}" ' if label else ""
    head = re.match(r"<svg[^>]*>", drawn)
    if head is None:
        return drawn
    opening = re.sub(r'\s(?:width|height|class|style)="[^"]*"', "", head[0])
    opening = opening.replace("<svg", f'<svg {named}style="{style}"', 1)
    return opening + drawn[head.end() :]
