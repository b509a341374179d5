"""Checks where a model's external data lies before anything opens it: inside the model's folder, there, long enough."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath

from hasten.errors import InvalidInput


def external_file(model: Path, location: str, tensor: str) -> Path:
    """The file that `location` names beside `model`. Raises `InvalidInput` if it is not a file inside that folder."""
    outside = InvalidInput(
        f"{model.name}: the external data of {tensor!r} is at {location!r}, outside the model's folder",
        "put the data file beside the model and save the model again with a relative location",
    )
    posix, windows = PurePosixPath(location), PureWindowsPath(location)
    if not location or "\0" in location:
        raise InvalidInput(f"{model.name}: the external data of {tensor!r} has no usable location ({location!r})",
                           "save the model again with its external data")  # fmt: skip
    if posix.is_absolute() or windows.drive or windows.root or ".." in (*posix.parts, *windows.parts):
        raise outside
    folder = model.parent.resolve()
    try:
        found = (folder / location).resolve(strict=True)
    except (OSError, RuntimeError, ValueError):
        raise InvalidInput(
            f"{model.name}: the external data file {location!r} (of {tensor!r}, among others) is missing",
            f"copy it into {model.parent}",
        ) from None
    if not found.is_relative_to(folder):
        raise InvalidInput(
            f"{model.name}: the external data file {location!r} is a link to {found}, outside the model's folder",
            "copy the file itself beside the model, for example with cp -L",
        )
    if not found.is_file():
        raise InvalidInput(
            f"{model.name}: the external data {location!r} of {tensor!r} is not a file", "point it at a regular file"
        )
    return found


def check_extent(model: Path, tensor: str, location: str, available: int, entries: dict[str, str], needed: int) -> None:
    """Check that `needed` bytes of `tensor` lie within a file of `available` bytes."""
    try:
        offset, length = int(entries.get("offset", "0") or "0"), int(entries.get("length", "") or needed)
    except ValueError:
        raise InvalidInput(f"{model.name}: the external data of {tensor!r} has an offset or length that is no number",
                           "save the model again with its external data") from None  # fmt: skip
    if offset < 0 or length != needed:
        raise InvalidInput(
            f"{model.name}: the external data of {tensor!r} is said to be {length} bytes at {offset}, "
            f"but its shape and type need {needed} bytes",
            "save the model again with its external data",
        )
    if offset + needed > available:
        raise InvalidInput(
            f"{model.name}: {tensor!r} needs bytes {offset} to {offset + needed} of {location!r}, "
            f"which has only {available}",
            "the data file is truncated or belongs to another model: copy it again",
        )
