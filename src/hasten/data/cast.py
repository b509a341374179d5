"""Casts a value to the element type that the model takes, or says why that would change it."""

from __future__ import annotations

from typing import Any

import numpy as np

from hasten.errors import InvalidInput

STORED_AS = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e4m3fnuz": "uint8", "float8_e5m2": "uint8",
             "float8_e5m2fnuz": "uint8", "float8_e8m0fnu": "uint8"}  # fmt: skip
"""Types that NumPy lacks: the integers whose bits carry them on disk."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype for `name`, from ml_dtypes where NumPy has none. "string" is `object`."""
    if name == "string":
        return np.dtype(object)
    if name in STORED_AS:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    try:
        return np.dtype(name)
    except TypeError:
        raise InvalidInput(
            f"the model takes {name} inputs, which hasten cannot make", "export the model with another input type"
        ) from None


def cast(value: Any, dtype: str, what: str, *, missing: bool = False) -> np.ndarray:
    """`value` as an array of `dtype`. `what` opens the message of the `InvalidInput` for a value that cannot be kept.

    Integers must be in range and, in floating point, exact; floating point is rounded to fewer bits but must not
    overflow; it never becomes an integer. NaN and infinity are refused, but for NaN where it may stand for what is
    `missing`.
    """
    array = _as_array(value, what)
    if dtype == "string":
        return _strings(array, what)
    target = numpy_dtype(dtype)
    if array.dtype.kind == "V" and array.dtype.fields is None and array.dtype.itemsize == target.itemsize \
            and dtype in STORED_AS:  # fmt: skip
        array = array.view(target)  # .npy files forget the name of an ml_dtypes type, not its bits
    if array.dtype.kind in "USO":
        raise _wrong(what, _describe(array), dtype)
    return _numbers(array, target, dtype, what, missing)


def _as_array(value: Any, what: str) -> np.ndarray:
    if value is None:
        raise InvalidInput(f"{what} is null", "give every input a value")
    try:
        array = np.asarray(value)
    except Exception as error:  # ragged lists, or a stranger's __array__
        raise InvalidInput(
            f"{what} is not a rectangular array: {str(error).splitlines()[0]}",
            "give each sample lists of equal length; samples may differ from one another",
        ) from None
    if array.dtype.fields is not None:
        raise InvalidInput(f"{what} is a structured array", "give one plain array per input")
    return array


def _strings(array: np.ndarray, what: str) -> np.ndarray:
    if array.dtype.kind == "S":
        try:
            return np.char.decode(array, "utf-8").astype(object)
        except UnicodeDecodeError:
            raise InvalidInput(f"{what} has bytes that are not UTF-8", "give text") from None
    if array.dtype.kind == "O" and all(isinstance(item, str) for item in array.flat):
        return array
    if array.dtype.kind == "U":
        return array.astype(object)
    raise _wrong(what, _describe(array), "string")


def _numbers(array: np.ndarray, target: np.dtype[Any], dtype: str, what: str, missing: bool) -> np.ndarray:
    floating = array.dtype.kind == "f" or str(array.dtype) in STORED_AS
    to_floating = target.kind == "f" or dtype in STORED_AS
    if array.dtype.kind == "c" and target.kind != "c":
        raise _wrong(what, _describe(array), dtype)
    if floating or array.dtype.kind == "c":
        _check_finite(array, what, missing)
    if array.dtype == target:
        return np.ascontiguousarray(array) if array.ndim else array
    if floating and not to_floating and target.kind != "c":
        if array.size:
            raise _wrong(what, _describe(array), dtype)
        return array.astype(target)
    if target.kind == "b":
        if array.size and not np.isin(array, (0, 1)).all():
            raise InvalidInput(f"{what} has values other than 0 and 1, the model takes bool", "give true or false")
        return array.astype(bool)
    if not floating and target.kind in "iu":
        limits = np.iinfo(target)
        if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
            raise InvalidInput(
                f"{what} has values from {int(array.min())} to {int(array.max())}, the model takes {dtype}",
                f"keep values within {limits.min} to {limits.max}",
            )
        return array.astype(target)
    with np.errstate(over="ignore", invalid="ignore"):
        result = array.astype(target)
    if floating and to_floating:
        if array.size and np.isinf(result.astype(np.float64)).any():
            raise InvalidInput(f"{what} has values too large for the model's {dtype}", "scale the data")
    elif to_floating and not _exact(array, result):
        raise InvalidInput(
            f"{what} is {_describe(array)} with values that {dtype} cannot hold exactly",
            f"convert it to {dtype} yourself if the rounding is meant",
        )
    return result


def _exact(array: np.ndarray, result: np.ndarray) -> bool:
    if array.dtype.kind == "b" or not array.size:
        return True
    wide = result.astype(np.float64)
    if not np.isfinite(wide).all() or np.abs(wide).max() > 2.0**62:
        return False
    return bool((wide.astype(np.int64) == array).all())


def _check_finite(array: np.ndarray, what: str, missing: bool) -> None:
    wide = array if array.dtype.kind in "fc" else array.astype(np.float32)
    finite = ~np.isinf(wide) if missing else np.isfinite(wide)
    if not finite.all():
        kind = "NaN" if np.isnan(wide[~finite]).any() else "infinite"
        raise InvalidInput(
            f"{what} has {int((~finite).sum())} {kind} value(s) among {array.size}",
            "remove or replace them: outputs for them cannot be compared",
        )


def _describe(array: np.ndarray) -> str:
    if array.dtype.kind in "US":
        return "text"
    if array.dtype.kind == "O":
        kinds = sorted({type(item).__name__ for item in array.flat})[:3]
        return f"a mix of {', '.join(kinds)}" if len(kinds) > 1 else (kinds[0] if kinds else "object")
    return str(array.dtype)


def _wrong(what: str, found: str, dtype: str) -> InvalidInput:
    return InvalidInput(f"{what} is {found}, the model takes {dtype}", f"give {dtype} values")
