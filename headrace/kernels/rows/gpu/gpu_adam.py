"""A step of Adam along a gradient, scaled down to a norm: two kernels for all parameters in one buffer."""

from __future__ import annotations

import math

from headrace.kernels.rows.gpu.gpu_calls import SCRATCH, KernelCalls
from headrace.kernels.rows.gpu.gpu_steps import ThreadStep
from headrace.kernels.rows.gpu.gpu_text import CPU, GPU, ROLLED, THREADS, ThreadBody, kernel
from headrace.kernels.rows.targets.llvm_functions import FLOATS
from headrace.kernels.rows.targets.llvm_math import compare, select
from headrace.kernels.rows.targets.llvm_text import Module

# argument slots. Addresses of float32: the parameters, their gradient, the means of gradients and of their squares, and
# of single numbers: steps taken, the learning rate, 1 where this step is left out; SQUARES has one for each block of
# `squares`. Then counts of parameters and blocks; and float32: the largest norm, eps, and of both betas what is kept,
# what is taken, 1 - beta, and its logarithm; last the weight decay.
FLAT, GRADIENT, MEAN, SQUARE, STEPS, RATE, SKIP, SQUARES, COUNT, BLOCKS = range(10)
FLOATS_AT = {"%max_norm": 10, "%eps": 11, "%keep1": 12, "%take1": 13, "%log1": 14, "%keep2": 15, "%take2": 16}
FLOATS_AT |= {"%log2": 17, "%decay": 18}
SHARED = 19
PART = 4096  # numbers of which a block adds the squares
GROUP = 16  # numbers that a thread adds: a block has GROUP * GROUP threads
assert GROUP * GROUP == THREADS


def adam_text(gpu: bool) -> str:
    """Text of the kernels `squares` and `adam`; not for a GPU, of a function `entry` that runs them."""
    module, memory = Module("nounwind" if gpu else "noinline nounwind"), GPU if gpu else CPU
    kernels = []
    for name, write in (("squares", _squares), ("adam", _adam)):
        calls = KernelCalls(module, memory, SHARED)
        write(calls)
        kernels.append(kernel(name, calls.b, gpu, SHARED + 1, 2))
    head = "@shared = external addrspace(3) global [0 x float], align 16\n" if gpu else ""
    return "\n".join([head + str(module), *kernels, ROLLED if gpu else _entry()])


def _step(calls: KernelCalls) -> ThreadStep:
    step = ThreadStep(None, calls.module, ThreadBody(1))  # type: ignore[arg-type]
    step.memory = calls.memory
    return step


def _squares(calls: KernelCalls) -> None:
    """The sum of the squares of a block's part of the gradient; the first block counts the step."""
    gradient = ("%gradient", calls.device(GRADIENT))
    step = _step(calls)
    b = step.b
    first, start = b.times("%part", PART), ("float", b.number(0))
    with b.carrying(PART // THREADS, [start]) as (i, names, ends):
        at = b.plus(first, b.times(i, THREADS), "%tid")
        x = b.load("%gradient", b.new(f"select i1 {b.less(at, '%count')}, i64 {at}, i64 0"))
        x = select(b, b.less(at, "%count"), x, b.number(0))
        ends.append(b.fma(x, x, names[0]))
    b.store(ends[0], "%scratch", "%tid")
    calls.call(step, [SCRATCH], [gradient, calls.scratch], {"%part": calls.part, "%count": calls.slot(COUNT)})
    _groups(calls)
    step = _step(calls)
    with step.b.when(step.b.new("icmp eq i64 %tid, 0")):
        step.b.store(_total(step.b), "%squares", "%part")
        with step.b.when(step.b.new("icmp eq i64 %part, 0")):
            taken = step.b.floats("fsub", step.b.number(1), step.b.load("%skip", "0"))
            step.b.store(step.b.floats("fadd", step.b.load("%steps", "0"), taken), "%steps", "0")
    given = [("%squares", calls.device(SQUARES)), ("%skip", calls.device(SKIP)), ("%steps", calls.device(STEPS))]
    calls.call(step, [], [calls.scratch, *given], {"%part": calls.part}, [SCRATCH])


def _groups(calls: KernelCalls) -> None:
    """Write the sum of each group of numbers in the block's memory, taken in order, in place of its first."""
    step = _step(calls)
    b = step.b
    with b.when(b.less("%tid", GROUP)):
        first = b.times("%tid", GROUP)
        total = b.load("%scratch", first)
        for i in range(1, GROUP):
            total = b.floats("fadd", total, b.load("%scratch", b.plus(first, i)))
        b.store(total, "%scratch", first)
    calls.call(step, [SCRATCH], [calls.scratch], reads=[SCRATCH])


def _total(b: ThreadBody) -> str:
    """The sum of all groups."""
    total = b.load("%scratch", "0")
    for i in range(1, GROUP):
        total = b.floats("fadd", total, b.load("%scratch", str(i * GROUP)))
    return total


def _adam(calls: KernelCalls) -> None:
    """A thread's parameter. All blocks add the squares, in the same order."""
    step = _step(calls)
    b = step.b
    b.store(b.number(0), "%scratch", "%tid")
    with b.when(b.less("%tid", "%blocks")):
        with b.carrying("%blocks", [("float", b.number(0))], THREADS, "%tid") as (i, names, ends):
            ends.append(b.floats("fadd", names[0], b.load("%squares", i)))
        b.store(ends[0], "%scratch", "%tid")
    squares = ("%squares", calls.device(SQUARES))
    calls.call(step, [SCRATCH], [squares, calls.scratch], {"%blocks": calls.slot(BLOCKS)})
    _groups(calls)
    step = _step(calls)
    b = step.b
    at = b.plus(b.times("%part", THREADS), "%tid")
    taken = compare(b, "olt", b.load("%skip", "0"), b.number(0.5))
    with b.when(b.new(f"and i1 {taken}, {b.less(at, '%count')}")):
        _move(b, at)
    places = {"%flat": FLAT, "%gradient": GRADIENT, "%mean": MEAN, "%square": SQUARE, "%steps": STEPS}
    places |= {"%rate": RATE, "%skip": SKIP}
    given = [(name, calls.device(slot)) for name, slot in places.items()]
    numbers = {"%part": calls.part, "%count": calls.slot(COUNT)}
    numbers |= {name: calls.slot(slot) for name, slot in FLOATS_AT.items()}
    for name in FLOATS_AT:
        b.lines.insert(0, f"  {name}.f = bitcast i32 {name}.short to float")
        b.lines.insert(0, f"  {name}.short = trunc i64 {name} to i32")
    calls.call(step, [], [calls.scratch, *given], numbers, [SCRATCH])


def _move(b: ThreadBody, at: str) -> None:
    """Write the step that torch._fused_adam_ takes, with the gradient divided by max(norm / max_norm, 1)."""
    norm = FLOATS["sqrt"](b, _total(b))
    excess = b.floats("fdiv", norm, "%max_norm.f")
    small = b.new(f"or i1 {compare(b, 'olt', excess, b.number(1))}, {_is_infinite(b, '%max_norm.f')}")
    divisor = select(b, small, b.number(1), excess)  # NaN goes on to the parameters
    g = b.floats("fdiv", b.load("%gradient", at), divisor)
    m = b.fma("%keep1.f", b.load("%mean", at), b.floats("fmul", "%take1.f", g))
    v = b.fma("%keep2.f", b.load("%square", at), b.floats("fmul", b.floats("fmul", "%take2.f", g), g))
    b.store(m, "%mean", at)
    b.store(v, "%square", at)
    steps = b.load("%steps", "0")
    unbiased1, unbiased2 = (
        FLOATS["neg"](b, FLOATS["expm1"](b, b.floats("fmul", steps, log))) for log in ("%log1.f", "%log2.f")
    )
    root = b.floats("fdiv", FLOATS["sqrt"](b, v), FLOATS["sqrt"](b, unbiased2))
    move = b.floats("fmul", b.floats("fdiv", b.load("%rate", "0"), unbiased1), m)
    move = b.floats("fdiv", move, b.floats("fadd", root, "%eps.f"))
    left = b.floats("fsub", b.number(1), b.floats("fmul", b.load("%rate", "0"), "%decay.f"))
    b.store(b.floats("fsub", b.floats("fmul", b.load("%flat", at), left), move), "%flat", at)


def _is_infinite(b: ThreadBody, x: str) -> str:
    return compare(b, "oeq", x, b.number(math.inf))


def _entry() -> str:
    """Entry point of the text for the CPU: both kernels, one after the other."""
    b = ThreadBody(1)
    blocks, count = (b.new(f"load i64, ptr {b.at('%slots', str(slot), 'i64')}, align 8") for slot in (BLOCKS, COUNT))
    with b.loop(blocks) as part:
        b.do(f"call void @squares(ptr %slots, i64 {part})")
    threads = b.new(f"udiv i64 {b.add(count, THREADS - 1)}, {THREADS}")
    with b.loop(threads) as part:
        b.do(f"call void @adam(ptr %slots, i64 {part})")
    lines = "\n".join(b.lines)
    return f"define i32 @entry(ptr %slots) nounwind {{\nentry:\n{lines}\n  ret i32 0\n}}"
