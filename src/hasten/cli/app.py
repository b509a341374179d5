"""The entry point: finds the command, imports only that one, and turns whatever goes wrong into an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hasten.cli.commands import BY_NAME, Command, overview
from hasten.errors import HastenError, InvalidInput

if TYPE_CHECKING:
    from typer import Typer

INTERRUPTED = 130


class Interrupted(Exception):
    """Ctrl-C while a verb ran; typer would turn KeyboardInterrupt itself into a silent exit."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1, 2, 3 or 130, as the design says."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except (KeyboardInterrupt, Interrupted):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left (`hasten study list | head`): nothing more can be said to anyone.
        sys.stdout = None
        return 1
    except HastenError as error:
        from hasten.cli.failures import show

        show(error)
        return error.exit_code
    except Exception as error:
        from hasten.cli.failures import internal

        internal(error, arguments)
        return 1


def _run(arguments: list[str]) -> int:
    first = arguments[0] if arguments else "--help"
    if first in ("--help", "-h", "help"):
        bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
        print(overview(bold, plain))
        return 0
    if first in ("--version", "-V"):
        from hasten import __version__

        print(f"hasten {__version__}")
        return 0
    if first not in BY_NAME:
        raise _unknown(first)
    return _dispatch(BY_NAME[first], arguments[1:])


def _unknown(word: str) -> InvalidInput:
    import difflib

    near = difflib.get_close_matches(word, BY_NAME, n=1)
    what = "option" if word.startswith("-") else "command"
    fix = f"did you mean {near[0]}?" if near else f"use one of: {', '.join(BY_NAME)}"
    return InvalidInput(f"there is no {what} {word!r}", fix, "hasten --help")


def _dispatch(command: Command, arguments: list[str]) -> int:
    import typer.main

    program = f"hasten {command.name}"
    parser = typer.main.get_command(_app(command))
    try:
        code: Any = parser.main(args=arguments, prog_name=program, standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except Exception as error:
        # typer's own usage errors, whose class it keeps in a private module: they all can format themselves.
        if not hasattr(error, "format_message"):
            raise
        raise _usage(error, program) from None
    return code if isinstance(code, int) else 0


def _app(command: Command) -> Typer:
    """The typer application of one command: the module's own group, or its one function."""
    import importlib

    import typer

    from hasten.cli import options
    from hasten.cli.help import HelpfulCommand

    module = importlib.import_module(command.module)
    if hasattr(module, "app"):
        return module.app  # type: ignore[no-any-return]
    app = typer.Typer(**options.APP)
    about = f"{command.help}.\n\n{module.command.__doc__ or ''}".rstrip()
    app.command(help=about, cls=HelpfulCommand)(module.command)
    return app


def _usage(error: Any, program: str) -> InvalidInput:
    message = error.format_message().strip().rstrip(".")
    context = getattr(error, "ctx", None)
    where = getattr(context, "command_path", program)
    return InvalidInput(message[:1].lower() + message[1:], "see what the command takes", f"{where} --help")
