"""All losses and policies of generality.py as a GPU computes them: equal to the CPU's programs, in code that NVIDIA's
assembler finds no fault with."""

from __future__ import annotations

import re

import pytest
import torch
from helpers.assembled import assembled
from torch import Tensor

from benchmarks.speed.generality import prepare
from headrace.bindings.compiled import loss_conditions
from headrace.core import fused
from headrace.kernels.rows.gpu import gpu_program
from headrace.kernels.rows.gpu.gpu_code import ptx
from headrace.kernels.rows.gpu.gpu_kernels import emitted
from headrace.kernels.rows.gpu.gpu_text import REGISTERS, SHARED, THREADS
from headrace.kernels.rows.row_program import Reduce, Sort
from tests.bindings.asked_programs import MOST_ROWS, NAMES, Asked, asked

QUICK = "ppo 32, 32 tanh"
PLAIN = ("ppo images, Nature's network",)  # whose convolutions are PyTorch's
LONGEST = (
    "ppo LSTM 128, whole rollouts"  # of 64 steps, which a GPU's code has one after the other: minutes of compiling
)
ERROR = 1e-5  # of an output's largest number: sums are taken in another order
MANY = 131_072  # rows


def distance(one: Tensor, other: Tensor, largest: float) -> float:
    """The largest difference, as a part of the largest number; infinite where one is NaN and the other is not."""
    same = (one == other) | (one.isnan() & other.isnan())
    apart = torch.where(same, 0.0, (one.double() - other.double()).abs())
    return float(apart.nan_to_num(torch.inf).max()) / largest if apart.numel() else 0.0


def compare(one: Asked, lanes: int) -> None:
    """Assert that all outputs are the CPU's within rounding; with equal bits where no row has a sum of many numbers,
    but products, whose sums are taken alike."""
    program = one.program
    alike = not any(isinstance(x, Sort | Reduce) for x in one.own.values())
    for values in one.numbers():
        wanted, found = program.compute(values), one.on_threads(values, lanes)
        gradients = [x for r, x in zip(program.results, wanted, strict=True) if r.learned is not None and x.numel()]
        floor = max([float(x.abs().max()) for x in gradients] or [0.0])
        assert floor > 0 or not gradients, one.name
        for result, x, y in zip(program.results, wanted, found, strict=True):
            what = f"{one.name}: {result.name}, {lanes} rows of a block"
            if alike and result.outcome.rows:
                assert torch.equal(x.nan_to_num(), y.nan_to_num()), what
            if not x.is_floating_point():
                assert float((x != y).float().mean()) <= 0.02, what
                continue
            largest = float(x[x.isfinite()].abs().max()) if x.isfinite().any() else 0.0
            assert distance(x, y, max(largest, 1e-2 * floor, 1e-6)) <= ERROR, what


def sizes(one: Asked) -> dict[int, int]:
    """Rows of a block: for about how many rows of a call."""
    own = one.plan
    return {gpu_program._lanes(own, rows): rows for rows in (MOST_ROWS, 2048, MANY)}


def check_code(one: Asked, name: str) -> int:
    """Assert that kernels keep no register in memory, and have no double; their number."""
    count = 0
    for lanes in sorted(sizes(one))[: 1 if name == LONGEST else None]:
        made = emitted(one.plan, one.dtypes, lanes, gpu=True)
        text = ptx(f"sm_90\n{made.text}").decode()
        assert ".f64" not in text, one.name
        assert not re.search(r"[.]local|\bcall\b", text), one.name
        shared = {kernel.name: kernel.shared for kernel in made.kernels}
        assert all(size <= SHARED for size in shared.values())
        found = assembled(text)
        assert {kernel.name for kernel in found} == shared.keys()
        for kernel in found:
            what = f"{one.name}, {lanes} rows of a block: {kernel}"
            assert kernel.spilled == kernel.stack == 0, what
            together = 2 if shared[kernel.name] <= SHARED // 2 else 1
            assert kernel.registers * THREADS * together <= REGISTERS, what
        count += len(found)
    return count


def compared(name: str) -> None:
    """Compare all that a combination asks for, in blocks of few rows and of many."""
    found = asked(name)
    assert bool(found) == (name not in PLAIN)
    for one in found:
        for lanes in {*sizes(one)}:
            compare(one, lanes)


@pytest.mark.parametrize("name", NAMES)
def test_kernels_compute_what_the_cpus_programs_do(name: str) -> None:
    compared(name)


def test_large_images_are_refused_for_their_convolutions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fused, "_said", set())
    monkeypatch.setattr(loss_conditions, "on_gpu", lambda device: True)
    ours, _ = prepare(NAMES[PLAIN[0]])
    ours.learn()
    ours.act()
    said = capsys.readouterr().err
    why = "has a convolution, or pooling, with 102,400 numbers in all windows of an image; up to 16,384 are compiled"
    assert "learning runs in plain PyTorch: convolutions.py:" in said and why in said


@pytest.mark.parametrize("name", [name for name in NAMES if name not in PLAIN])
def test_kernels_keep_numbers_in_registers(name: str) -> None:
    assert sum(check_code(one, name) for one in asked(name)) >= 3


def test_a_small_loss_is_the_cpus_and_keeps_numbers_in_registers() -> None:
    compared(QUICK)
    assert sum(check_code(one, QUICK) for one in asked(QUICK)) >= 3
