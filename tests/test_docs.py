"""The README and the docs do what they say: their python and bash blocks run, and what is generated is current."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from hasten.paths import cache_dir

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SNIPPETS = (DOCS / "snippets", ROOT / "examples" / "plugin")
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]

_BLOCK = re.compile(
    r"(?:<!-- needs: (?P<needs>[\w, ]+) -->\s*)?"
    r"^(?P<indent> *)```(?P<language>python|bash)[^\n]*\n(?P<body>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
_INCLUDED = re.compile(r'^--8<-- "(?P<name>[^"]+)"$', re.MULTILINE)
_SHORTER = (
    (re.compile(r"--budget \S+"), "--budget 1s"),
    (re.compile(r"--seconds \S+"), "--seconds 0.3"),
    (re.compile(r'budget="[^"]+"'), 'budget="1s"'),
)
"""The pages show times that make sense; here they only have to work."""

LONGEST_S = 120


@dataclass(frozen=True)
class Block:
    """A block of a page: `line` is where its first line of code stands."""

    language: str
    code: str
    line: int
    needs: tuple[str, ...]


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        code = _INCLUDED.sub(lambda found: _snippet(found["name"]), textwrap.dedent(match["body"]))
        for pattern, shorter in _SHORTER:
            code = pattern.sub(shorter, code)
        needs = tuple(name.strip() for name in (match["needs"] or "").split(",") if name.strip())
        yield Block(match["language"], code, text.count("\n", 0, match.start("body")) + 1, needs)


def _snippet(name: str) -> str:
    return next(path for folder in SNIPPETS if (path := folder / name).exists()).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Caches and a store of their own, shared by the pages; what is known of this machine's limits is taken over."""
    folder = tmp_path_factory.mktemp("home")
    for kept in cache_dir().glob("device-*.json"):
        (folder / "cache" / "hasten").mkdir(parents=True, exist_ok=True)
        shutil.copy(kept, folder / "cache" / "hasten")
    return {
        "XDG_CACHE_HOME": str(folder / "cache"),
        "XDG_DATA_HOME": str(folder / "data"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run_in_order(
    page: Path, home: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(blocks(page))
    if not found:
        pytest.skip("the page has nothing to run")
    for name, value in home.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HASTEN_STORE", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    if page.name == "README.md":  # it assumes a model of the reader's own
        _python(page, Block("python", _snippet("tiny.py"), 1, ()), {})
    namespace: dict[str, Any] = {"__name__": "docs"}
    for block in found:
        missing = [name for name in block.needs if importlib.util.find_spec(name) is None]
        if missing:
            warnings.warn(f"NOT RUN: {page.name}, line {block.line}: needs {', '.join(missing)}", stacklevel=1)
            continue
        (_python if block.language == "python" else _bash)(page, block, namespace)


def _python(page: Path, block: Block, namespace: dict[str, Any]) -> None:
    code = "\n" * (block.line - 1) + block.code
    exec(compile(code, str(page), "exec"), namespace)


def _bash(page: Path, block: Block, namespace: dict[str, Any]) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.code], capture_output=True, text=True, timeout=LONGEST_S
    )
    said = f"{page.name}, line {block.line}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, said
    assert "Traceback" not in done.stderr, said
    assert "internal error" not in done.stderr, said


def test_the_command_line_reference_is_what_the_commands_say() -> None:
    said = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert said == _script("make_cli_reference").reference(), "run: python docs/make_cli_reference.py"


def _script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("group", "page"), [("hasten.levers", "levers.md"), ("hasten.runtimes", "runtimes-and-platforms.md")]
)
def test_every_plugin_of_hasten_has_its_section(group: str, page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    own = {entry.name for entry in entry_points(group=group) if entry.value.startswith("hasten.")}
    described = set(re.findall(r"^#{2,3} `([\w-]+)`", text, re.MULTILINE))
    assert described == own


def test_every_metric_is_named() -> None:
    from hasten.measure.choice import names

    text = (DOCS / "metrics-and-drops.md").read_text(encoding="utf-8")
    assert [name for name in names() if f"`{name}`" not in text] == []


def test_every_figure_is_named_with_its_json_key() -> None:
    from hasten.measurement import FIGURES

    text = (DOCS / "how-we-measure.md").read_text(encoding="utf-8")
    assert [name for name in FIGURES if f"`{name.partition('.')[0]}`" not in text] == []


def test_the_tables_of_figures_have_places_to_be_written_to() -> None:
    for page in (ROOT / "README.md", DOCS / "index.md"):
        assert re.search(
            r"<!-- figures:inference(?: brief)? -->\n.*?<!-- /figures -->", page.read_text(encoding="utf-8"), re.DOTALL
        )


def test_the_pictures_are_there_small_and_ask_for_nothing() -> None:
    for name in re.findall(r"\((docs/pictures/[^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert 1_000 < (ROOT / name).stat().st_size < 300_000
    picture = (DOCS / "pictures" / "live.svg").read_text(encoding="utf-8")
    assert re.findall(r"https?://(?!www\.w3\.org|www\.textualize\.io)", picture) == []


def test_links_in_the_readme_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    gone = [link for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", text) if not (ROOT / link).exists()]
    assert gone == []


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="NOT BUILT: pip install 'hasten[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
    assert done.returncode == 0, done.stderr
    outside = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="https?://(?!localhost|127)[^"]+"')
    for page in (tmp_path / "site").rglob("*.html"):
        assert outside.findall(page.read_text(encoding="utf-8")) == [], page.name
