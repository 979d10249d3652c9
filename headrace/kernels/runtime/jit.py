"""How the package's own kernels are compiled: options for numba.njit.

No fast-math flags: where sums may be reordered or contracted, a function says so itself. The functions that only other
kernels call have no wrapper for Python, which takes a fifth of the time to compile.
"""

from __future__ import annotations

from typing import Any

from numba import njit  # noqa: TID253

__all__ = ["ENTRY", "INLINE", "INNER", "MERGED", "njit"]

_ALL: dict[str, Any] = {"error_model": "numpy", "nogil": True}
INNER = _ALL | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
INLINE = INNER | {"forceinline": True}  # LLVM inlines it
MERGED = INNER | {"inline": "always"}  # Numba inlines it, before types: where it is called once, this compiles fastest
ENTRY = INNER  # called from Python, as machine code: see headrace.kernels.runtime.entry_points
