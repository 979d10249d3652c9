"""From LLVM assembly to PTX, which a GPU's driver makes machine code of. Needs no GPU."""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm

from headrace.kernels.rows.targets.cpu_code import optimised

TRIPLE = "nvptx64-nvidia-cuda"
VERSION = "+ptx80"  # which drivers from CUDA 12.0 on read


@cache
def _machine(architecture: str) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=architecture, features=VERSION, opt=3)


def ptx(text: str, architecture: str) -> bytes:
    """PTX of a module. architecture: "sm_90", of the GPU or an older one."""
    machine = _machine(architecture)
    return str(machine.emit_assembly(optimised(text, machine))).encode()
