"""Adam's compiled step: against float64, and the same bits whatever the processor's vectors are."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[3]
PROCESSORS = ("haswell", "skylake-avx512", "znver4")  # with vectors of 8 and of 16 numbers
STEP = """
import sys
import numpy as np
from numba import njit
from headrace.kernels.nn.adam_step import adam, scales, squares

U, SETTINGS = np.uint64, np.float32([1e-8, 0.999, 1e-3, 0.9, 0.1])  # eps, beta2, 1 - beta2, beta1, 1 - beta1

@njit
def step(parameters, gradient, mean, square, first, count, eps, keep2, take2, keep1, take1):
    found = squares(gradient, first, count)
    scale = scales(np.sqrt(found), 3, 1e-2, 0.5, 0.999, 0.9)
    adam(parameters, gradient, mean, square, first, count, scale, eps, keep2, take2, keep1, take1)
    return found

random = np.random.default_rng(0)
for first, count in ((0, 0), (3, 1), (0, 15), (5, 16), (1, 63), (0, 64), (7, 100), (2, 16384)):
    numbers = random.standard_normal((4, 16400)).astype(np.float32)
    numbers[3] **= 2
    before = numbers[1].copy()
    found = step(*numbers, U(first), U(count), *SETTINGS)
    assert abs(found - np.square(before[first : first + count].astype(float)).sum()) <= 1e-6 * found
    sys.stdout.buffer.write(np.float32(found).tobytes() + numbers.tobytes())
"""


def steps(processor: str) -> bytes:
    """The results of a process that compiles for a processor. They run on this one where it has its instructions."""
    environment = os.environ | {"NUMBA_CPU_NAME": processor, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", STEP], env=environment, capture_output=True, check=False)
    return done.stdout if not done.returncode else done.stderr[-500:]


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="it is about x86-64's vectors")
def test_bits_do_not_depend_on_the_width_of_vectors():
    wide = "avx512f" in Path("/proc/cpuinfo").read_text()
    found = [steps(processor) for processor in (PROCESSORS if wide else PROCESSORS[:1])]
    assert all(one == found[0] for one in found), [one[-500:] for one in found if len(one) <= 500]
    assert len(found[0]) == 8 * (4 + 4 * 4 * 16400)
    sums = np.frombuffer(found[0], np.float32)[:: 1 + 4 * 16400]
    assert sums[0] == 0 and sums[-1] > 15_000
