"""From LLVM assembly to machine code of this processor, without Numba."""

from __future__ import annotations

import llvmlite.binding as llvm

from headrace.kernels.runtime.native import processor, target_machine

LEVEL = 2  # of optimisation


def is_wide() -> bool:
    """Whether the processor has 32 vector registers of 16 float32."""
    return "+avx512f" in processor()[1].split(",")


def object_code(text: str) -> bytes:
    """Machine code of a module, optimised."""
    machine = target_machine()
    return bytes(machine.emit_object(optimised(text, machine)))


def optimised(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """A module, optimised for a machine."""
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=LEVEL)
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module
