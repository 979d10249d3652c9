"""Tiles of bfloat16 as tests imitate them, against NumPy: one product of tiles, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.kernels.rows.cpu_code import optimised
from headrace.kernels.runtime.native import Native, target_machine
from tests.kernels.rows.imitated_tiles import STATE, functions_text

IMITATION = f"""
define i32 @entry(ptr %slots) {{
entry:
  %tiles = alloca [{STATE} x i8], align 64
  call void @imitated_begin(ptr %tiles)
  %configuration_at = getelementptr ptr, ptr %slots, i64 0
  %configuration = load ptr, ptr %configuration_at
  call void @imitated_ldtilecfg(ptr %tiles, ptr %configuration)
  {{moves}}
  call void @imitated_tdpbf16ps(ptr %tiles, i8 0, i8 1, i8 2)
  call void @imitated_tilestored64(ptr %tiles, i8 0, ptr %p1, i64 80)
  call void @imitated_tilerelease(ptr %tiles)
  call void @imitated_end(ptr %tiles)
  ret i32 0
}}"""


@pytest.fixture(scope="module")
def imitation() -> Native:
    """One product of tiles: its arguments are addresses, of the configuration and of three tiles."""
    moves = "\n".join(
        f"%at{i} = getelementptr ptr, ptr %slots, i64 {i}\n  %p{i} = load ptr, ptr %at{i}\n"
        f"  call void @imitated_tileloadd64(ptr %tiles, i8 {i - 1}, ptr %p{i}, i64 {64 if i > 1 else 80})"
        for i in (1, 2, 3)
    )
    declared, functions = functions_text()
    machine = target_machine()
    text = "\n".join([*declared, functions, IMITATION.replace("{moves}", moves)])
    return Native(machine.emit_object(optimised(text, machine)))


def bfloat16(words: np.ndarray) -> np.ndarray:
    """Both numbers of each word: [..., 2], float32 without denormals."""
    parts = np.stack([words << np.uint32(16), words & np.uint32(0xFFFF0000)], -1).view(np.float32)
    return flushed(parts)


def flushed(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 2.0**-126, np.float32(0), x).astype(np.float32)


@pytest.mark.parametrize("rows", [16, 8])
@pytest.mark.parametrize("small", [False, True])
def test_the_imitation_is_what_the_manual_says(imitation: Native, rows: int, small: bool) -> None:
    """Sums of the lower and of the upper halves of words, each product and each sum rounded once, no denormals."""
    rng = np.random.default_rng(rows)
    exponents = (-70, -56) if small else (-3, 3)  # products of small ones are denormal

    def drawn(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 2.0 ** rng.integers(*exponents, shape)).astype(np.float32)

    def words(*shape: int) -> np.ndarray:
        lower, upper = (drawn(*shape).view(np.uint32) for _ in range(2))
        return lower >> np.uint32(16) | upper & np.uint32(0xFFFF0000)

    left, right, target = words(rows, 16), words(16, 16), drawn(rows, 20)
    setting = np.zeros(64, np.uint8)
    setting[0], setting[16:32:2], setting[48:56] = 1, 64, [rows, rows, *[16] * 6]
    wanted, x, y = target.copy(), bfloat16(left), bfloat16(right)
    sums = np.zeros((rows, 16, 2), np.float32)
    for k in range(16):  # products, and sums of these numbers, are exact in float64
        sums = flushed((x[:, k, None].astype(np.float64) * y[k] + sums).astype(np.float32))
    wanted[:, :16] = flushed(flushed(wanted[:, :16]) + flushed(sums[..., 0] + sums[..., 1]))
    slots = np.array([own.ctypes.data for own in (setting, target, left, right)], np.uint64)
    assert imitation.run(slots.ctypes.data) == 0
    np.testing.assert_array_equal(target, wanted)
