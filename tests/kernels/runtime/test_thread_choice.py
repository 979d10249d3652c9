"""Choice between one thread and several: it follows from the time that calls took, at little cost."""

import pytest

from headrace.kernels.runtime.thread_choice import COST, ThreadChoice


def make_calls(choice: ThreadChoice, seconds: dict[bool, float], total: float) -> dict[bool, int]:
    """Calls that take `seconds` on several threads (True) and on one, for `total` seconds; how many of each there
    were."""
    counts = {True: 0, False: 0}
    while total > 0:
        several = choice.next()
        choice.took(several, seconds[several])
        counts[several] += 1
        total -= seconds[several]
    return counts


@pytest.mark.parametrize("faster", [True, False])
def test_the_faster_way_is_found_and_kept(faster):
    choice, seconds = ThreadChoice(), {faster: 0.006, not faster: 0.009}
    make_calls(choice, seconds, 5.0)
    assert choice.several is faster
    counts = make_calls(choice, seconds, 100.0)
    assert choice.several is faster and counts[not faster] > 0
    assert counts[not faster] * (0.009 - 0.006) <= 2 * COST * 100


def test_a_change_is_noticed():
    choice = ThreadChoice()
    for _ in range(3):
        make_calls(choice, {True: 0.006, False: 0.009}, 10.0)
        assert choice.several
        make_calls(choice, {True: 0.010, False: 0.009}, 10.0)
        assert not choice.several


def test_a_hardly_faster_way_is_not_taken():
    choice = ThreadChoice()
    make_calls(choice, {True: 0.0100, False: 0.0098}, 20.0)
    assert choice.several


def test_calls_made_otherwise_do_not_count():
    choice = ThreadChoice()
    for _ in range(1000):
        choice.took(False, 0.001)  # because the cores were busy
    assert choice.next() and choice.several


def test_one_slow_call_changes_nothing():
    choice = ThreadChoice()
    for number in range(10_000):
        several = choice.next()
        choice.took(several, 0.1 if several and number % 2 else {True: 0.006, False: 0.009}[several])
    assert choice.several


def test_what_slows_all_calls_for_a_while_changes_nothing():
    choice = ThreadChoice()
    for number in range(100_000):
        several = choice.next()
        factor = 1.6 if number % 500 < 300 else 1.0  # another process that comes and goes
        choice.took(several, factor * {True: 0.006, False: 0.009}[several])
        assert choice.several
