"""Makes the README's pictures with hasten itself: the demo's live table, and the first screen of its report.

`python docs/make_pictures.py [--budget 90s]` optimises the demo's workload once, in a temporary store, keeps the live
table as it stands while the winner is being confirmed, and photographs the report in a headless Chromium (`apt-get
install chromium`). The pictures show figures: run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hasten.study import Study

FOLDER = Path(__file__).parent / "pictures"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
COLUMNS, ROWS = 108, 34
MOST_BYTES = 300_000


def live_table(budget: str) -> tuple[str, Study]:
    """The SVG of the live table near the end of the demo's study, and the study."""
    from rich.console import Console

    from hasten import api
    from hasten.cli.live import Board
    from hasten.demo import demo
    from hasten.events import Event
    from hasten.goal import parse_seconds

    chosen = demo("vision")
    console = Console(file=io.StringIO(), record=True, width=COLUMNS, height=ROWS, force_terminal=True, highlight=False)
    board = Board(
        console, budget_s=parse_seconds(budget), title=f"{chosen.title} · {chosen.metric} may drop {chosen.max_drop}"
    )
    kept = ""

    def watch(event: Event) -> None:
        nonlocal kept
        board(event)
        if event.kind == "round" and event.text.endswith("the confirmation"):
            console.print(*board.draw(), sep="\n")
            kept = console.export_svg(title="hasten demo")

    study = api.optimize(
        chosen.model,
        chosen.data,
        metric=chosen.metric,
        max_drop=chosen.max_drop,
        budget=budget,
        on_event=watch,
    )
    if not kept:
        console.print(*board.draw(), sep="\n")
        kept = console.export_svg(title="hasten demo")
    return kept, study


def without_fonts(svg: str) -> str:
    """The picture without rich's web fonts: it asks nothing of the network, and any monospace font serves."""
    svg = re.sub(r"@font-face\s*{.*?}\s*", "", svg, flags=re.DOTALL)
    return svg.replace("font-family: Fira Code, monospace", "font-family: ui-monospace, monospace")


def photograph(page: Path, out: Path, width: int = 1280, height: int = 1180) -> None:
    """The first screen of an HTML page as PNG, with a palette where it would be too large."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"none of {', '.join(BROWSERS)} is installed (apt-get install chromium)")
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                browser,
                *FLAGS,
                f"--user-data-dir={profile}",
                f"--window-size={width},{height}",
                f"--screenshot={out}",
                page.as_uri(),
            ],
            check=True,
            timeout=120,
            stderr=subprocess.DEVNULL,
        )
    from PIL import Image

    with Image.open(out) as picture:
        picture.convert("RGB").quantize(128).save(out, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the README's pictures on this machine.")
    parser.add_argument("--budget", default="90s")
    budget = parser.parse_args().budget
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HASTEN_STORE"] = str(Path(folder) / "store.db")
        svg, study = live_table(budget)
        if study.best is None or study.best.origin == "brought":
            sys.exit(f"the pictures are left as they were, because nothing won here: {study.why}")
        from hasten import api

        (FOLDER / "live.svg").write_text(without_fonts(svg), encoding="utf-8")
        page = api.report(study, Path(folder) / "report.html")
        photograph(page, FOLDER / "report.png")
    for picture in (FOLDER / "live.svg", FOLDER / "report.png"):
        size = picture.stat().st_size
        print(f"{picture.relative_to(FOLDER.parent.parent)}: {size:,} bytes")
        if size > MOST_BYTES:
            sys.exit(f"{picture} is larger than {MOST_BYTES:,} bytes")


if __name__ == "__main__":
    main()
