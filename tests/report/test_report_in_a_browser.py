"""The report in a real browser: quiet, self-contained, and no wider than the screen."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_study import example, profile

from hasten.report import render

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-sync", "--disable-component-update", "--no-first-run")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"NOT CHECKED IN A BROWSER: none of {', '.join(BROWSERS)} is installed (apt-get install chromium)")
    sync = pytest.importorskip("playwright.sync_api", reason="NOT CHECKED IN A BROWSER: pip install playwright")
    with sync.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=found, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(example(), before=profile("before"), after=profile("after")), encoding="utf-8")
    return path


def open_page(browser: Any, path: Path, width: int, scheme: str) -> tuple[Any, list[str]]:
    """The page, and everything that it complained of or asked the network for."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
    page.on(
        "request", lambda request: complaints.append(f"request: {request.url}") if request.url != path.as_uri() else 0
    )
    page.on("dialog", lambda dialog: (complaints.append("dialog"), dialog.dismiss()))
    page.goto(path.as_uri())
    return page, complaints


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1024, 1280])
def test_it_is_quiet_asks_for_nothing_and_fits_the_screen(
    browser: Any, page_file: Path, width: int, scheme: str
) -> None:
    page, complaints = open_page(browser, page_file, width, scheme)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # What is cut off by a box of its own does not scroll the page: look at every piece of text too.
    out = page.evaluate(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.name') && e.getClientRects().length"
        " && (e.getBoundingClientRect().right > innerWidth + 1 || e.getBoundingClientRect().left < -1))"
        ".map(e => e.outerHTML.slice(0, 90))"
    )
    assert out == []
    assert complaints == []
    page.context.close()


def test_light_and_dark_differ_and_text_can_be_read_in_both(browser: Any, page_file: Path) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        page, _ = open_page(browser, page_file, 1280, scheme)
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        low = page.evaluate(CONTRAST)
        assert low == []
        page.context.close()
    assert grounds[0] != grounds[1]


CONTRAST = """(() => {
  const rgb = (text) => (text.match(/[0-9.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] > 0) return c;
    }
  };
  return [...document.querySelectorAll("h1,h2,h3,p,dt,dd,td,th,small,code,span,button")]
    .filter((e) => e.textContent.trim() && !e.children.length && !e.closest(".empty"))
    .map((e) => [light(rgb(getComputedStyle(e).color)), light(ground(e)), e.className + e.textContent.slice(0, 40)])
    .map(([a, b, name]) => [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), name])
    .filter(([ratio]) => ratio < 4.5);
})()"""


def test_the_table_sorts_by_a_column_and_back(browser: Any, page_file: Path) -> None:
    page, complaints = open_page(browser, page_file, 1280, "light")
    improvements = "[...document.querySelectorAll('#trials tbody tr')].map(r => r.cells[1].dataset.sort)"
    first = page.evaluate(improvements)
    heading = page.locator("#trials thead th").nth(1)
    heading.locator("button").click()
    numbers = [float(value) for value in page.evaluate(improvements) if value]
    assert numbers == sorted(numbers, reverse=True)
    assert page.evaluate(improvements)[-3:] == ["", "", ""]  # what failed has none, and stays last
    assert heading.get_attribute("aria-sort") == "descending"
    heading.locator("button").click()
    numbers = [float(value) for value in page.evaluate(improvements) if value]
    assert numbers == sorted(numbers)
    heading.locator("button").click()
    assert page.evaluate(improvements) == first
    assert complaints == []
    page.context.close()
