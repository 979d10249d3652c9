"""Handling of MuJoCo's fatal errors in threads of compiled code: the call that meets one is left, instead of ending the
process.

MuJoCo ends the process after a fatal error, unless a handler does not return. The handler here jumps back into the call
(setjmp, longjmp), as that of MuJoCo's own package does. It finds the call by its place on the stack: of all calls that
are being made, this thread's is the nearest below.
"""

from __future__ import annotations

import ctypes
from functools import cache

import llvmlite.binding as llvm
import numpy as np

from headrace.kernels.runtime.native import target_machine

BYTES, STACK, TEXT = 1024, 512, 520  # of a slot: all, where the place on the stack is kept, and the error's text
UNSTABLE = -1  # how a step ends after which MuJoCo has reset the simulation
C_FUNCTIONS = ("_setjmp", "longjmp", "strncpy")
MOST = 1024  # slots, of which each thread of each set of simulations has one
_GUARD = """
define i32 @guarded(i64 %function, i64 %first, i64 %second, i64 %slot) noinline optnone {{
entry:
  %here = alloca i64
  %place = ptrtoint ptr %here to i64
  %kept = add i64 %slot, {stack}
  %at = inttoptr i64 %kept to ptr
  store volatile i64 %place, ptr %at
  %target = inttoptr i64 {_setjmp} to ptr
  %buffer = inttoptr i64 %slot to ptr
  %jumped = {jump}
  %fine = icmp eq i32 %jumped, 0
  br i1 %fine, label %call, label %end
call:
  %called = inttoptr i64 %function to ptr
  %a = inttoptr i64 %first to ptr
  %b = inttoptr i64 %second to ptr
  call void %called(ptr %a, ptr %b)
  br label %end
end:
  %failed = phi i32 [ 0, %call ], [ 1, %entry ]
  store volatile i64 0, ptr %at
  ret i32 %failed
}}
attributes #0 = {{ returns_twice }}
"""
_HANDLER = """
define void @failed(ptr %text) noinline {{
entry:
  %frame = alloca i8
  %here = ptrtoint ptr %frame to i64
  br label %look
look:
  %i = phi i64 [ 0, %entry ], [ %after, %next ]
  %nearest = phi i64 [ -1, %entry ], [ %kept_nearest, %next ]
  %found = phi i64 [ 0, %entry ], [ %kept_found, %next ]
  %offset = mul i64 %i, {bytes}
  %slot = add i64 %offset, {table}
  %address = add i64 %slot, {stack}
  %pointer = inttoptr i64 %address to ptr
  %place = load volatile i64, ptr %pointer
  %far = sub i64 %place, %here
  %below = icmp ugt i64 %place, %here
  %nearer = icmp ult i64 %far, %nearest
  %better = and i1 %below, %nearer
  %kept_nearest = select i1 %better, i64 %far, i64 %nearest
  %kept_found = select i1 %better, i64 %slot, i64 %found
  br label %next
next:
  %after = add i64 %i, 1
  %more = icmp ult i64 %after, {most}
  br i1 %more, label %look, label %done
done:
  %none = icmp eq i64 %kept_found, 0
  br i1 %none, label %leave, label %jump
jump:
  %to = add i64 %kept_found, {text}
  %copy = inttoptr i64 {strncpy} to ptr
  %into = inttoptr i64 %to to ptr
  %ignored = call ptr %copy(ptr %into, ptr %text, i64 {size})
  %back = inttoptr i64 {longjmp} to ptr
  %buffer = inttoptr i64 %kept_found to ptr
  call void %back(ptr %buffer, i32 1)
  unreachable
leave:
  ret void
}}
"""


class Guards:
    """Slots of so many threads, until close(). Raises RuntimeError where all are in use."""

    def __init__(self, number: int) -> None:
        taken = next((i for i in range(MOST - number + 1) if not _taken[i : i + number].any()), None)
        if taken is None:
            raise RuntimeError(f"{number} threads of a simulation are too many: {MOST} in a process step all of them")
        self._slots = slice(taken, taken + number)
        _taken[self._slots] = True
        self.address = _table.ctypes.data + taken * BYTES

    def text(self, thread: int) -> str:
        """MuJoCo's last error in a thread."""
        text = _table[self._slots.start + thread, TEXT:].tobytes()
        return text.partition(b"\0")[0].decode(errors="replace")

    def close(self) -> None:
        """Give the slots back."""
        _taken[self._slots] = False


_table, _taken = np.zeros((MOST, BYTES), np.uint8), np.zeros(MOST, np.bool_)


@cache
def functions() -> tuple[int, int]:
    """The addresses of a function that calls a function of two pointers, (function, pointer, pointer, slot), and
    returns 1 after a fatal error; and of the handler, which MuJoCo calls with the error's text: 0 where the C library
    has no setjmp that can be called so, as on Windows, where MuJoCo ends the process.
    """
    jump, places = "call i32 %target(ptr %buffer) #0", dict.fromkeys(C_FUNCTIONS, 0)
    try:
        library = ctypes.CDLL(None)
        places = {name: ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in C_FUNCTIONS}
    except (TypeError, AttributeError):
        jump = "add i32 0, 0"
    offsets = {"bytes": BYTES, "stack": STACK, "text": TEXT, "size": BYTES - TEXT - 1, "most": MOST}
    text = (_GUARD + _HANDLER).format(**offsets, **places, jump=jump, table=_table.ctypes.data)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), target_machine())
    engine.finalize_object()
    _engines.append(engine)
    return engine.get_function_address("guarded"), engine.get_function_address("failed") if places["longjmp"] else 0


_engines: list[llvm.ExecutionEngine] = []  # whose memory has the functions
