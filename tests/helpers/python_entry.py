"""Entry points of compiled code that are Python functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

from headrace.kernels.runtime.native import Call

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


class PythonEntry:
    """Stands for a Native. do(worker, slots): what each thread does, with the address of its argument slots; a thread
    in which it raises stops as compiled code does, and the exception is among `raised`."""

    def __init__(self, do: Callable[[int, int], object]) -> None:
        self.do, self.raised = do, list[BaseException]()
        self.run = self.run_with_gil = _ENTRY(self._status)
        self.address = ctypes.cast(self.run, ctypes.c_void_p).value

    def _status(self, slots: int) -> int:
        try:
            self.do(ctypes.c_uint64.from_address(slots).value, slots)
        except BaseException as error:
            self.raised.append(error)
            return 1
        return 0


def python_call(do: Callable[[int], object]) -> Call:
    """A call of a kernel that consists of do(worker)."""
    return Call(PythonEntry(lambda worker, _: do(worker)), (0, np.zeros(16, np.int64)))  # type: ignore[arg-type]
