"""Choice of the thread that trains, and the time since when it does."""

from __future__ import annotations

from helpers.profiles import SECONDS, lane

from headrace.diagnose.profile import driver
from headrace.diagnose.profile.profile import Kind, Role, Span

LEARNING = {"ENVIRONMENT": 0.5, "BACKWARD": 0.3, "OPTIMIZER": 0.2}


def test_the_main_thread_trains_if_it_does_any_training():
    main, child = lane(100, WAIT=0.8, INFERENCE=0.2), lane(101, Kind.WORKER, "worker 1", **LEARNING)
    assert driver.training_thread([main, child], 100) is main


def test_a_child_that_learns_is_found_behind_an_idle_parent():
    main, child = lane(100, WAIT=1.0), lane(101, Kind.WORKER, "worker 1", **LEARNING)
    stepping = lane(102, Kind.WORKER, "worker 2", ENVIRONMENT=1.0)
    assert driver.training_thread([main, stepping, child], 100) is child
    assert driver.training_thread([main, stepping], 100) is main


def test_a_thread_of_the_script_is_found_behind_its_main_thread():
    main, thread = lane(100, WAIT=1.0), lane(100, Kind.THREAD, "trainer", **LEARNING)
    assert driver.training_thread([main, thread], 100) is thread


def test_a_thread_that_learns_and_mostly_waits_is_found_behind_a_main_thread_that_only_waits():
    main, acts = lane(100, IDLE=1.0), lane(100, Kind.THREAD, "actor", INFERENCE=0.1, WAIT=0.9)
    learns = lane(100, Kind.THREAD, "learner", BACKWARD=0.06, WAIT=0.94)
    assert driver.training_thread([main, acts, learns], 100) is learns
    assert driver.training_thread([main, acts], 100) is main
    acts.kind, main.kind = Kind.MAIN, Kind.THREAD
    assert driver.training_thread([main, acts, learns], 100) is acts  # it acts for a tenth of its time


def test_a_main_thread_that_learns_alone_trains_however_long_it_waits():
    main, acts = lane(100, WAIT=0.97, BACKWARD=0.03), lane(100, Kind.THREAD, "actor", INFERENCE=0.4, WAIT=0.6)
    assert driver.training_thread([main, acts], 100) is main
    main, acts = lane(100, WAIT=0.99, BACKWARD=0.01), lane(101, Kind.WORKER, INFERENCE=0.1, ENVIRONMENT=0.9)
    assert driver.training_thread([main, acts], 100) is main


def test_a_process_that_hardly_computes_gradients_is_no_second_trainer():
    first = lane(100, **LEARNING)
    assert driver.trainers([first, lane(101, Kind.WORKER, BACKWARD=0.03, WAIT=0.97)]) == [first]
    second = lane(101, Kind.WORKER, BACKWARD=0.2, WAIT=0.8)
    assert driver.trainers([second, first]) == [first, second]


def test_training_begins_after_loading_and_not_with_a_single_reset():
    made = lane(100, DATA=1.0)
    assert driver.began(made) is None
    reset, loading = Span(1.0, 1.02, Role.ENVIRONMENT), Span(1.02, 20.0, Role.DATA)
    made.spans = [Span(0.0, 1.0, Role.DATA), reset, loading, Span(20.0, SECONDS, Role.FORWARD)]
    assert driver.began(made) == 20.0


def test_training_has_begun_where_short_updates_follow_long_waits():
    made = lane(100, WAIT=1.0)
    updates = [Span(when, when + 0.01, Role.BACKWARD) for when in (8.0, 9.5, 13.0, 16.0)]
    made.spans = [Span(0.0, 8.0, Role.DATA), *updates]
    assert driver.began(made) == 8.0
    made.spans = [Span(0.0, 8.0, Role.DATA), *updates[:2]]
    assert driver.began(made) is None
