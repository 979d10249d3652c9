"""The search on planted speeds, with a clock of its own: what it chooses, and within which time."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from headrace.core.stopping import Stopped
from headrace.envs.workers.tuning import StepTime
from headrace.training.config import TrainConfig
from headrace.tuning import candidates, measure, race, search
from headrace.tuning.candidates import Candidate, Task
from headrace.tuning.measure import Row, Speedometer
from headrace.tuning.race import Race, finalists
from headrace.tuning.search import Search

START = 0.5  # s in which a fake trainer is made
STEPS = 1000  # of an iteration


class Machine:
    """A clock, and trainings of planted speed. rates: gives the steps/s of a candidate, or raises."""

    def __init__(self, monkeypatch, rates, rise=None):
        self.now, self.rates, self.rise, self.made, self.open = 0.0, rates, rise, [], 0
        self.seeds = []
        for module in (measure, search, race):
            monkeypatch.setattr(module, "perf_counter", lambda: self.now)
        monkeypatch.setattr(candidates, "cores", lambda: 4)
        self.interrupted_at = float("inf")
        pools = SimpleNamespace(of=lambda candidate: {}, drop=lambda candidate: None)
        self.speeds = Speedometer(self.settled, self.make, pools, lambda: self.now > self.interrupted_at)

    def settled(self, settings):
        return SimpleNamespace(algorithm_config=None, settings=settings, config=SimpleNamespace(window=3))

    def make(self, plan):
        self.now += START
        candidate = Candidate(tuple(plan.settings[name] for name in candidates.TRIED))
        self.made.append(candidate)
        self.seeds.append(plan.settings.get("seed"))
        rate = self.rates(candidate)
        self.open += 1
        return Training(self, candidate, rate)


class Training:
    def __init__(self, machine, candidate, rate):
        self.machine, self.candidate, self.rate, self.steps, self.seconds = machine, candidate, rate, 0, 0.0

    def iterate(self, stop):
        for _ in range(int(STEPS / self.rate) + 1):
            self.machine.now += STEPS / self.rate / (int(STEPS / self.rate) + 1)
            if stop():
                raise Stopped
        self.seconds += STEPS / self.rate
        self.steps += STEPS
        mean = self.machine.rise(self.candidate, self.steps) if self.machine.rise else 1.0
        return SimpleNamespace(
            fractions={"learning": 0.5}, returns=[mean], window_full=True, mean_return=mean, seconds=self.seconds
        )

    def close(self):
        self.machine.open -= 1


def task(given=(), **changes):
    base = Candidate.of(TrainConfig(device="cpu"))
    facts = {
        "compiled": False,
        "vector": False,
        "step": StepTime(1e-5, 1.0),
        "max_lag": 1,
        "num_steps": 16,
        "gradients": False,
    }
    return Task(base, frozenset(given), **facts | changes)


def searched(machine, of, seconds=60.0):
    found = Search(of, machine.speeds, seconds, lambda text: None)
    found.run()
    return found


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        (lambda c: 1e5 if c["actors"] == 4 and c["collection"] == "sync" else 5e4, "4 actors"),
        (lambda c: 1e5 if c["collection"] == "overlapped" and c["actors"] == 3 else 5e4, "3 actors, overlapped"),
        (lambda c: 1e5 if c["collection"] == "async" and c["workers"] else 5e4, "4 workers, async"),
        (lambda c: 5e4 * (1 + (c["num_envs"] == 256)) * (1 + (c["num_envs"] >= 128)), "256 environments"),
        (lambda c: 1e5 if c["threads"] == 4 else 5e4, "torch threads 4"),
        (lambda c: 1e5 - c.processes, "one process, 64 environments"),  # of about the same, the simplest
    ],
)
def test_the_fastest_is_found_within_the_time(monkeypatch, planted, expected):
    machine = Machine(monkeypatch, planted)
    found = searched(machine, task())
    assert expected in str(found.best().candidate), [(str(row.candidate), row.rate) for row in found.ranked()]
    assert machine.open == 0 and len(set(machine.made)) < len(machine.made)  # the best were measured again
    kinds = {(candidate["backend"], candidate.processes) for candidate in machine.made}
    assert machine.now < 60 + (2 + len(kinds)) * START  # the first start of each kind is not counted
    assert all(row.rates or row.reason for row in found.rows)


def test_processes_that_pay_for_many_environments_alone_are_found(monkeypatch):
    def planted(candidate):
        gain = {True: 2.0, False: 0.1}[candidate["num_envs"] >= 256] if candidate["actors"] else 1.0
        return 100.0 * min(candidate["num_envs"], 256) * gain

    found = searched(Machine(monkeypatch, planted), task())
    assert found.best().candidate["actors"] and found.best().candidate["num_envs"] == 256


def test_a_mode_is_tried_before_iterations_get_long(monkeypatch):
    """The last doublings take most of the time; a mode gains more before them."""
    machine = Machine(
        monkeypatch,
        lambda c: 1000 * math.log2(c["num_envs"]) * (3 if c["collection"] == "async" and c["actors"] else 1),
    )
    found = searched(machine, task())
    tried = [row.candidate for row in found.rows if row.rates]
    assert found.best().candidate["collection"] == "async" and found.best().candidate["actors"]
    assert next(c["num_envs"] for c in tried if c["collection"] == "async") < found.best().candidate["num_envs"]
    assert not any("ValueError" in row.reason for row in found.rows)


@pytest.mark.parametrize(("max_lag", "expected"), [(1, "one process, overlapped"), (0, "one process, 64")])
def test_a_vector_is_stepped_by_a_thread_where_that_is_faster(monkeypatch, max_lag, expected):
    machine = Machine(monkeypatch, lambda c: 1e5 if c["collection"] == "overlapped" else 5e4)
    found = searched(machine, task(vector=True, step=None, max_lag=max_lag))
    assert expected in str(found.best().candidate)
    assert not any(candidate.processes for candidate in machine.made)


def test_threads_are_not_tried_where_the_learner_hardly_computes(monkeypatch):
    monkeypatch.setattr(Row, "computing", property(lambda row: 0.01))
    found = searched(Machine(monkeypatch, lambda candidate: 1e4), task())
    assert {row.candidate["threads"] for row in found.rows} == {1}


def test_other_modes_have_the_usual_lag():
    of = task(max_lag=None)
    best = of.base.but(actors=4, collection="async", max_policy_lag=2)
    lags = {c["collection"] if c["actors"] else "workers": c["max_policy_lag"] for c in of.modes(best)}
    assert lags == {"overlapped": of.base["max_policy_lag"], "async": 2, "workers": of.base["max_policy_lag"]}


def test_what_the_time_of_a_step_rules_out_is_not_measured(monkeypatch):
    machine = Machine(monkeypatch, lambda candidate: 100.0 * max(1, candidate.processes))
    found = searched(machine, task(step=StepTime(0.01, 0.0)))  # sleeps: 100 steps/s in each process
    many = {row.candidate.placed(): row.reason for row in found.rows if row.candidate["num_envs"] == 64}
    assert found.best().candidate.processes > 32
    assert many["8 workers"] == "not tried: at most 800 steps/s, by the time of a step"


@pytest.mark.parametrize("pays", [16, 64, 256])
def test_environments_that_wait_get_as_many_processes_as_pay(pays, monkeypatch):
    machine = Machine(monkeypatch, lambda candidate: 500.0 * min(candidate.processes + 1, pays))
    found = searched(machine, task(step=StepTime(0.001, 0.01)), seconds=240.0)
    tried = {row.candidate.processes for row in found.rows if row.rates}
    assert found.best().candidate.processes >= min(pays, 128)
    assert max(tried) <= max(4 * pays, 32)


def test_what_there_is_no_time_for_is_named_with_what_it_needs(monkeypatch):
    machine = Machine(monkeypatch, lambda candidate: 40.0 * max(1, candidate.processes))
    found = searched(machine, task(step=StepTime(0.002, 0.0)), seconds=6.0)
    untried = [row for row in found.rows if row.untried]
    assert untried and all("no time left, it needs about" in row.reason for row in untried)


def test_a_step_that_was_slow_by_chance_rules_nothing_out(monkeypatch):
    """Environments that are measured faster than the time of a step allows make that time shorter."""
    machine = Machine(monkeypatch, lambda candidate: 100.0 * max(1, candidate.processes) * candidate["num_envs"] ** 0.1)
    found = searched(machine, task(step=StepTime(0.1, 0.0)))  # by which an iteration of 256 takes 13 s at least
    assert found.task.step.seconds < 0.01
    assert any(row.rates for row in found.rows if row.candidate["num_envs"] == 256)


def test_each_measurement_of_a_candidate_has_a_seed_of_its_own(monkeypatch):
    machine = Machine(monkeypatch, lambda candidate: 1e4)
    machine.speeds.seed = 7
    row = Row(task().base)
    for _ in range(2):
        machine.speeds.measure(row, 0.5, 10.0)
    assert machine.seeds[0] == 7 < machine.seeds[1]


def test_what_fails_is_a_row_with_the_reason(monkeypatch):
    def planted(candidate):
        if candidate["actors"]:
            raise ValueError("actors do not\ngo with this")
        return 2e4 if candidate["workers"] else 0.5  # in one process an iteration takes hours

    found = searched(Machine(monkeypatch, planted), task())
    reasons = {row.candidate.placed(): row.reason for row in found.rows if row.candidate["num_envs"] == 64}
    assert reasons["4 actors"] == "ValueError: actors do not go with this"
    assert reasons["one process"] == "an iteration takes more than 10 s"
    assert found.best().candidate["workers"]


def test_an_iteration_that_cannot_end_in_time_is_not_begun(monkeypatch):
    machine = Machine(monkeypatch, lambda candidate: 20.0 * max(1, candidate.processes))
    slow = StepTime(0.05, 0.0)  # 64 environments x 16 steps x 50 ms: 51 s in one process
    found = searched(machine, task(step=slow))
    assert found.rows[0].reason == (
        "not tried: an iteration takes 51 s or more, for which 3.1e+02 s of trials are needed"
    )
    assert found.best().candidate["workers"] >= 32
    machine = Machine(monkeypatch, lambda candidate: 20.0 * max(1, min(candidate.processes, 4)))
    hopeless = searched(machine, task(step=StepTime(0.05, 1.0)), seconds=20.0)
    assert len(hopeless.ranked()) == 1  # the one with the shortest iteration, after all


def test_an_interruption_leaves_the_best_so_far(monkeypatch):
    machine = Machine(monkeypatch, lambda candidate: 1e4 * (1 + candidate.processes))
    machine.interrupted_at = 6.0
    found = searched(machine, task())
    assert found.interrupted and found.best() is not None and machine.open == 0
    assert machine.now < 9


def test_what_is_given_stays(monkeypatch):
    found = searched(
        Machine(monkeypatch, lambda candidate: 1e4), task(given=("workers", "actors", "num_envs", "threads"))
    )
    assert [str(row.candidate) for row in found.rows if row.candidate["precision"] != "bfloat16"] == [
        "one process, 64 environments"
    ]
    compiled = task(compiled=True, step=None)
    assert not any(candidate["workers"] for candidate in compiled.placements())


def test_the_same_return_decides_where_steps_mislead(monkeypatch):
    """More environments give more steps per second, and need more steps to the same return."""
    machine = Machine(
        monkeypatch,
        lambda candidate: 1e4 * candidate["num_envs"] / 64,
        rise=lambda candidate, steps: min(steps / 1e5 * (64 / candidate["num_envs"]) ** 2, 1.0),
    )
    rows = [Row(task().base.but(num_envs=number), rates=[number * 1e4 / 64]) for number in (256, 128, 64)]
    contest = Race(machine.speeds, 300.0, None, 0, lambda text: None)
    assert contest.run(rows) is rows[2]
    assert contest.target == pytest.approx(0.8, abs=0.05)
    assert len(rows[2].seconds_to_return) >= 2 and machine.open == 0
    assert not machine.now > 300


def test_a_return_that_does_not_rise_decides_nothing(monkeypatch):
    machine = Machine(monkeypatch, lambda candidate: 1e4, rise=lambda candidate, steps: 5.0 + steps % 3000 / 1e6)
    rows = [Row(task().base.but(num_envs=number), rates=[1e4]) for number in (64, 128)]
    assert Race(machine.speeds, 30.0, None, 0, lambda text: None).run(rows) is None
    assert rows[0].behind == "its return did not clearly rise"


def test_finalists_learn_in_different_ways_and_have_the_usual_one():
    base = task().base
    ranked = [
        Row(base.but(num_envs=512), rates=[9.0]),
        Row(base.but(num_envs=512, workers=4), rates=[8.0]),
        Row(base.but(num_envs=256), rates=[7.0]),
        Row(base.but(num_envs=128), rates=[6.0]),
        Row(base.but(workers=2), rates=[5.0]),
        Row(base, rates=[4.0]),
    ]
    assert finalists(ranked, base) == [ranked[0], ranked[2], ranked[4]]
