"""Numba's threads without long spinning."""

from __future__ import annotations

import contextlib
import importlib
import os
from functools import cache

from headrace.core.openmp import set_by_user

SPINS = "1000"  # some microseconds


@cache
def gentle_threads() -> None:
    """Load the OpenMP library of Numba's threads with a setting that lets waiting threads sleep soon.

    By default GNU's waits by spinning for milliseconds. On a busy machine the spinning thread occupies the
    core that the other one needs: a call of 30 us took 12 ms. The library reads its setting when it is loaded, so
    the environment is as it was afterwards; torch has a copy of its own. Call it before the first parallel kernel.
    """
    if set_by_user():
        return
    os.environ["GOMP_SPINCOUNT"] = SPINS
    try:
        with contextlib.suppress(ImportError):  # Numba has other threads then
            importlib.import_module("numba.np.ufunc.omppool")
    finally:
        del os.environ["GOMP_SPINCOUNT"]
