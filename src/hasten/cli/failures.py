"""Says on standard error what went wrong: the cause, the fix and the command; a traceback goes to a file."""

from __future__ import annotations

import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from hasten.errors import HastenError
from hasten.paths import cache_dir


def show(error: HastenError) -> None:
    """Print the cause in red on a terminal, then the fix and the command."""
    red, bold, plain = ("\x1b[31m", "\x1b[1m", "\x1b[0m") if sys.stderr.isatty() else ("", "", "")
    lines = [f"{red}error:{plain} {red}{error.cause}{plain}"]
    if error.fix:
        lines.append(f"  {bold}Fix:{plain} {error.fix}")
    if error.command:
        lines.append(f"  {bold}Run:{plain} {error.command}")
    print("\n".join(lines), file=sys.stderr)


def internal(error: Exception, arguments: Sequence[str]) -> None:
    """One line for what nobody foresaw, with the place of the saved traceback."""
    what = " ".join(f"{type(error).__name__}: {error}".split())
    print(f"internal error: {what} (traceback: {_save(error, arguments)})", file=sys.stderr)


def _save(error: Exception, arguments: Sequence[str]) -> Path | str:
    text = f"hasten {shlex.join(arguments)}\n\n{''.join(traceback.format_exception(error))}"
    name = f"error-{datetime.now():%Y%m%d-%H%M%S}"
    for folder in (cache_dir() / "errors", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", prefix=f"{name}-", suffix=".txt", dir=folder, delete=False, encoding="utf-8"
            ) as file:
                file.write(text)
            return Path(file.name)
        except OSError:
            continue
    return "could not be saved: no folder can be written"
