"""What a worker function is given besides its payload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Scope:
    """`state` lives as long as the worker: open sessions are kept there between calls."""

    def __init__(self, report: Callable[[float | None, str], None] | None = None) -> None:
        self.state: dict[str, Any] = {}
        self._report = report

    def progress(self, fraction: float | None, text: str) -> None:
        """Tell the parent how far this call is: `fraction` from 0 to 1, or `None` when that is unknown."""
        if self._report is not None:
            self._report(None if fraction is None else float(fraction), str(text))
