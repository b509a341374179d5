"""Writes docs/cli.md from the command line itself, so that the page cannot say what the commands do not.

`python docs/make_cli_reference.py` writes the page; with `--check` it exits with 1 where the page is not current.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hasten.cli.app import _app
from hasten.cli.commands import COMMANDS, Command

PAGE = Path(__file__).parent / "cli.md"
HEAD = """# Command line

<!-- Written by docs/make_cli_reference.py from the commands themselves: edit those, and run it again. -->

Every command takes `--json FILE` (or `--json -` for standard output), `--quiet` and `--help`. On a terminal it shows
live progress; elsewhere it prints plain lines. What the exit codes mean is on the page about
[exit codes and errors](exit-codes-and-errors.md).
"""


def reference() -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for command in COMMANDS for line in _command(command))])


def _command(command: Command) -> Iterator[str]:
    import typer.main

    parser = typer.main.get_command(_app(command))
    yield f"## hasten {command.name}\n"
    yield f"{command.help}.\n"
    below = getattr(parser, "commands", None)
    if below is None:
        yield from _about(parser, f"hasten {command.name}", command.help)
        return
    for name, each in below.items():
        yield f"### hasten {command.name} {name}\n"
        yield from _about(each, f"hasten {command.name} {name}", "")


def _about(parser: Any, program: str, said: str) -> Iterator[str]:
    arguments = [p for p in parser.params if p.param_type_name == "argument"]
    options = [p for p in parser.params if p.param_type_name == "option" and p.name != "help"]
    usage = " ".join([program, *(_metavar(p) for p in arguments), "[OPTIONS]" if options else ""]).rstrip()
    yield f"```text\n{usage}\n```\n"
    more = (parser.help or "").removeprefix(f"{said}.").strip()
    if more:
        yield f"{more}\n"
    if arguments:
        yield "| Argument | Meaning |\n|---|---|"
        yield from (f"| `{_metavar(p)}` | {_cell(p.help or '')} |" for p in arguments)
        yield ""
    if options:
        yield "| Option | Meaning | Default |\n|---|---|---|"
        yield from (f"| {_option(p)} | {_cell(p.help or '')} | {_default(p)} |" for p in options)
        yield ""


def _metavar(param: Any) -> str:
    """What stands for the value; in words where it has a bar, which a table would take for its own."""
    return str(param.metavar or param.name.upper()).replace("|", " or ")


def _option(param: Any) -> str:
    value = "" if param.is_flag else f" {_metavar(param)}"
    names = [*param.opts, *param.secondary_opts]
    return ", ".join(f"`{name}{value if name.startswith('--') else ''}`" for name in names)


def _default(param: Any) -> str:
    if getattr(param, "required", False):
        return "required"
    if param.is_flag or param.default in (None, (), []) or callable(param.default):
        return ""
    return f"`{param.default}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> int:
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.read_text(encoding="utf-8") == reference() else 1
    PAGE.write_text(reference(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
