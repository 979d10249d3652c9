"""From LLVM assembly to PTX, which a GPU's driver makes machine code of. Needs no GPU."""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm

from headrace.kernels.rows.targets.cpu_code import optimised

TRIPLE = "nvptx64-nvidia-cuda"
VERSION = "+ptx85"  # which drivers from CUDA 12.5 on read


@cache
def _machine(architecture: str) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=architecture, features=VERSION, opt=3)


def ptx(text: str) -> bytes:
    """PTX of a module, whose first line is the GPU's architecture, "sm_90"; later GPUs take it too."""
    architecture, text = text.split("\n", 1)
    machine = _machine(architecture)
    return str(machine.emit_assembly(optimised(text, machine))).encode()
