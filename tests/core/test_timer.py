"""Seconds by part."""

import time

import pytest

from headrace.core.timer import Timer


def test_seconds_of_a_part_add_up_and_what_no_part_claims_is_not_counted():
    timer = Timer()
    for _ in range(2):
        with timer("env"):
            time.sleep(0.02)
    time.sleep(0.02)
    assert timer.seconds["env"] >= 0.04
    assert list(timer.seconds) == ["env"]


def test_a_part_that_raises_is_counted_and_the_error_goes_on():
    timer = Timer()
    with pytest.raises(KeyError), timer("learning"):
        raise KeyError
    assert "learning" in timer.seconds
