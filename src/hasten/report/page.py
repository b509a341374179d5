"""The page: one self-contained HTML document that asks for nothing and lets nothing run but its own script."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.report.environment import environment, reproduce
from hasten.report.figures import headline_figures
from hasten.report.html import Child, Markup, el, markup
from hasten.report.plots import latency_figure, pareto_figure
from hasten.report.profiles import bounds_section
from hasten.report.quality import quality_section, quality_words
from hasten.report.story import headline, story
from hasten.report.trials import trials_table
from hasten.report.words import count
from hasten.study import Study


def render(study: Study, *, before: Mapping[str, Any] | None = None, after: Mapping[str, Any] | None = None) -> str:
    """The report of `study` as one HTML page.

    `before` and `after` are profiles (the JSON of `hasten.diagnose`) of the model as brought and of the best trial;
    where they are not given, those of `study.profiles` are used. Every name and reason is escaped: none is trusted.
    """
    before = before or study.profiles.get("before")
    after = after or study.profiles.get("after")
    body = [
        _masthead(study),
        headline_figures(study),
        el("main", _sections(study, before, after)),
        el(
            "footer", "Made by hasten. Figures marked ", el("abbr", "est."), " are estimates; all others were measured."
        ),
    ]
    return _document(f"{study.workload.model.path.name}: hasten report", body)


def write(page: str, out: Path) -> Path:
    """Write a rendered page to the file `out`, whole or not at all, and return where it is."""
    out = out.absolute()
    if out.is_dir():
        raise InvalidInput(f"{out} is a folder", "name a file, such as report.html")
    partial = out.with_name(f".{out.name[:64]}.{os.getpid()}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(page, encoding="utf-8")
        os.replace(partial, out)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        cause = f"the report cannot be written to {out}: {error.strerror or error}"
        raise Failed(cause, "free space there, or name another path") from None
    return out


def _sections(study: Study, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> list[Markup]:
    frontier = f"{study.goal.optimise.capitalize()} against quality"
    sections = [
        _section(
            frontier,
            "Each dot is a trial. None has both a smaller drop and more improvement than one on the line.",
            pareto_figure(study),
        ),
        _section(
            "Latency",
            "The median and the tail, one request at a time: as brought, at full precision, and as chosen.",
            latency_figure(study),
        ),
        _section("Quality", quality_words(study), quality_section(study)),
        _section("What bounds it", "", bounds_section(study, before, after)),
        _section("Every trial", _trial_words(study), trials_table(study) if study.trials else None, wide=True),
        _section(
            "Environment",
            "Figures are comparable only within one run on one machine: this one.",
            [environment(study), [el("p", note, class_="aside") for note in study.notes] or None],
        ),
        _section("How to reproduce", "The recipe is the whole truth about the variant.", reproduce(study)),
    ]
    return [section for section in sections if section]


def _section(title: str, note: str, content: Child, wide: bool = False) -> Markup:
    if not content:
        return Markup("")
    aside = el("header", el("h2", title), el("p", note) if note else None)
    return el("section", aside, el("div", content, class_="content"), class_="wide" if wide else None)


def _masthead(study: Study) -> Markup:
    kicker = [study.workload.model.path.name, " · ", study.workload.scenario, " · ", f"goal: {study.goal.optimise}"]
    return el(
        "header",
        el("p", kicker, class_="kicker"),
        el("h1", headline(study)),
        el("p", [[sentence, " "] for sentence in story(study)], class_="story"),
        el("p", _sentence(study.why), class_="why") if study.why else None,
        _warning(study),
        class_="masthead",
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _warning(study: Study) -> Markup | None:
    if study.workload.samples.kind != "synthetic":
        return None
    text = "The samples were made up from the model's signature: speeds may differ on real data."
    return el("p", text, class_="warning")


def _trial_words(study: Study) -> str:
    by_status = {
        status: sum(t.status == status for t in study.trials) for status in ("ok", "rejected", "undecided", "failed")
    }
    words = {"ok": "passed", "rejected": "rejected", "undecided": "undecided", "failed": "failed"}
    parts = [f"{amount} {words[status]}" for status, amount in by_status.items() if amount]
    total = count(len(study.trials), "trial")
    return (
        f"{total}: {', '.join(parts)}. Improvement is the ratio to the model as brought, from alternating rounds, with "
        "its 95% interval; the hairline is no change."
    )


def _digest(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def _document(title: str, body: Child) -> str:
    style, script = (files(__package__).joinpath(name).read_text("utf-8") for name in ("page.css", "sort.js"))
    policy = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}"
    policy += "; base-uri 'none'; form-action 'none'"
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("title", title),
        el("style", Markup(style)),
    )
    page = el("html", head, el("body", markup(body), el("script", Markup(script))), lang="en")
    return f"<!doctype html>\n{page}\n"
