"""Options of numba.njit for the package's own kernels.

No fast-math flags: a function whose sums may be reordered or contracted sets them itself. Functions that only other
kernels call have no wrapper for Python, which saves a fifth of the time to compile.
"""

from __future__ import annotations

from numba import njit  # noqa: TID253

__all__ = ["ENTRY", "INLINE", "INNER", "MERGED", "njit"]

_ALL: dict[str, bool | str] = {"error_model": "numpy", "nogil": True}
INNER = _ALL | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
INLINE = INNER | {"forceinline": True}  # LLVM inlines it
MERGED = INNER | {"inline": "always"}  # Numba inlines it, before types: where it is called once, this compiles fastest
ENTRY = INNER  # called from Python, as machine code: see headrace.kernels.runtime.entry_points
