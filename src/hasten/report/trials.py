"""The table of every trial: its recipe, how it ended and why, and its figures; rows become cards on a narrow screen."""

from __future__ import annotations

from hasten.measurement import Trial
from hasten.report.html import Markup, el
from hasten.report.strip import Mark, strip
from hasten.report.words import STATUS, drop_text, estimated, say, times, times_interval
from hasten.study import Study

COLUMNS = (
    ("throughput_per_s", "Throughput"),
    ("latency_ms.p50", "p50"),
    ("latency_ms.p99", "p99"),
    ("peak_memory_mb", "Memory"),
    ("size_mb", "Size"),
    ("energy_j_per_inference", "Energy"),
    ("cost_per_million", "Cost, 1M"),
    ("cache_hit_rate", "Cached"),
    ("similar_rate", "Similar"),
    ("prefix_hit_rate", "Not read again"),
)

ROLE = {"brought": "as brought", "full-precision": "full precision"}


def ordered(study: Study) -> list[Trial]:
    """The choice, then the honest baselines, then the others by what they won, and those that failed last."""

    def rank(trial: Trial) -> tuple[int, float]:
        speedup = trial.speedup.value if trial.speedup else 0.0
        if trial.id == study.best_id:
            return 0, 0.0
        if trial.origin != "search":
            return (1 if trial.origin == "brought" else 2), 0.0
        return (4 if trial.status == "failed" else 3), -speedup

    return sorted(study.trials, key=rank)


def trials_table(study: Study) -> Markup:
    trials = ordered(study)
    highest = max([t.speedup.ci95[1] if t.speedup.ci95 else t.speedup.value for t in trials if t.speedup] or [1.0])
    columns = [
        (name, label) for name, label in COLUMNS if any(t.measurement.figures.get(name) is not None for t in trials)
    ]
    heads = [_head("Recipe, and how it ended", "text"), _head("Improvement"), _head("Drop")]
    heads += [_head(label) for _, label in columns]
    return el(
        "table",
        el("thead", el("tr", heads)),
        el("tbody", [_row(trial, study, columns, max(highest, 1.05)) for trial in trials]),
        class_="trials",
        id="trials",
    )


def _head(label: str, kind: str = "number") -> Markup:
    return el("th", el("button", label, type="button", data_kind=kind), scope="col", aria_sort="none")


def _row(trial: Trial, study: Study, columns: list[tuple[str, str]], highest: float) -> Markup:
    figures, quality = trial.measurement.figures, trial.measurement.quality
    cells = [_recipe(trial, study), _improvement(trial, highest)]
    drop = quality.drop if quality is not None else None
    cells.append(_number("Drop", drop_text(drop) if drop else "–", drop.value if drop else None))
    for name, label in columns:
        figure = figures.get(name)
        source = figure.source if figure is not None and estimated(figure) else None
        cells.append(_number(label, say(figure), figure.value if figure else None, source))
    kinds: list[str] = [trial.status]
    if trial.id == study.best_id:
        kinds.append("chosen")
    elif trial.origin != "search":
        kinds.append("honest")
    return el("tr", cells, class_=" ".join(kinds))


def _recipe(trial: Trial, study: Study) -> Markup:
    tags = []
    if trial.id == study.best_id:
        tags.append(el("span", "chosen", class_="tag accent"))
    if trial.origin in ROLE:
        tags.append(el("span", ROLE[trial.origin], class_="tag"))
    if trial.id in study.pareto and trial.id != study.best_id:
        tags.append(el("span", "Pareto", class_="tag"))
    described = trial.recipe.describe() or "no change"
    reason = [el("b", STATUS[trial.status].capitalize()), f": {trial.reason}" if trial.reason else "", "."]
    if trial.reason.endswith("."):
        reason.pop()
    stderr = None
    if trial.stderr.strip():
        stderr = el("details", el("summary", "what it printed"), el("pre", trial.stderr.strip()))
    return el(
        "th",
        el("span", el("code", described, title=trial.recipe.to_toml() or None), tags, class_="recipe"),
        el("span", reason, class_="reason"),
        stderr,
        scope="row",
        data_sort=described,
    )


def _improvement(trial: Trial, highest: float) -> Markup:
    speedup = trial.speedup
    if speedup is None:
        return _number("Improvement", "–", None)
    low, high = speedup.ci95 or (speedup.value, speedup.value)
    picture = strip(
        (0.0, highest), [Mark(speedup.value, low, high, "chosen" if trial.status == "ok" else "")], rule=1.0, bar=True
    )
    spread = times_interval(speedup)
    return el(
        "td",
        el("span", times(speedup.value), class_="ratio"),
        picture,
        el("span", spread, class_="spread") if spread else None,
        class_="improvement",
        data_label="Improvement",
        data_sort=speedup.value,
    )


def _number(label: str, text: str, value: float | None, source: str | None = None) -> Markup:
    shown = el("abbr", text, title=source) if source else text
    empty = " empty" if text == "–" else ""
    return el("td", shown, class_=f"num{empty}", data_label=label, data_sort="" if value is None else value)
