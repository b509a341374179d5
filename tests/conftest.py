"""What holds for every test."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def arithmetic_as_it_was() -> Iterator[None]:
    """OpenVINO may leave this thread flushing denormal numbers to zero, which the tests after it would inherit.

    Hypothesis, for one, then refuses to draw floats at all. FE_DFL_ENV is (const fenv_t *) -1 in glibc.
    """
    yield
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL("libm.so.6").fesetenv(ctypes.c_void_p(-1))
