"""From a function that Numba can compile to a file of machine code that can be called without Numba."""

from __future__ import annotations

from typing import TYPE_CHECKING

import llvmlite.binding as llvm

from headrace.kernels.runtime.native import ENTRY, Argument, target_machine

if TYPE_CHECKING:
    from numba.core.dispatcher import Dispatcher

# Numba frees arrays without references by this function. Arguments are not counted, so it is never called.
_NEVER_CALLED = "NRT_MemInfo_call_dtor"


def object_code(function: Dispatcher, arguments: tuple[Argument, ...]) -> bytes:
    """Machine code of a Numba dispatcher for arguments of these types, with one entry point: see Native.

    Raises Numba's errors, and RuntimeError where the code needs Numba to run, such as for memory of its own.
    """
    from numba import typeof

    types = tuple(typeof(argument) for argument in arguments)
    function.compile(types)
    name = function.overloads[types].fndesc.llvm_func_name
    module = llvm.parse_assembly(function.inspect_llvm(types))
    module.link_in(llvm.parse_assembly(_entry(name, module.get_function(name))))
    _only_the_entry(module)
    missing = [f.name for f in module.functions if f.is_declaration and f.name.startswith(("NRT_", "numba_", "Py"))]
    if missing:
        raise RuntimeError(f"{function.py_func.__name__} cannot run without Numba: it calls {', '.join(missing)}")
    return target_machine().emit_object(module)


def _entry(name: str, function: llvm.ValueRef) -> str:
    """A function that takes its arguments from slots, and returns 0 or the number of an exception."""
    kinds = [str(argument.type) for argument in list(function.arguments)[2:]]  # after its result and its exception
    lines = [
        f"declare i32 @{name}(ptr, ptr{''.join(f', {kind}' for kind in kinds)})",
        f"define void @{_NEVER_CALLED}(ptr %owner) {{ ret void }}",
        f"define i32 @{ENTRY}(ptr %slots) {{",
        "%result = alloca i64",
        "%exception = alloca i64",
    ]
    for k, kind in enumerate(kinds):
        lines += [f"%p{k} = getelementptr i64, ptr %slots, i64 {k}", f"%a{k} = load {kind}, ptr %p{k}"]
    passed = "".join(f", {kind} %a{k}" for k, kind in enumerate(kinds))
    lines += [f"%status = call i32 @{name}(ptr %result, ptr %exception{passed})", "ret i32 %status", "}"]
    return "\n".join(lines)


def _only_the_entry(module: llvm.ModuleRef) -> None:
    """Remove everything that the entry point does not call."""
    for function in module.functions:
        if not function.is_declaration and function.name != ENTRY:
            function.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(module, llvm.create_pass_builder(target_machine(), llvm.create_pipeline_tuning_options()))
