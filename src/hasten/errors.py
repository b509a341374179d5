"""The errors that hasten raises on purpose: each names the cause, the fix and, where there is one, the command."""

from __future__ import annotations

from typing import Any


class HastenError(Exception):
    """A failure that a user can read: `cause` says what happened, `fix` what to do, `command` what to run.

    `exit_code` is what the command line returns: 2 for invalid input or usage, 1 for a failed job or I/O,
    3 for "ran, and the gate says no".
    """

    exit_code = 1

    def __init__(self, cause: str, fix: str = "", command: str = "") -> None:
        super().__init__(cause)
        self.cause, self.fix, self.command = cause, fix, command

    def __str__(self) -> str:
        parts = [self.cause]
        if self.fix:
            parts.append(f"Fix: {self.fix}")
        if self.command:
            parts.append(f"Run: {self.command}")
        return "\n".join(parts)


class InvalidInput(HastenError):
    """The model, the data, the recipe or an option is not usable."""

    exit_code = 2


class Failed(HastenError):
    """A job failed, or a file could not be read or written."""

    exit_code = 1


class GateRefused(HastenError):
    """Everything ran, and the answer is no: a constraint is missed or a regression was found.

    `study` is the study that says so, where there is one: it is as valid as any other, and can be shown.
    """

    exit_code = 3
    study: Any = None
