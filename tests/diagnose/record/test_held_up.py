"""Waiting of the training thread inside a computation: another thread holds the interpreter's lock."""

from __future__ import annotations

import pytest
from helpers.profiles import SECONDS, lane

from headrace.diagnose.profile.profile import Kind, Lane, Role, Site
from headrace.diagnose.record import held_up


def threads(busy: float, *, on_core: float, queued: float = 0.0) -> tuple[Lane, Lane]:
    """A thread that learns and is on a core for a share of that time, and another that computes."""
    main, other = lane(100, BACKWARD=0.8, WAIT=0.2), lane(100, Kind.THREAD, "producer", DATA=1.0)
    for span in main.spans:
        span.on_cpu = on_core if span.role is Role.BACKWARD else 0.0
    main.queued_seconds, other.cpu_seconds = queued * SECONDS, busy * SECONDS
    main.waits = {"a lock": 0.6 * SECONDS}
    main.lines = [Site(Role.BACKWARD, "/me/train.py", 3, "", "", 0.8 * SECONDS, "loss.backward()")]
    main.guessed = {Role.BACKWARD: 0.4 * SECONDS}
    return main, other


def test_time_without_a_core_while_another_thread_computes_is_waiting() -> None:
    main, other = threads(0.6, on_core=0.5)
    held_up.count([main, other])
    assert main.share(Role.BACKWARD) == pytest.approx(0.4) and main.share(Role.WAIT) == pytest.approx(0.6)
    assert main.total == pytest.approx(SECONDS) and next(iter(main.waits)) == held_up.LOCK
    assert main.lines[0].seconds == pytest.approx(0.4 * SECONDS) and main.guessed[Role.BACKWARD] == 0.2 * SECONDS
    assert next(iter(main.seconds)) is Role.WAIT


@pytest.mark.parametrize(
    ("busy", "queued", "pool"), [(0.05, 0.0, 0.0), (0.6, 0.35, 0.0), (0.6, 0.0, 0.5)], ids=["idle", "no core", "pool"]
)
def test_it_is_not_where_nobody_else_computes_or_a_core_was_missing_or_native_threads_share_the_work(
    busy: float, queued: float, pool: float
) -> None:
    main, other = threads(busy, on_core=0.5, queued=queued)
    native = Lane(100, 7, 1, "torch pool", Kind.POOL, cpu_seconds=pool * SECONDS)
    held_up.count([main, other, native])
    assert main.share(Role.BACKWARD) == pytest.approx(0.8) and held_up.LOCK not in main.waits


def test_it_is_at_most_what_the_others_compute() -> None:
    main, other = threads(0.2, on_core=0.0)
    held_up.count([main, other])
    assert main.waits[held_up.LOCK] == pytest.approx(0.2 * SECONDS)


def test_blocked_time_that_no_sample_shows_is_waiting_that_is_not_sure() -> None:
    main, _ = threads(0.0, on_core=1.0)
    held_up.count_unseen(main, {"a socket": 0.4 * SECONDS, "a timer": 0.1 * SECONDS})
    assert main.total == pytest.approx(SECONDS)
    assert main.share(Role.WAIT) == pytest.approx(0.6) and main.share(Role.BACKWARD) == pytest.approx(0.4)
    assert main.guessed[Role.WAIT] == pytest.approx(0.5 * SECONDS) and main.waits["a socket"] == 0.4 * SECONDS
    assert main.lines[0].seconds == pytest.approx(0.4 * SECONDS)
