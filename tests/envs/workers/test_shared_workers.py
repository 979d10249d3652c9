"""Workers that serve several environments, one after another; and decisions and messages before they start."""

from __future__ import annotations

import functools
import os
import select

import gymnasium
import pytest
from helpers.faulty import Counter
from helpers.gated import PLACE

import headrace
from headrace import Workers, envs
from headrace.envs.workers import resources, spin_wait, tuning
from headrace.envs.workers.env import WorkerEnv
from headrace.envs.workers.process import WorkerProcess
from headrace.envs.workers.tuning import StepTime, choose, step_time
from headrace.training.config import merge_settings
from headrace.training.trainer import Trainer
from headrace.tuning import candidates

CARTPOLE = functools.partial(gymnasium.make, "CartPole-v1")


def pids(env):
    return [worker.process.pid for worker in env._transport.workers]


def stepped(env, seed=0):
    """Observations of two steps."""
    rollout = env.rollout(2, env.columns())
    env.reset(rollout, seed)
    env.step(rollout, 0)
    env.step(rollout, 1)
    return rollout.observation.clone()


def test_workers_serve_one_training_after_another(tmp_path):
    def note(what, place):
        with open(tmp_path / what, "a") as file:
            file.write(f"{place}")

    with Workers(3) as workers:
        functions = {"set_up": functools.partial(note, "up"), "clean_up": functools.partial(note, "down")}
        env = WorkerEnv(CARTPOLE, 2, "test", workers, **functions)  # two of them are enough
        first, seen = pids(env), stepped(env)
        others = WorkerEnv(Counter, 4, "test", workers)
        assert len(pids(others)) == 1 and not set(pids(others)) & set(first)
        with pytest.raises(RuntimeError, match="all 3 workers are busy"):
            WorkerEnv(CARTPOLE, 2, "test", workers)
        assert stepped(others)[2, :, 0].tolist() == [2, 2, 2, 2]
        all_pids = {*first, *pids(others)}
        env.close()
        others.close()
        with pytest.raises(ValueError, match=r"0 to below 1, got 2"):
            Trainer("a2c", CARTPOLE, num_envs=6, workers=workers, collection="async", drop_slowest=2.0)
        trainer = Trainer("a2c", CARTPOLE, num_envs=6, num_steps=4, workers=workers, hidden=(8,))
        assert set(pids(trainer.env)) == all_pids and trainer.config.workers == 3
        trainer.iterate()
        trainer.close()
        again = WorkerEnv(CARTPOLE, 2, "test", workers)
        assert (stepped(again) == seen).all()
        processes = [worker.process for worker in again._transport.workers]
    assert all(sorted((tmp_path / name).read_text()) == ["0", "1"] for name in ("up", "down"))  # in any order
    assert not any(process.is_alive() for process in processes)
    with pytest.raises(RuntimeError, match="these workers are closed"):
        WorkerEnv(CARTPOLE, 2, "test", workers)


@pytest.mark.parametrize("fault", ["constructor", "step", "kill"])
def test_workers_survive_what_goes_wrong_in_one_of_them(fault):
    with Workers(2) as workers:
        with pytest.raises(Exception, match="went wrong" if fault != "kill" else "SIGKILL"):
            env = WorkerEnv(functools.partial(Counter, fault, at=1), 2, "test", workers)
            stepped(env)
        for _ in range(2):
            env = WorkerEnv(CARTPOLE, 2, "test", workers)
            assert stepped(env).any()
            env.close()


def test_a_run_that_cannot_begin_leaves_no_worker_busy(tmp_path):
    (tmp_path / "file").touch()
    options = {"num_envs": 2, "num_steps": 4, "hidden": (4,), "log_folder": f"{tmp_path}/file", "progress": "none"}
    with Workers(1) as workers:
        for wrong in ({}, {"agent_info": [1, 2, 3]}, {"drop_slowest": 0.5}):
            with pytest.raises((OSError, ValueError)) as caught:
                headrace.train("ppo", CARTPOLE, workers=workers, **options | wrong)
            WorkerEnv(CARTPOLE, 2, "test", workers).close()
            del caught  # only now, as it holds what was made


def test_no_workers_are_no_workers():
    with pytest.raises(ValueError, match=r"a number of workers, 1 or more, .* got 0"):
        Workers(0)


def test_how_long_a_thread_had_no_core_is_known_or_counts_as_long(monkeypatch):
    assert 0 <= spin_wait._waited() < 1e6
    monkeypatch.setattr("builtins.open", lambda *_: (_ for _ in ()).throw(FileNotFoundError()))
    assert spin_wait._waited() == float("inf")


def test_waiting_looks_only_while_nobody_wants_the_core(monkeypatch):
    reading, writing = os.pipe()
    poll, looks = select.poll(), []

    class Watched:
        def poll(self, timeout):
            looks.append(timeout)
            return poll.poll(0)

    poll.register(reading, select.POLLIN)
    waited, clock = [0.0], [100.0]
    monkeypatch.setattr(spin_wait, "_waited", lambda: waited[0])
    monkeypatch.setattr(spin_wait, "perf_counter", lambda: clock.__setitem__(0, clock[0] + 1e-5) or clock[0])
    mine = spin_wait.Waiting(1e-4)
    assert mine.poll(Watched(), 1.0) == [] and looks.count(0) > 5 and looks[-1] == 1000.0
    os.write(writing, b"x")
    assert mine.poll(Watched(), 1.0) == [(reading, select.POLLIN)] and looks[-1] == 0
    clock[0] += 1.0
    waited[0] += spin_wait.SHARE / 2  # the system itself had the core
    assert mine.poll(Watched(), 1.0) and looks[-1] == 0
    for pause in (spin_wait.FIRST_PAUSE, 2 * spin_wait.FIRST_PAUSE):  # the core was taken: asleep, each time for longer
        clock[0] += spin_wait.PERIOD
        waited[0] += spin_wait.PERIOD / 2
        for _ in range(3):
            mine.poll(Watched(), 1.0)
            assert looks[-1] == 1000.0
        clock[0] += pause - 1e-3
        mine.poll(Watched(), 1.0)
        assert looks[-1] == 1000.0
        clock[0] += 2e-3
    mine.poll(Watched(), 1.0)
    assert looks[-1] == 0
    assert spin_wait.Waiting(0.0).poll(Watched(), 1.0) and looks[-1] == 1000.0
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("step", "num_envs", "fewest", "number"),
    [
        (StepTime(3e-6, 1.0), 8, 0, 0),  # waking a worker takes longer than the steps
        (StepTime(3e-6, 1.0), 8, 1, 1),
        (StepTime(200e-6, 1.0), 8, 0, 4),
        (StepTime(2e-3, 1.0), 64, 0, 4),
        (StepTime(2e-3, 1.0), 3, 0, 3),
        (StepTime(2e-3, 1.0), 5, 0, 3),  # two rows of steps either way: the fourth is left to the learner
        (StepTime(2e-3, 0.01), 16, 0, 16),  # they wait for something else than a core
    ],
)
def test_the_number_of_workers(monkeypatch, step, num_envs, fewest, number):
    monkeypatch.setattr(tuning, "cores", lambda: 4)
    chosen, words = choose(step, num_envs, fewest)
    assert chosen == number
    assert words.startswith(f"{number} worker" if number else "no workers") and f"all {num_envs}" in words


def test_an_environment_is_tried_and_closed(monkeypatch):
    closed = []

    class Short(Counter):
        def close(self):
            closed.append(self.steps)

    step = step_time(Short)
    assert step.seconds > 0 and 0 < step.busy <= 1 and len(closed) == 1
    monkeypatch.setattr(tuning, "step_time", lambda factory: StepTime(1e-9, 1.0))
    env = envs.make(CARTPOLE, 3, workers="auto")
    assert env.backend == "inline"
    env.close()
    assert envs.make("CartPole-v1", 3, workers="auto").backend == "cpu"


def test_settings_take_a_number_or_auto():
    for given, kept in (("auto", "auto"), (3, 3), (3.0, 3), (None, None), ("none", None)):
        assert merge_settings(None, {}, {}, {"workers": given})[0].workers == kept
    with pytest.raises(TypeError, match=r"workers must be int \| 'auto' \| None, got 'many'"):
        merge_settings(None, {}, {}, {"workers": "many"})
    with pytest.raises(ValueError, match=r"collection must be one of sync, .*, async, got 'slow'"):
        merge_settings(None, {}, {}, {"collection": "slow"})


def test_auto_is_told_and_resumed_with_as_many(monkeypatch, capfd):
    monkeypatch.setattr(candidates, "step_time", lambda factory, seed: StepTime(1.0, 0.0))
    short = {"total_steps": 20}  # too short for trials
    trainer = Trainer("a2c", CARTPOLE, num_envs=2, num_steps=4, workers="auto", hidden=(8,), **short)
    assert "2 workers: a step of one environment takes 1e+03 ms, waiting; one of all 2" in capfd.readouterr().err
    assert trainer.settings()["workers"] == 2 and "2 environments of" in trainer.resources
    trainer.close()


def test_what_does_not_fit_is_refused_with_the_numbers(monkeypatch):
    import resource

    monkeypatch.setattr(resources, "free_memory", lambda: 1e9)
    resources.check_memory(8, 100e6)
    resources.check_memory(8, None)
    with pytest.raises(MemoryError, match=r"10 workers of 100 MB each take 1,000 MB, .* 1,000 MB free: use at most 9"):
        resources.check_memory(10, 100e6)
    monkeypatch.setattr(resources.shutil, "disk_usage", lambda folder: type("", (), {"free": 64e6}))
    with pytest.raises(
        MemoryError, match=r"128 steps of 64 environments takes 100 MB, and /x has 64 MB free.*--shm-size"
    ):
        resources.check_rollout(100_000_000, 128, 64, "/x")
    resources.check_rollout(50_000_000, 128, 64, "/x")
    monkeypatch.setattr(resources, "free_memory", lambda: 40e6)
    with pytest.raises(MemoryError, match="takes 50 MB, and there are 40 MB free"):
        resources.check_rollout(50_000_000, 128, 64, "/x")
    monkeypatch.setattr(resource, "getrlimit", lambda which: (50, 50))
    with pytest.raises(ValueError, match="60 workers need 240 open files, and this process may open 50"):
        resources.check_processes(60)


def test_more_workers_than_memory_are_not_started(monkeypatch):
    started = []
    launch = WorkerProcess._launch
    monkeypatch.setattr(WorkerProcess, "_launch", lambda self: (started.append(self), launch(self)))
    monkeypatch.setattr(resources, "free_memory", lambda: 1e6)
    monkeypatch.setattr("headrace.envs.workers.transport.cores", lambda: 2)
    monkeypatch.setattr("headrace.envs.workers.transport.own_memory", lambda pid: 9e6)
    with pytest.raises(MemoryError, match="6 workers of 9 MB each take 54 MB"):
        WorkerEnv(CARTPOLE, 6, "test", 6)
    assert len(started) == 1 and not started[0].running
    assert PLACE not in os.environ
