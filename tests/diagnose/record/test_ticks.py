"""The number of samples that shares are taken from, which the error of a share depends on."""

from __future__ import annotations

import pytest

from headrace.diagnose.profile.spool import Sample
from headrace.diagnose.record import lanes


@pytest.mark.parametrize(
    ("samples", "cpu_seconds", "number"),
    [
        ([Sample(1.0 + n, 1.0, ()) for n in range(10)], 10.0, 500),  # native calls of a second: 50 ticks each
        ([Sample(0.06 * n, 0.06, ()) for n in range(100)], 2.0, 100),  # without a core for two thirds of the time
        ([Sample(0.02 * n, 0.02, (), True) for n in range(100)], 0.0, 100),  # asleep
        ([Sample(1.0 + n, 1.0, ()) for n in range(10)], 0.0, 500),  # CPU time is not known
    ],
)
def test_ticks_come_by_the_time_on_a_core(samples: list[Sample], cpu_seconds: float, number: int) -> None:
    assert lanes._ticks(samples, 0.02, cpu_seconds) == number
