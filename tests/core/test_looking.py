"""Values that were looked at are looked at again once code of the user's has run, in whatever thread."""

from __future__ import annotations

import threading

import pytest

from headrace.core.looking import is_noted, looked_once, moment, note, users_code

THING = object()


def noted():
    note(THING)
    return is_noted(THING)


def test_nothing_is_noted_outside_of_a_block():
    assert moment() is None and not noted()
    with looked_once():
        assert noted()
    assert moment() is None and not is_noted(THING)


def test_a_moment_lasts_until_code_of_the_users_has_run():
    with looked_once():
        first = moment()
        assert first is not None and noted() and moment() is first
        with users_code():
            assert moment() is None and not noted()
        assert moment() is not first and not is_noted(THING)
        assert noted()


def test_a_block_within_code_of_the_users_has_a_moment_of_its_own():
    with looked_once():
        with users_code():
            with looked_once():
                assert noted()
            assert not is_noted(THING)
        assert not is_noted(THING)


def test_a_block_within_another_is_a_part_of_it():
    with looked_once():
        outer = moment()
        with looked_once():
            assert noted() and moment() is outer
        assert is_noted(THING)


@pytest.mark.parametrize("fixed", [False, True])
def test_code_of_the_users_in_another_thread_counts(fixed):
    def run():
        with users_code():
            pass

    with looked_once(none_of_the_users=fixed):
        assert noted()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert is_noted(THING) is fixed


def test_where_the_users_code_cannot_run_all_is_looked_at_once():
    with looked_once(none_of_the_users=True):
        assert noted()
        with users_code():
            assert is_noted(THING)
        assert is_noted(THING)
    assert moment() is None


def test_an_exception_ends_a_moment_too():
    with looked_once():
        assert noted()
        with pytest.raises(KeyError), users_code():
            raise KeyError
        assert not is_noted(THING)
    with pytest.raises(KeyError), looked_once():
        raise KeyError
    assert moment() is None


def test_a_moment_that_is_over_keeps_nothing():
    with looked_once():
        assert noted()
        kept = moment()
        with users_code():
            pass
        assert kept.over and not kept.seen
        again = moment()
        assert noted()
    assert again.over and not again.seen
