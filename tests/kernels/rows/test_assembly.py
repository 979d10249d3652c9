"""Machine code of row programs for other processors: nothing is called outside, sums stay in registers, and all
processors compute the same bits."""

from __future__ import annotations

import re
from functools import cache

import llvmlite.binding as llvm
import numpy as np
import pytest

from headrace.kernels.rows.builder import Builder
from headrace.kernels.rows.cpu_code import optimised
from headrace.kernels.rows.row_plan import Plan
from headrace.kernels.rows.row_program import FUNCTIONS, Input, Output, Program, View, whole
from headrace.kernels.rows.row_schedule import plan
from headrace.kernels.rows.targets.cpu import assembly
from headrace.kernels.runtime.native import Native
from tests.kernels.rows import on_cpu

# name -> triple, processor, whether it has 32 registers of VECTOR, and what its fused product is called
MACHINES = {
    "avx2": ("x86_64-unknown-linux-gnu", "haswell", False, r"vfmadd\w*ps"),
    "avx512": ("x86_64-unknown-linux-gnu", "skylake-avx512", True, r"vfmadd\w*ps"),
    "neon": ("aarch64-unknown-linux-gnu", "neoverse-n1", False, r"fmla"),
    "windows": ("x86_64-pc-windows-msvc", "haswell", False, r"vfmadd\w*ps"),
}


def machine(name: str) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple, cpu, wide, _ = MACHINES[name]
    # as a server's processors of this kind are set up: 512 bits where there are so many
    features = "-prefer-256-bit" if wide else ""
    return llvm.Target.from_triple(triple).create_target_machine(cpu=cpu, features=features, opt=3)


@cache
def layers(by_weights: bool = False) -> Plan:
    """Two layers forward and backward, with all three passes of products."""
    build, (x,) = Builder(), (Input((96,), True, name="x"),)
    w, v = Input((64, 96), False, name="w"), Input((48, 64), False, name="v", position=1)
    hidden = build.map("tanh", build.product(whole(x), whole(w)))
    y = build.product(hidden, whole(v))
    back = build.map("sub", build.product(y, View(v, (64, 48), (1, 64))), hidden)
    outputs = (Output("w", build.outer(back, whole(x))), Output("v", build.outer(y, hidden)))
    return plan(Program("layers", (x,), (w, v), outputs), by_weights=by_weights)


@cache
def functions() -> Plan:
    """Every function of float32 values."""
    build = Builder()
    x, y = (Input((), True, name=name, position=i) for i, name in enumerate("xy"))
    made = []
    for name, arity in FUNCTIONS.items():
        if name in ("and", "or", "xor", "not", "bool", "where"):
            continue
        found = build.map(name, *(whole(x), whole(y))[:arity])
        made.append(Output(name, build.map("float", found)))
    return plan(Program("functions", (x, y), (), tuple(made)))


PROGRAMS = {"layers": layers, "layers by weights": lambda: layers(True), "functions": functions}


@cache
def compiled(name: str, which: str) -> str:
    """The assembly of a program for a machine."""
    own = PROGRAMS[which]()
    target = machine(name)
    text = assembly(own, ["float32"] * len(own.program.columns), MACHINES[name][2])
    return str(target.emit_assembly(optimised(text, target)))


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("which", PROGRAMS)
def test_nothing_is_called_outside(name: str, which: str) -> None:
    called = re.findall(r"^\s+(?:callq?|bl|jmp|b)\s+(?!\.L)([\w.@$]+)", compiled(name, which), re.MULTILINE)
    own = re.compile(r"\.?(step_|phase|gradients|before|memset|__chkstk|LBB)")
    assert {place for place in called if not own.match(place)} == set()


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("which", ["layers", "layers by weights"])
def test_sums_of_products_stay_in_registers(name: str, which: str) -> None:
    """The inner loops of products use the stack for nothing. (That of tanh, which alone divides, may.)"""
    fused = re.compile(MACHINES[name][3])
    loops = [loop for loop in innermost(compiled(name, which)) if len(fused.findall(loop)) >= 12]
    loops = [loop for loop in loops if "div" not in loop]
    assert len(loops) >= 3
    for loop in loops:
        assert not re.search(r"\((%rsp|%rbp)\)|\[(sp|x29)\b", loop), loop


def innermost(text: str) -> list[str]:
    """The blocks of an assembly text that jump to their own begin."""
    found = []
    for label, block in re.findall(r"^(\.?LBB\w+):[^\n]*\n((?:(?!^\.?LBB\w+:).*\n)*)", text, re.MULTILINE):
        again = re.search(rf"^\s+(?:j\w+|b\.\w+|cbn?z|tbn?z)\b.*{re.escape(label)}\b", block, re.MULTILINE)
        if again:
            found.append(block[: again.end()])
    return found


@pytest.mark.skipif(not llvm.get_process_triple().startswith("x86_64"), reason="code of other x86-64 processors is run")
@pytest.mark.parametrize("which", PROGRAMS)
def test_bits_do_not_depend_on_the_registers(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = PROGRAMS[which]()
    generator = np.random.default_rng(0)
    columns = [generator.standard_normal((150, *value.shape)).astype(np.float32) * 3 for value in own.program.columns]
    weights = [generator.standard_normal(value.shape).astype(np.float32) for value in own.program.uniforms]
    here = on_cpu.run(own, columns, weights)
    text = assembly(own, ["float32"] * len(columns), False)
    haswell = llvm.Target.from_default_triple().create_target_machine(cpu="haswell", opt=3, codemodel="jitdefault")
    narrow = Native(haswell.emit_object(optimised(text, haswell)))
    monkeypatch.setattr("headrace.kernels.rows.targets.cpu_program.of_text", lambda *_: narrow)
    for name, found in on_cpu.run(own, columns, weights).items():
        np.testing.assert_array_equal(found, here[name], err_msg=name)
