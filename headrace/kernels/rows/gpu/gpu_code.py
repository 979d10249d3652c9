"""Translation of LLVM assembly to PTX, which a GPU's driver makes machine code of. Needs no GPU."""

from __future__ import annotations

from functools import cache

import llvmlite.binding as llvm

from headrace.kernels.rows.cpu_code import parsed

TRIPLE = "nvptx64-nvidia-cuda"
LEVEL = 2  # of optimisation
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
    module = parsed(text, machine)
    options = llvm.create_pipeline_tuning_options(speed_level=LEVEL)
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return str(machine.emit_assembly(module)).encode()
