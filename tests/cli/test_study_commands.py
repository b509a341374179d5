"""Commands that end in a study: what they print, what they write as JSON, and how they exit."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from hasten import api
from hasten.cli.trials import study_report
from hasten.errors import GateRefused
from hasten.events import Event
from hasten.levers import Prediction, Proposal
from hasten.recipe import Recipe
from hasten.study import Study


@pytest.fixture
def optimizing(study, monkeypatch):
    """`api.optimize` that tells of each trial and returns the study; what it was called with is kept."""
    calls = []

    def optimize(model, data=None, *, on_event, **options):
        calls.append({"model": model, "data": data, **options})
        on_event(Event("stage", "trying what could help", 0.1))
        for number, trial in enumerate(study.trials[:-1]):
            on_event(Event("trial", trial.reason, 0.2 + number / 10, trial))
        on_event(Event("note", "a note"))
        on_event(Event("done", study.why, 1.0, study.best, {"interrupted": False}))
        return study

    monkeypatch.setattr(api, "optimize", optimize)
    return calls


def test_plain_lines_tell_the_story_and_the_table_ends_it(hasten, study, optimizing):
    code, out, err = hasten("optimize", "cnn.onnx", "--data", "d.npz", "--goal", "latency", "--where", "p99<20ms")
    assert code == 0
    assert err == ""
    assert "trying what could help" in out
    assert "a note" in out
    assert "\x1b" not in out
    for trial in study.trials[:-1]:
        assert trial.recipe.describe().split(" | ")[0] in out
    assert "Chosen" in out
    assert study.why[:40] in out
    assert "as brought" in out
    assert "full precision" in out
    assert "memory limit of 2.0 GB exceeded" in out
    assert "Not tried: 1 because the budget was spent." in out
    assert f"hasten report {study.key[:12]}" in out
    assert not any(line != line.rstrip() for line in out.splitlines())


def test_options_reach_the_verb(hasten, optimizing):
    hasten(
        *("optimize", "cnn.onnx", "--only", "int8", "--only", "fuse", "--skip", "cache", "--runtime", "openvino"),
        *("--cpus", "1", "--memory", "2GB", "--budget", "90s", "--out", "x.bundle", "--pack", "--quiet"),
    )
    (call,) = optimizing
    assert call["only"] == ["int8", "fuse"]
    assert call["skip"] == ["cache"]
    assert call["runtime"] == ["openvino"]
    assert (call["cpus"], call["memory"], call["budget"], call["pack"]) == (1, "2GB", 90.0, True)
    assert str(call["out"]) == "x.bundle"


def test_json_to_standard_output_is_json_alone_and_progress_goes_to_standard_error(hasten, study, optimizing):
    code, out, err = hasten("optimize", "cnn.onnx", "--json", "-")
    assert code == 0
    assert Study.from_json(json.loads(out)) == study
    assert "trying what could help" in err
    assert "Chosen" in err


def test_json_to_a_file_leaves_the_table_where_it_was(hasten, home, study, optimizing):
    _, out, _ = hasten("optimize", "cnn.onnx", "--json", "study.json")
    assert json.loads((home / "study.json").read_text())["schema"] == "hasten.study/1"
    assert "Chosen" in out


def test_quiet_prints_nothing(hasten, optimizing):
    assert hasten("optimize", "cnn.onnx", "--quiet") == (0, "", "")


def test_a_refused_study_is_shown_and_exits_with_3(hasten, study, monkeypatch):
    def refuse(*args, **kwargs):
        error = GateRefused("no variant satisfies p99<20ms: the nearest was 25 by openvino", "relax the bound")
        error.study = study
        raise error

    monkeypatch.setattr(api, "optimize", refuse)
    code, out, err = hasten("optimize", "cnn.onnx")
    assert code == 3
    assert "Why the others lost" in out
    assert "no variant satisfies p99<20ms" in err


def test_a_dry_run_says_what_would_be_tried_and_why(hasten, monkeypatch):
    recipe = Recipe(runtime={"name": "openvino"})
    proposal = Proposal(recipe, Prediction(2.56, "the profile"), "it multiplies bf16 faster", "runtime")
    monkeypatch.setattr(api, "propose", lambda *args, **kwargs: [proposal])
    code, out, _ = hasten("optimize", "cnn.onnx", "--dry-run")
    assert code == 0
    assert "2.56x" in out
    assert "it multiplies bf16 faster" in out
    _, out, _ = hasten("optimize", "cnn.onnx", "--dry-run", "--json", "-")
    (found,) = json.loads(out)["proposals"]
    assert found["recipe"] == recipe.to_json()
    assert found["gain"]["source"] == "estimated: the profile"


@pytest.mark.parametrize("width", [80, 100, 140])
def test_the_answer_fits_the_terminal(study, width):
    from rich.console import Console

    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(*study_report(study, width), sep="\n")
    text = console.export_text()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text
    assert "5.48x" in text
    assert ("Cost/1M" in text) == (width >= 96)


def test_the_demo_prints_the_winner_beside_both_baselines(hasten, home, study, optimizing, monkeypatch):
    monkeypatch.setattr(api, "report", lambda subject, out, **options: out)
    code, out, _ = hasten("demo", "--budget", "60s")
    assert code == 0
    (call,) = optimizing
    assert call["metric"] == "accuracy"
    assert str(call["out"]) == "hasten-demo-vision.bundle"
    short = out[out.index("In short") :]
    for name, speedup in (("as brought", "1.00x"), ("full precision", "1.31x"), ("chosen", "5.48x")):
        (line,) = [line for line in short.splitlines() if line.startswith(name)]
        assert line.endswith(speedup)
    assert "hasten-demo-vision.html" in out
    assert "hasten optimize MODEL.onnx" in out


def test_studies_are_listed_shown_and_removed(hasten, study):
    from hasten.lab.store import Store

    assert "The store is empty" in hasten("study", "list")[1]
    Store().put_study(study)
    key = study.key[:12]
    code, out, _ = hasten("study", "list")
    assert code == 0
    assert key in out
    assert "cnn.onnx" in out
    (entry,) = json.loads(hasten("study", "list", "--json", "-")[1])["studies"]
    assert entry["key"] == study.key
    assert "Chosen" in hasten("study", "show", key)[1]
    assert hasten("study", "rm", key)[0] == 0
    assert hasten("study", "show", key)[0] == 2


INTERRUPTED = """
import sys, threading
from hasten import api
from hasten.cli import main
from hasten.events import Event
from hasten.study import Study
import json

study = Study.from_json(json.load(open(sys.argv[1])))

def optimize(model, data=None, *, on_event, **options):
    on_event(Event("stage", "waiting for you", 0.1))
    try:
        threading.Event().wait(60)
    except KeyboardInterrupt:
        on_event(Event("note", "stopped by the user"))
    return study

api.optimize = optimize
sys.argv = ["hasten", "optimize", "my model.onnx"]
sys.exit(main())
"""


def test_ctrl_c_on_a_terminal_leaves_a_study_says_how_to_go_on_and_exits_with_130(home, study):
    (home / "study.json").write_text(json.dumps(study.to_json()))
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(home / "study.json")],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        preexec_fn=take_terminal,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
    )
    os.close(follower)
    seen = b""
    while chunk := read(leader):
        seen += chunk
        if b"waiting for you" in seen and b"^C" not in seen:
            os.write(leader, b"\x03")
    os.close(leader)
    assert process.wait(30) == 130
    text = seen.decode()
    assert "Chosen" in text
    assert "hasten optimize 'my model.onnx'" in text
    assert "Traceback" not in text


def take_terminal() -> None:
    """Make the child's standard input its controlling terminal, so that ^C becomes a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def read(leader: int) -> bytes:
    """What was written; nothing once the other side is closed, which Linux says as an error."""
    try:
        return os.read(leader, 65536)
    except OSError:
        return b""
