"""hasten makes machine-learning models faster, smaller and cheaper, and proves it."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "bench",
    "build",
    "compare",
    "doctor",
    "load",
    "optimize",
    "profile",
    "propose",
    "remove_study",
    "report",
    "save",
    "studies",
    "study",
]

if TYPE_CHECKING:
    from hasten.api import (
        bench,
        build,
        compare,
        doctor,
        load,
        optimize,
        profile,
        propose,
        remove_study,
        report,
        save,
        studies,
        study,
    )


def __getattr__(name: str) -> Any:
    if name in __all__:
        from hasten import api

        return getattr(api, name)
    raise AttributeError(f"module 'hasten' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


class _Package(ModuleType):
    """Importing `hasten.report` or `hasten.study` must not hide the verbs `hasten.report` and `hasten.study`."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
