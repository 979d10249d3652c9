"""Compilation of LLVM assembly to machine code of this processor, without Numba."""

from __future__ import annotations

import llvmlite.binding as llvm

from headrace.kernels.runtime.native import processor, target_machine


def is_wide() -> bool:
    """Tell whether the processor has 32 vector registers of 16 float32."""
    return "+avx512f" in processor()[1].split(",")


def object_code(text: str) -> bytes:
    """Machine code of a module, optimised."""
    machine = target_machine()
    return bytes(machine.emit_object(optimised(text, machine)))


def optimised(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """A module, optimised for a machine.

    The text is in vectors, without what could be left out: with the passes of LLVM's level 2 instead of these three,
    programs compute the same bits as fast, and take twice as long to compile.
    """
    module = parsed(text, machine)
    passes = llvm.create_new_module_pass_manager()
    passes.add_sroa_pass()
    passes.add_loop_unroll_pass()
    passes.add_instruction_combine_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    return module


def unoptimised_code(text: str) -> bytes:
    """Machine code of a module as it is, made in a tenth of the time: for programs that tests alone run."""
    cpu, features, target = processor()
    machine = target.create_target_machine(cpu=cpu, features=features, opt=0, codemodel="jitdefault", jit=True)
    return bytes(machine.emit_object(parsed(text, machine)))


def parsed(text: str, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """A module for a machine."""
    module = llvm.parse_assembly(text)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    return module
