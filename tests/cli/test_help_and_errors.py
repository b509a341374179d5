"""What the command line says of itself, and of what goes wrong."""

from __future__ import annotations

import re

import pytest

from hasten import __version__, api
from hasten.cli.commands import COMMANDS
from hasten.errors import Failed, GateRefused, InvalidInput


def test_the_overview_names_every_command(hasten):
    code, out, err = hasten("--help")
    assert code == 0
    assert err == ""
    for command in COMMANDS:
        assert re.search(rf"^  {command.name}\b", out, re.MULTILINE)
    assert max(map(len, out.splitlines())) <= 115


def test_without_a_command_the_overview_is_shown(hasten):
    assert hasten() == hasten("--help")


def test_the_version(hasten):
    assert hasten("--version") == (0, f"hasten {__version__}\n", "")


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
def test_every_command_has_help_with_json_and_quiet(hasten, command):
    code, out, err = hasten(command, *(["list"] if command == "study" else []), "--help")
    assert code == 0
    assert err == ""
    assert "--json FILE|-" in out
    assert "-q, --quiet" in out
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("command", ["profile", "bench", "compare", "optimize", "build", "demo"])
def test_whatever_runs_a_model_takes_cpus_and_memory(hasten, command):
    _, out, _ = hasten(command, "--help")
    assert "--cpus N" in out
    assert "--memory SIZE" in out


def test_an_unknown_flag_is_named_with_a_hint(hasten):
    code, out, err = hasten("optimize", "model.onnx", "--budgt", "5m")
    assert code == 2
    assert out == ""
    assert "--budgt" in err
    assert "--budget" in err
    assert "Run: hasten optimize --help" in err


def test_an_unknown_command_is_answered_with_the_nearest(hasten):
    code, _, err = hasten("optimise")
    assert code == 2
    assert "Fix: did you mean optimize?" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nonsense"],
        ["optimize"],
        ["bench", "m.onnx", "--cpus", "0"],
        ["bench", "m.onnx", "--cpus", "two"],
        ["study"],
        ["study", "burn"],
        ["optimize", "m.onnx", "--budget", "soon"],
        ["optimize", "m.onnx", "--json", "no/such/folder/study.json"],
        ["profile", "m.onnx", "--export", "poetry"],
        ["demo", "--model", "smell"],
        ["report", "feedface"],
    ],
)
def test_wrong_usage_exits_with_2_and_no_traceback(hasten, arguments):
    code, out, err = hasten(*arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert "Traceback" not in err


@pytest.mark.parametrize(("error", "code"), [(InvalidInput, 2), (Failed, 1), (GateRefused, 3)])
def test_an_error_names_the_cause_the_fix_and_the_command(hasten, monkeypatch, error, code):
    def fail(*args, **kwargs):
        raise error("the cause", "the fix", "the command")

    monkeypatch.setattr(api, "compare", fail)
    assert hasten("compare", "a.onnx", "b.onnx", "--quiet") == (
        code,
        "",
        "error: the cause\n  Fix: the fix\n  Run: the command\n",
    )


def test_a_surprise_is_one_line_and_its_traceback_is_kept(hasten, home, monkeypatch):
    def surprise(*args, **kwargs):
        raise ZeroDivisionError("one over\nnothing")

    monkeypatch.setattr(api, "doctor", surprise)
    code, _, err = hasten("doctor", "--quiet")
    assert code == 1
    assert err.count("\n") == 1
    assert err.startswith("internal error: ZeroDivisionError: one over nothing (traceback: ")
    (saved,) = (home / "cache" / "hasten" / "errors").iterdir()
    assert str(saved) in err
    assert "in surprise" in saved.read_text()


def test_ctrl_c_before_anything_was_measured_exits_with_130(hasten, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "optimize", interrupted)
    code, _, err = hasten("optimize", "model.onnx", "--quiet")
    assert code == 130
    assert err == "interrupted\n"


def test_a_missing_extra_is_named_before_anything_runs(hasten, monkeypatch):
    monkeypatch.setattr("hasten.cli.profile.find_spec", lambda name: None)
    code, out, err = hasten("profile", "model.onnx", "--export", "roofline")
    assert (code, out) == (2, "")
    assert "Run: pip install 'hasten[plots]'" in err
