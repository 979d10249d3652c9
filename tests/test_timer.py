"""Shares of the wall time by part."""

import time

from headrace.timer import Timer


def test_parts_and_what_no_part_claims_make_up_the_whole():
    timer = Timer()
    with timer("env"):
        time.sleep(0.02)
    with timer("env"):
        time.sleep(0.02)
    time.sleep(0.02)
    shares = timer.shares()
    assert timer.seconds["env"] >= 0.04
    assert shares["other"] > 0
    assert abs(sum(shares.values()) - 1.0) < 1e-6
