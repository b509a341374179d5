"""What the repository promises of itself: its size, its lightness, its words, its versions."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import hasten

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
MODULES = sorted((ROOT / "src" / "hasten").rglob("*.py"))
HEAVY = {
    *("numpy", "scipy", "sklearn", "onnx", "onnxruntime", "onnxslim", "openvino", "nncf", "mlperf_loadgen", "torch"),
    *("transformers", "sqlalchemy", "altair", "vl_convert", "pandas", "pyarrow", "PIL", "sympy", "google.protobuf"),
}
CORE_LIMIT_MB = 850


def loaded_after(statement: str) -> set[str]:
    """The modules that a fresh process has loaded after `statement`."""
    program = f"import sys, json\n{statement}\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_importing_hasten_loads_nothing_but_itself():
    loaded = loaded_after("import hasten")
    assert not loaded & HEAVY
    assert {name for name in loaded if name.startswith("hasten")} == {"hasten"}


def test_the_public_verbs_load_no_runtime_until_they_are_called():
    names = ", ".join(hasten.__all__)
    loaded = loaded_after(f"from hasten import {names}")
    assert not loaded & HEAVY


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_the_overview_loads_no_heavy_module_and_not_even_typer_or_rich(argument):
    loaded = loaded_after(f"from hasten.cli import main; main([{argument!r}])")
    assert not loaded & (HEAVY | {"typer", "rich", "click", "hasten.api"})


@pytest.mark.parametrize("command", ["demo", "doctor", "profile", "bench", "compare", "optimize", "build", "report"])
def test_the_help_of_a_command_loads_no_runtime(command):
    loaded = loaded_after(f"from hasten.cli import main; main([{command!r}, '--help'])")
    assert not loaded & HEAVY


def test_a_verb_stays_a_verb_when_the_folder_of_its_name_is_imported():
    program = (
        "import hasten, hasten.report.page, hasten.study; assert callable(hasten.report) and callable(hasten.study)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def closure(requirements: list[str]) -> set[str]:
    """The distributions that `requirements` install here, transitively, without extras that nobody asked for."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        extras = requirement.extras or {""}
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in found:
            continue
        found.add(name)
        for text in distribution(name).requires or []:
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)
    return found


def size_mb(name: str) -> float:
    """Megabytes on disk of what a distribution's RECORD lists, compiled modules included."""
    files = distribution(name).files or []
    return sum(path.stat().st_size for file in files if (path := Path(str(file.locate()))).is_file()) / 1e6


def test_the_core_install_needs_no_torch_and_stays_under_its_size():
    core = closure(PYPROJECT["project"]["dependencies"])
    assert not core & {"torch", "transformers", "pandas", "matplotlib", "pyarrow", "codecarbon"}
    sizes = {name: size_mb(name) for name in core}
    own = sum(path.stat().st_size for path in (ROOT / "src").rglob("*") if path.is_file()) / 1e6
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:8]
    assert sum(sizes.values()) + own < CORE_LIMIT_MB, f"the largest: {largest}"
    assert sum(sizes.values()) > 200, "the sizes could not be read"


def test_the_constraints_pin_every_requirement_exactly():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pins = {
        re.sub(r"[-_.]+", "-", name).lower(): version for name, _, version in (line.partition("==") for line in lines)
    }
    assert all(pins.values()), [line for line in lines if "==" not in line]
    project = PYPROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    wanted = [Requirement(text) for group in groups for text in group if not text.startswith("hasten[")]
    for requirement in wanted:
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        assert requirement.specifier.contains(pins[name]), f"{requirement} is pinned to {pins[name]}"
    missing = closure(PYPROJECT["project"]["dependencies"]) - set(pins)
    assert not missing, f"not pinned: {missing}"


def test_all_extras_are_in_all_but_those_for_work_on_hasten_and_what_is_large_or_built_from_source():
    extras = PYPROJECT["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert Requirement(everything).extras == set(extras) - {"all", "dev", "docs", "iree", "llamacpp"}


def test_the_version_is_written_once():
    assert PYPROJECT["tool"]["hatch"]["version"]["path"] == "src/hasten/__init__.py"
    assert "version" not in PYPROJECT["project"]
    try:
        assert distribution("hasten").version == hasten.__version__
    except PackageNotFoundError:
        pytest.skip("hasten is not installed")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_a_module_opens_with_one_sentence(path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text, "no docstring"
    first = text.splitlines()[0]
    assert first.endswith((".", "!")), first
    assert not re.search(r"[.!?] [A-Z]", first), f"more than one sentence: {first}"


def test_every_entry_point_can_be_loaded():
    from importlib.metadata import entry_points

    for group in ("hasten.runtimes", "hasten.levers"):
        declared = PYPROJECT["project"]["entry-points"][group]
        found = {entry.name: entry for entry in entry_points(group=group)}
        for name in declared:
            assert found[name].load()().name == name


def test_no_path_of_a_developers_machine_is_in_the_repository():
    git = shutil.which("git")
    listed = git and subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    tracked = listed.stdout if listed else ""
    if not tracked:
        pytest.skip("not a git checkout")
    private = re.compile(r"/(?:home/\w+|Users/\w+|root|work)/(?!\.cache)\w+")
    for name in filter(None, tracked.split("\0")):
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".yml", ".txt", ".json", "") and path.is_file():
            text = path.read_text(encoding="utf-8", errors="ignore")
            assert not private.search(text), f"{name}: {private.search(text)}"
