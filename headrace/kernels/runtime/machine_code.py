"""Compilation of a function to a file of machine code that can be called without Numba.

Numba optimises each function together with all that it calls, and makes machine code of it, before it does the same for
the function's callers: a function that is ten calls deep is copied and optimised ten times. Here all functions that an
entry point calls are linked and optimised once.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING

import llvmlite.binding as llvm
from numba import typeof  # noqa: TID253
from numba.core import errors, event  # noqa: TID253
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen  # noqa: TID253
from numba.core.compiler_lock import global_compiler_lock  # noqa: TID253
from numba.core.registry import cpu_target  # noqa: TID253
from numba.core.runtime.context import NRTContext  # noqa: TID253

from headrace.kernels.runtime.native import ENTRY, Argument, target_machine

if TYPE_CHECKING:
    from numba.core.dispatcher import Dispatcher
    from numba.core.environment import Environment
    from numba.core.types import Type


# Numba counts an array's references by these functions, in each function that it has compiled before, as usual.
# Arguments are not counted, and there are no other arrays: they do nothing.
_COUNTS = re.compile(r"(define linkonce_odr void @NRT_(?:incref|decref)\(ptr %[^)]*\))[^{]*\{.*?\n\}", re.DOTALL)


def object_code(function: Dispatcher, arguments: tuple[Argument, ...]) -> bytes:
    """Machine code of a Numba dispatcher for arguments of these types, with one entry point: see Native.

    With such arguments the dispatcher can then be called by compiled functions only: a call from Python would crash.

    Raises Numba's errors, and RuntimeError where the code needs Numba to run, such as for memory of its own.
    """
    module = optimized(function, tuple(typeof(argument) for argument in arguments))
    missing = [f.name for f in module.functions if f.is_declaration and f.name.startswith(("NRT_", "numba_", "Py"))]
    if missing:
        raise RuntimeError(f"{function.py_func.__name__} cannot run without Numba: it calls {', '.join(missing)}")
    return target_machine().emit_object(module)


def optimized(function: Dispatcher, types: tuple[Type, ...]) -> llvm.ModuleRef:
    """The code of a function for arguments of these types, with all that it calls, optimised."""
    with _linking():
        function.compile(types)
    compiled = function.overloads[types]
    name = compiled.fndesc.llvm_func_name
    module = compiled.library.linked()
    if any(function.name in ("NRT_incref", "NRT_decref") for function in module.functions):
        module = llvm.parse_assembly(_COUNTS.sub(r"\1 alwaysinline { ret void }", str(module)))
    module.link_in(llvm.parse_assembly(_entry(name, module.get_function(name))))
    _optimize(module)
    return module


class _Linked(JITCodeLibrary):
    """Function as Numba translates it: neither optimised nor made into machine code, and linked only if asked for."""

    def finalize(self) -> None:
        self._finalized = True

    def linked(self) -> llvm.ModuleRef:
        """The function with all that it calls, each once."""
        module = self._alone().clone()
        for library in self._called():
            called = library._alone() if isinstance(library, _Linked) else library._get_module_for_linking()
            module.link_in(called, preserve=True)
        return module

    def _alone(self) -> llvm.ModuleRef:
        return super()._get_module_for_linking()

    def _called(self) -> dict[JITCodeLibrary, None]:
        """Libraries of the functions that it calls, directly or not, in order."""
        found: dict[JITCodeLibrary, None] = {}
        waiting = [*reversed(self._linking_libraries)]
        while waiting:
            library = waiting.pop()
            if library is not self and library not in found:
                found[library] = None
                waiting += reversed(library._linking_libraries) if isinstance(library, _Linked) else ()
        return found

    def _get_module_for_linking(self) -> llvm.ModuleRef:
        """Link for a caller that Numba compiles as usual."""
        return self.linked()


class _Linker(JITCPUCodegen):
    """Makes no function callable from Python: it loads none of them."""

    _library_class = _Linked

    def _add_module(self, module: llvm.ModuleRef) -> None:
        pass

    def set_env(self, env_name: str, env: Environment) -> None:
        pass


class _NoColours:
    """Colours of Numba's error messages: none."""

    def __getattr__(self, name: str) -> Callable[[str], str]:
        return lambda message: message


@cache
def _linker() -> _Linker:
    return _Linker("headrace")


@contextmanager
def _linking() -> Iterator[None]:
    """Let Numba only translate what it compiles, within this block. Other threads cannot compile meanwhile.

    Several things that Numba and Python would do are left out, because they take time. Numba would time its calls of
    LLVM for each function that is being compiled, thus ten times for code that is ten calls deep. It would count
    references to arrays: all are arguments, which are not counted. It would colour error messages, which it makes of
    each type that does not fit; that takes a twentieth of the time. Python would look for garbage often, and go through
    all that is in memory each time; that takes a fifth of the time.
    """
    changed = [
        (cpu_target.target_context, "_internal_codegen", _linker()),
        (event, "install_timer", lambda *arguments: nullcontext()),
        (errors, "_termcolor_inst", _NoColours()),
        (NRTContext, "_call_incref_decref", lambda *arguments: None),
    ]
    with global_compiler_lock:
        thresholds = gc.get_threshold()
        usual = [getattr(owner, name) for owner, name, _ in changed]
        try:
            for owner, name, value in changed:
                setattr(owner, name, value)
            gc.set_threshold(thresholds[0] and max(thresholds[0], 50_000), *thresholds[1:])
            yield
        finally:
            gc.set_threshold(*thresholds)
            for (owner, name, _), value in zip(changed, usual, strict=True):
                setattr(owner, name, value)


def _entry(name: str, function: llvm.ValueRef) -> str:
    """A function that takes its arguments from slots, and returns 0 or the number of an exception."""
    kinds = [str(argument.type) for argument in list(function.arguments)[2:]]  # after its result and its exception
    lines = [
        f"declare i32 @{name}(ptr, ptr{''.join(f', {kind}' for kind in kinds)})",
        f"define i32 @{ENTRY}(ptr %slots) {{",
        "%result = alloca i64",
        "%exception = alloca i64",
    ]
    for k, kind in enumerate(kinds):
        lines += [f"%p{k} = getelementptr i64, ptr %slots, i64 {k}", f"%a{k} = load {kind}, ptr %p{k}"]
    passed = "".join(f", {kind} %a{k}" for k, kind in enumerate(kinds))
    lines += [f"%status = call i32 @{name}(ptr %result, ptr %exception{passed})", "ret i32 %status", "}"]
    return "\n".join(lines)


def _optimize(module: llvm.ModuleRef) -> None:
    """Optimise what the entry point calls, as Numba's settings say, and remove the rest."""
    for function in module.functions:
        if not function.is_declaration and function.name != ENTRY:
            function.linkage = "internal"
    passes, builder = _linker()._module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, builder)
