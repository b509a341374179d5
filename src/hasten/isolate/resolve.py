"""Turn `module:function` into the function."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from hasten.errors import InvalidInput


def resolve(name: str) -> Callable[..., Any]:
    """The callable that `package.module:function` names; `module:Class.method` works too.

    The working folder counts as importable, after everything installed, so that a user's own file is found but can
    never shadow a library. Raises `InvalidInput` that says which part of the name is wrong.
    """
    module_name, colon, path = name.partition(":")
    parts = path.split(".")
    if not colon or not all(part.isidentifier() for part in [*module_name.split("."), *parts]):
        raise InvalidInput(f"{name!r} does not name a function", "write it as module:function, such as metrics:score")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    importlib.invalidate_caches()
    found: Any = _import(module_name)
    for depth, part in enumerate(parts):
        if not hasattr(found, part):
            import difflib

            where = ".".join([module_name, *parts[:depth]])
            close = difflib.get_close_matches(part, [key for key in vars(found) if not key.startswith("_")], 1)
            raise InvalidInput(
                f"{where} has no {part!r}", f"did you mean {close[0]!r}?" if close else f"define {part} in {where}"
            )
        found = getattr(found, part)
    if not callable(found):
        raise InvalidInput(f"{name} is a {type(found).__name__}, not a function", "name a function")
    return found


def _import(module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(missing + "."):
            raise InvalidInput(
                f"there is no module {missing!r}",
                f"run from the folder that holds {missing.split('.')[0]}, or install it",
            ) from None
        raise InvalidInput(
            f"{module_name} needs the module {missing!r}, which is not installed", "install it"
        ) from error
    except Exception as error:
        raise InvalidInput(
            f"{module_name} cannot be imported: {type(error).__name__}: {error}", f"make `import {module_name}` work"
        ) from error
