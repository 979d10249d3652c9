"""Orders to actors by random schedules: none waits for ever, no lag is above the bound, and nothing is lost."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from headrace.parallel.fragments import SLOTS
from headrace.parallel.schedule import RECORD, Fragment, ReplayOrder, Schedule, records


class Run:
    """A schedule, and actors that answer in a random order: each with its own speed, which may change."""

    def __init__(self, schedule: Schedule, seed: int) -> None:
        self.schedule, self.random = schedule, random.Random(seed)
        self.actors = len(schedule.taken)
        self.speeds = [self.random.choice([0.05, 1.0, 1.0, 5.0]) for _ in range(self.actors)]
        self.learned: list[list[Fragment]] = []
        self.ordered: list[Fragment] = []
        self.largest = 0  # lag so far

    def order(self, learning: bool = False) -> None:
        schedule = self.schedule
        for order in schedule.orders(learning):
            assert order.version <= schedule.version
            slots = [x for x in schedule.waiting() if x.place == order.place]
            assert len(slots) <= schedule.slots
            self.ordered.append(order)

    def answer(self) -> None:
        """One actor, a fast one more likely, is done."""
        places = list(self.schedule.open)
        assert places, f"nobody is at work, and the learner waits: {vars(self.schedule)}"
        weights = [self.speeds[place] for place in places]
        self.schedule.answer(self.random.choices(places, weights)[0])

    def iterate(self) -> None:
        """A rollout and an update, as Actors does it."""
        schedule = self.schedule
        while schedule.open and self.random.random() < 0.3:
            self.answer()
        self.order()
        while not (taken := schedule.complete()):
            self.answer()
            self.order()
        assert len(taken) == schedule.count
        self.largest = max(self.largest, *map(schedule.lag, taken), 0)
        assert self.largest <= schedule.max_lag
        self.learned.append(taken)
        schedule.take(taken)
        self.order(learning=True)
        while schedule.open and self.random.random() < 0.5:  # while it learns
            self.answer()
        schedule.version += 1
        # what is at work has its weights in one of max_lag + 2 slots, and so has what was written now
        assert all(schedule.lag(order) <= schedule.max_lag for order in schedule.open.values())

    def in_order(self) -> bool:
        """Tell whether each actor's fragments were learned once, in their order."""
        taken = [fragment for rollout in self.learned for fragment in rollout]
        numbers = [[x.number for x in taken if x.place == place] for place in range(self.actors)]
        return numbers == [list(range(number)) for number in self.schedule.taken]


def random_schedule(seed: int, replay: ReplayOrder | None = None) -> Schedule:
    """Draw a schedule of any mode: in step, rollouts of as many fragments as actors, or of one (gradients)."""
    pick = random.Random(seed)
    actors, mode = pick.randint(1, 9), pick.random()
    if mode < 0.2:
        return Schedule(actors, True, pick.choice([0, 1]))
    count, slots = (1, pick.choice([1, 2])) if mode < 0.5 else (None, pick.choice([SLOTS, 3, 6]))
    return Schedule(actors, False, pick.choice([1, 2, 4]), replay, count, slots)


def random_run(seed: int) -> Run:
    return Run(random_schedule(seed), seed)


@pytest.mark.parametrize("seeds", [range(1000 * x, 1000 * (x + 1)) for x in range(3)], ids=str)
def test_random_schedules_go_on_within_the_bound_and_lose_nothing(seeds):
    largest: Counter[int] = Counter()
    for seed in seeds:
        run = random_run(seed)
        for _ in range(25):
            run.iterate()
        assert run.in_order()
        assert len(set(run.ordered)) == len(run.ordered)
        largest[run.schedule.max_lag] = max(largest[run.schedule.max_lag], run.largest)
    assert largest == {0: 0, 1: 1, 2: 2, 4: 4}


@pytest.mark.parametrize("max_lag", [1, 2, 4])
def test_a_slow_actor_is_waited_for_when_its_fragment_would_be_too_old_and_not_before(max_lag):
    schedule = Schedule(3, False, max_lag)
    lags = []
    for _ in range(40):
        schedule.orders()
        while not (taken := schedule.complete()):
            fast = [place for place in schedule.open if place != 0]
            if fast:
                schedule.answer(fast[0])
                schedule.orders()
            else:  # both have nothing left to do before the next update
                schedule.answer(0)
        lags += [schedule.lag(fragment) for fragment in taken if fragment.place == 0]
        schedule.take(taken)
        schedule.orders(learning=True)
        schedule.version += 1
    assert max(lags) == max_lag
    assert len(lags) < 40  # so it gave less than the others


@pytest.mark.parametrize("in_step", [True, False])
def test_in_step_each_rollout_has_one_fragment_of_each_actor(in_step):
    run = Run(Schedule(4, in_step, 1), seed=3)
    for _ in range(30):
        run.iterate()
    one_each = [[x.place for x in taken] == [0, 1, 2, 3] for taken in run.learned]
    assert all(one_each) == in_step


def test_what_is_continued_collects_the_same_with_the_same_weights():
    for seed in range(300):
        before = random_run(seed)
        for _ in range(before.random.randint(1, 12)):
            before.iterate()
        old = before.schedule
        waiting = old.waiting()
        after = Run(random_schedule(seed), seed + 1)
        after.schedule.resume(old.version, old.rounds, old.taken, waiting)
        assert sorted(after.schedule.waiting()) == sorted(waiting)
        for _ in range(12 if old.count > 1 else 40):
            after.iterate()
        learned = [x for rollout in after.learned for x in rollout]
        assert set(waiting) <= set(learned)
        after.learned = before.learned + after.learned
        assert after.in_order()


def test_a_schedule_is_not_continued_as_one_of_another_kind():
    waiting = [Fragment(5, 4, 0), Fragment(3, 2, 1)]
    with pytest.raises(ValueError, match="policies 3 updates old, and here they may be 2"):
        Schedule(2, False, 2).resume(6, 6, [4, 2], waiting)
    with pytest.raises(ValueError, match="saved were rollouts of collection='async'"):
        Schedule(2, True, 1).resume(6, 6, [4, 2], waiting)


def test_another_order_of_answers_replays_a_log(tmp_path):
    for seed in range(300):
        first = random_run(seed)
        if first.schedule.in_step:
            continue
        for _ in range(15):
            first.iterate()
        (tmp_path / "log").write_bytes(b"".join(map(records, first.learned)))
        replay = ReplayOrder(tmp_path / "log", first.actors, first.schedule.count)
        again = Run(random_schedule(seed, replay), seed + 1)
        stop = again.random.randint(1, 14)
        for _ in range(stop):
            again.iterate()
        resumed = Run(random_schedule(seed, replay), seed + 2)
        old = again.schedule
        resumed.schedule.resume(old.version, old.rounds, old.taken, old.waiting())
        for _ in range(25 - stop):
            resumed.iterate()
        resumed.learned = again.learned + resumed.learned
        assert resumed.learned[:15] == first.learned
        assert resumed.in_order()
        assert not resumed.schedule.replaying


def test_a_fragment_takes_16_bytes_of_the_log():
    assert RECORD.itemsize == 16
    assert len(records([Fragment(3, 7, 1), Fragment(2, 6, 0)])) == 32


def test_a_log_of_another_number_of_actors_or_with_rows_missing_is_refused(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(records([Fragment(0, 0, 0), Fragment(0, 0, 1), Fragment(0, 0, 2), Fragment(0, 1, 0)]))
    with pytest.raises(ValueError, match="is the log of 3 actors, and these are 2: give actors=3"):
        ReplayOrder(path, 2)
    rows = np.fromfile(path, RECORD)
    rows["number"][3] = 2
    rows.tofile(path)
    with pytest.raises(ValueError, match="has fragment 2 of actor 0 where 1 belongs: rows are missing"):
        ReplayOrder(path, 4)
