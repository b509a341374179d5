"""The report: what it says about a study, and that nothing in a study can become code."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_study import example, failed, profile, trial

from hasten.device import Device
from hasten.errors import Failed, InvalidInput
from hasten.goal import Goal
from hasten.measurement import Figure, Trial
from hasten.recipe import Recipe, Step
from hasten.report import render, write
from hasten.report.plots import frontier
from hasten.report.words import span
from hasten.study import Study
from hasten.workload import Samples

VOID = {"meta", "br", "hr", "col", "line", "rect", "circle", "path"}


class Page(HTMLParser):
    """The page's tags, attributes and text; asserts that every tag is closed where it should be."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self._row: list[str] | None = None
        self.rows: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)
        if tag == "tr":
            self.rows.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("script", "style"):
            return
        self.text += data
        if "tr" in self._open:
            self.rows[-1] += data + " "


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(render(example()))


def test_the_story_says_what_was_brought_what_it_became_and_what_it_costs(page: Page) -> None:
    assert "5.48× the throughput, accuracy held." in page.text
    assert "fashion-cnn.onnx (1.08 million parameters, 4.34 MB, opset 17) answers 412 samples a second" in page.text
    assert "5.48× the throughput (95% interval 5.40 to 5.56), chosen from 22 recipes." in page.text
    assert (
        "It costs 0.13 pt in accuracy (with 95% confidence at most 0.33 pt, 0.5pt allowed): 93.29% on 900" in page.text
    )


def test_quality_is_drawn_and_told_up_to_the_bound_that_decides(page: Page) -> None:
    assert "at most 0.33 pt" in page.text
    assert "A variant passes only if its drop is, with 95% confidence, at most 0.5 points." in page.text
    study = example()
    older = [
        replace(t, measurement=replace(t.measurement, quality=replace(t.measurement.quality, bound=None)))
        if t.measurement.quality is not None
        else t
        for t in study.trials
    ]
    assert "95% interval −0.09 to 0.37, 0.5pt allowed" in Page(render(replace(study, trials=tuple(older)))).text


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_the_line_runs_through_what_nothing_drawn_beats(drawn: list[tuple[int, int]]) -> None:
    points = [(Trial(str(i), Recipe(), "ok"), float(drop), float(gain)) for i, (drop, gain) in enumerate(drawn)]
    line = frontier(points)
    for _, drop, gain in line:
        assert not any(d <= drop and g >= gain and (d, g) != (drop, gain) for _, d, g in points)
    assert [p[1:] for p in line] == sorted(p[1:] for p in line)
    assert max(p[2] for p in points) == line[-1][2]


def test_every_trial_is_in_the_table_with_its_recipe_status_and_reason(page: Page) -> None:
    study = example()
    assert len(page.rows) == 1 + len(study.trials)
    words = {"ok": "Passed", "rejected": "Rejected", "undecided": "Undecided", "failed": "Failed"}
    for each in study.trials:
        rows = [row for row in page.rows if each.recipe.describe() in row and each.reason in row]
        assert rows
        assert any(words[each.status] in row for row in rows)


def test_the_choice_and_both_honest_baselines_come_first_and_are_marked(page: Page) -> None:
    assert ["chosen" in page.rows[1], "as brought" in page.rows[2], "full precision" in page.rows[3]] == [True] * 3
    assert [("tr", "class", kind) in page.attributes for kind in ("ok chosen", "ok honest")] == [True, True]


def test_estimates_are_marked_with_what_they_are_estimated_from(page: Page) -> None:
    titles = [value for tag, name, value in page.attributes if tag == "abbr" and name == "title"]
    assert "estimated: CPU time, core count and the published power of the processor" in titles


def test_the_environment_and_the_way_to_do_it_again_are_told(page: Page) -> None:
    for text in ("Intel Xeon (Sapphire Rapids)", "136 GFLOP/s", "openvino2026.4.1", "hasten build fashion-cnn.onnx"):
        assert text in page.text
    assert example().best.recipe.to_toml().strip() in page.text  # type: ignore[union-attr]
    assert "--where 'p99<20ms'" in page.text


def test_profiles_bring_the_roofline_and_what_bounds_the_winner() -> None:
    study = replace(example(), profiles={"before": profile("before"), "after": profile("after")})
    page = Page(render(study))
    assert "What bounds the winner now." in page.text
    assert "achieved GFLOP/s" in page.text
    assert "brgconv_avx512_core_amx_I8" in page.text
    circles = [value for tag, name, value in page.attributes if tag == "circle" and name == "class"]
    assert {"op before", "op after"} <= set(circles)
    given = Page(render(example(), before=profile("before"), after=profile("after")))
    assert given.text == page.text


@pytest.mark.parametrize("broken", [{}, {"schema": "x"}, {"schema": "hasten.profile/1", "rows": 3}, {"rows": None}])
def test_a_broken_profile_is_left_out(broken: dict[str, object]) -> None:
    assert "What bounds it" not in render(replace(example(), profiles={"after": broken}))


def test_the_page_asks_for_nothing_and_styles_nothing_inline() -> None:
    html = render(replace(example(), profiles={"before": profile("before"), "after": profile("after")}))
    page = Page(html)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert not [
        value for _, name, value in page.attributes if name in ("src", "href", "style") or name.startswith("on")
    ]
    assert "url(" not in html
    assert "@import" not in html
    policy = next(value for tag, name, value in page.attributes if tag == "meta" and value and "default-src" in value)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


HOSTILE = "</code></script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\"'"


def test_names_and_reasons_never_become_markup() -> None:
    study = example()
    evil = Recipe((Step(HOSTILE, {HOSTILE: HOSTILE}),), {"name": HOSTILE}, {HOSTILE: HOSTILE})
    model = replace(study.workload.model, path=Path(HOSTILE.replace("/", "_")))
    study = replace(
        study,
        workload=replace(study.workload, model=model, metric=HOSTILE),
        device=replace(study.device, name=HOSTILE, flags=(HOSTILE,)),
        versions={HOSTILE: HOSTILE},
        why=HOSTILE,
        notes=(HOSTILE,),
        trials=(
            *study.trials,
            trial(evil, 9.0, reason=HOSTILE),
            failed(evil.edit("runner", n=1), HOSTILE, HOSTILE),
        ),
        best_id=evil.id,
    )
    page = Page(render(study))
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert "alert(1)" in page.text


def test_nothing_tried_nothing_chosen_and_nothing_better_are_said_plainly() -> None:
    study = example()
    assert "Nothing has been tried yet." in render(replace(study, trials=(), best_id="", pareto=()))
    assert "No choice yet." in render(replace(study, best_id="", why=""))
    brought = study.baseline
    assert brought is not None
    assert "Nothing beat the model as it was brought." in render(replace(study, best_id=brought.id))
    spent = [Trial("0", Recipe(), "rejected", "not tried: the budget was spent")]
    html = render(replace(study, trials=(brought, *spent), best_id=brought.id))
    assert "No recipe could be tried within the budget (1 proposed)" in html


def test_without_labels_quality_is_called_fidelity_and_made_up_samples_are_said_to_be() -> None:
    study = example()
    best = study.best
    assert best is not None
    quality = best.measurement.quality
    assert quality is not None
    measurement = replace(best.measurement, quality=replace(quality, kind="fidelity", metric="top1-agreement"))
    trials = tuple(replace(t, measurement=measurement) if t.id == best.id else t for t in study.trials)
    samples = replace(study.workload.samples, kind="synthetic")
    html = render(replace(study, trials=trials, workload=replace(study.workload, samples=samples)))
    assert "Without labels, quality is fidelity" in html
    assert "The samples were made up" in html


figures = st.builds(
    lambda value, width: Figure(value, "ms", "measured", (value - width, value + width)),
    st.floats(1e-9, 1e9),
    st.floats(0, 1e3),
)


@given(
    goal=st.sampled_from(["latency", "throughput", "p99", "memory", "size", "energy", "cost"]),
    drop=st.sampled_from(["0pt", "0.5pt", "1%", "100%"]),
    speedup=st.one_of(st.none(), st.floats(1e-6, 1e6)),
    lost=st.floats(-1e3, 1e3),
    figure=figures,
    count=st.integers(0, 3),
)
@settings(max_examples=60, deadline=None)
def test_any_study_gives_a_well_formed_page(
    goal: str, drop: str, speedup: float | None, lost: float, figure: Figure, count: int
) -> None:
    study = example()
    trials = []
    for index in range(count):
        made = trial(Recipe(runtime={"name": "x", "threads": index + 1}), speedup or 1.0, lost)
        figures_ = {name: figure for name in made.measurement.figures}
        made = replace(made, measurement=replace(made.measurement, figures=figures_))
        trials.append(replace(made, speedup=None) if speedup is None else made)
    study = replace(
        study, goal=Goal.parse(goal, drop), trials=tuple(trials), best_id=trials[0].id if trials else "", pareto=()
    )
    html = render(study)
    Page(html)
    assert not re.search(r'="[^"]*(nan|inf)', html)


def test_a_bare_study_of_an_unknown_device_can_be_shown() -> None:
    study = example()
    bare = Study(
        replace(study.workload, samples=Samples(Path("x"), "0" * 64, 1, (), "synthetic", False)), Goal(), Device("?")
    )
    Page(render(bare))


def test_the_page_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    html = render(example())
    assert write(html, tmp_path / "new" / "report.html").read_text() == html
    (tmp_path / "file").write_text("x")
    with pytest.raises(Failed, match="cannot be written"):
        write(html, tmp_path / "file" / "report.html")
    with pytest.raises(InvalidInput, match="is a folder"):
        write(html, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "new"]


@given(st.floats(-1e12, 1e12), st.floats(0, 1e12))
def test_an_interval_is_written_without_exponents_and_in_order(low: float, width: float) -> None:
    first, second = span(low, low + width).replace("−", "-").replace(",", "").split(" to ")
    assert "e" not in first + second
    assert float(first) <= float(second)


def test_an_interval_shows_two_figures_of_its_width() -> None:
    assert span(-0.0912, 0.3687) == "−0.09 to 0.37"
    assert span(2213.4, 2302.6) == "2,213 to 2,303"
    assert span(0.5, 0.5) == "0.50 to 0.50"
