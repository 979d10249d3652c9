"""Environments that go wrong in the middle of a training: it goes on and counts them, or ends and says why, and leaves
no descriptor behind. benchmarks/faults/env_faults.py does this a thousand times, and counts processes, too."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit
from helpers.faulty import Counter

from headrace import envs
from headrace.core import fused
from headrace.data.finite import NotFinite
from headrace.data.rollout import Rollout
from headrace.envs.gym.inline import TRIES, InlineEnv
from headrace.envs.workers.env import WorkerEnv
from headrace.envs.workers.process import WorkerError, Workers
from headrace.evaluation.evaluator import evaluate
from headrace.policies.actor_critic import ActorCritic
from headrace.runs.recorder import Recorder
from headrace.training.trainer import Trainer

SETTINGS = {"num_envs": 4, "num_steps": 8, "minibatch_size": 16, "epochs": 1, "hidden": (4,)}


@pytest.fixture(autouse=True)
def without_kernels():
    """Run plain functions: kernels would be compiled for these tests alone."""
    with fused.plain_only():
        yield


class Stubborn(Counter):
    """Fails at its third step; then its constructor fails so many times before another can be made."""

    def __init__(self, times: int, made: list[int]) -> None:
        super().__init__()
        made.append(1)
        self.made = made
        if 1 < len(made) <= 1 + times:
            raise OSError("the port is taken")

    def step(self, action):
        if self.steps == 2 and len(self.made) == 1:
            raise ZeroDivisionError("the step went wrong")
        return super().step(action)


class Quits(Counter):
    """Environment that would end the process at its second step."""

    def __init__(self, how) -> None:
        super().__init__()
        self.how = how

    def step(self, action):
        if self.steps == 1:
            raise self.how(0)
        return super().step(action)


class Fickle(Counter):
    """Fails at the third step of its second episode."""

    def __init__(self, made) -> None:
        super().__init__()
        made.append(1)
        self.episodes = 0

    def reset(self, **options):
        self.episodes += 1
        return super().reset(**options)

    def step(self, action):
        if self.episodes == 2 and self.steps == 2:
            raise ZeroDivisionError("the step went wrong")
        return super().step(action)


class NaN(Counter):
    """Environment whose observation at the third step is no number."""

    def step(self, action):
        observation, *rest = super().step(action)
        return (np.full(2, np.nan, np.float32) if self.steps == 3 else observation), *rest


def stepped(env, steps):
    rollout = Rollout(steps, env.num_envs, env.columns())
    env.reset(rollout, 0)
    for t in range(steps):
        env.step(rollout, t)
    return rollout


def held():
    """Descriptors of this process that are open."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_a_constructor_that_fails_for_a_while_is_tried_again():
    env = InlineEnv(functools.partial(Stubborn, TRIES - 1, made := []), 1, "test", restart=True)
    rollout = stepped(env, 8)
    assert env.restarts == 1 and len(made) == 1 + TRIES
    assert rollout.truncated[:, 0].nonzero().tolist() == [[2]] and rollout.valid[4:, 0].all()


def test_a_constructor_that_goes_on_failing_ends_it_and_says_where():
    env = InlineEnv(functools.partial(Stubborn, TRIES, made := []), 1, "test", restart=True)
    with pytest.raises(OSError, match="the port is taken") as caught:
        stepped(env, 8)
    assert len(made) == 1 + TRIES and "in env 0 of 1 of test, episode 0, step 2" in "".join(caught.value.__notes__)


def test_environments_are_made_again_without_workers_too(tmp_path):
    env = envs.make(functools.partial(Counter, "step", once=str(tmp_path / "happened")), 2, on_error="restart")
    stepped(env, 8)
    assert env.backend == "inline" and env.restarts == 1
    with pytest.raises(ValueError, match="on_error must be 'raise' or 'restart', got 'ignore'"):
        envs.make(Counter, 2, on_error="ignore")


@pytest.mark.parametrize("at", [1, 3])
def test_a_worker_that_dies_again_and_again_ends_it(at):
    env = WorkerEnv(functools.partial(Counter, "kill", at), 2, "test", 1, on_error="restart")
    with pytest.raises(WorkerError, match="was ended by SIGKILL") as caught:
        stepped(env, 30)
    assert env.restarts == 2 * TRIES and "3 times in a row" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("at", [1, 3])
def test_an_environment_that_fails_at_the_same_step_of_each_episode_ends_it(at):
    env = InlineEnv(functools.partial(Counter, "step", at), 1, "test", restart=True)
    with pytest.raises(ZeroDivisionError):
        stepped(env, 30)
    assert env.restarts == TRIES - 1


def test_failures_that_episodes_get_past_are_counted_alone():
    env = InlineEnv(functools.partial(Fickle, made := []), 1, "test", restart=True)
    stepped(env, 100)
    assert env.restarts > 6 and len(made) == env.restarts + 1


@pytest.mark.parametrize("how", [SystemExit, KeyboardInterrupt])
def test_an_environment_cannot_end_the_run_without_a_word(how, monkeypatch):
    env = WorkerEnv(functools.partial(Quits, how), 2, "test", 1)
    with pytest.raises(RuntimeError, match=rf"the environment raised {how.__name__}\(0\)") as caught:
        stepped(env, 3)
    notes = "".join(caught.value.__notes__)
    assert "in env 0 of 2 of test, episode 0, step 1" in notes and "raise self.how(0)" in notes
    monkeypatch.setattr("signal.getsignal", lambda number: None)  # as in a training, which handles Ctrl-C
    env = InlineEnv(functools.partial(Quits, how), 2, "test", restart=True)
    with pytest.raises(RuntimeError, match=rf"the environment raised {how.__name__}\(0\)"):
        stepped(env, 30)
    assert env.restarts == 2 * (TRIES - 1)
    monkeypatch.undo()
    if how is KeyboardInterrupt:  # of the user; a shell starts programs in the background with SIGINT ignored
        monkeypatch.setattr("signal.getsignal", lambda number: signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            stepped(InlineEnv(functools.partial(Quits, how), 2, "test"), 3)


def test_a_constructor_that_quits_is_reported():
    with pytest.raises(RuntimeError, match=r"the environment raised SystemExit\(0\)"):
        InlineEnv(lambda: sys.exit(0), 1, "test")
    with pytest.raises(RuntimeError, match=r"the environment raised SystemExit\(0\)"):
        WorkerEnv(lambda: sys.exit(0), 1, "test", 1)


def test_a_constructor_that_fails_once_while_a_worker_is_replaced_is_tried_again(tmp_path):
    def factory():
        if (tmp_path / "happened").exists() and not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise OSError("the port is taken")
        return Counter("kill", once=str(tmp_path / "happened"))

    env = WorkerEnv(factory, 2, "test", 1, on_error="restart")
    rollout = stepped(env, 8)
    assert env.restarts == 2 and rollout.valid[4:].all() and (tmp_path / "failed").exists()
    env.close()


def test_a_function_that_gives_the_same_environment_again_is_refused():
    same = Counter()
    for factory in (lambda: same, lambda: TimeLimit(same, 5)):
        for make in (InlineEnv, functools.partial(WorkerEnv, workers=1)):
            with pytest.raises(ValueError, match=r"the same environment again.*`lambda: gymnasium.make\(...\)`"):
                make(factory, 2, "test")
    env = InlineEnv(lambda: same, 1, "test", restart=True)
    same.fault = "reset"
    with pytest.raises(ValueError, match="the same environment again"):
        stepped(env, 2)


@pytest.mark.parametrize(("fault", "restarts"), [("step", 1), ("reset", 1), ("shape", 1), ("kill", 2)])
def test_a_training_goes_on_and_its_rows_count_what_happened(fault, restarts, tmp_path):
    faulty = functools.partial(Counter, fault, once=str(tmp_path / "happened"))
    trainer = Trainer("ppo", faulty, workers=2, on_error="restart", **SETTINGS)
    rows = [trainer.iterate().row() for _ in range(3)]
    trainer.close()
    assert rows[-1]["restarts"] == restarts and all(np.isfinite(row["policy_gradient_loss"]) for row in rows)
    assert rows[-1]["episodes"] > 10


@pytest.mark.parametrize("workers", [None, 2])
def test_an_evaluation_goes_on_and_counts_whole_episodes_alone(workers, tmp_path):
    policy = ActorCritic(Counter.observation_space, Counter.action_space, hidden=(4,))
    for fault in ("step", "reset") if workers is None else ("kill",):
        faulty = functools.partial(Counter, fault, once=str(tmp_path / fault))
        result = evaluate(policy, faulty, 4, workers=workers, on_error="restart")
        assert (tmp_path / fault).exists() and result.lengths == (5,) * 4 and result.returns == (5.0,) * 4
    with pytest.raises(ZeroDivisionError):
        evaluate(policy, functools.partial(Counter, "step"), 4)


def test_evaluations_of_a_training_follow_its_setting(tmp_path):
    faulty = functools.partial(Counter, "step", at=2, once=str(tmp_path / "happened"))
    (tmp_path / "happened").touch()
    trainer = Trainer("ppo", faulty, on_error="restart", eval_freq=1, eval_episodes=2, **SETTINGS, progress="none")
    (tmp_path / "run").mkdir()
    with Recorder(trainer, tmp_path / "run") as recorder:
        result = trainer.iterate()
        (tmp_path / "happened").unlink()  # the next environment to step fails
        recorder.record(result)
    assert (tmp_path / "happened").exists()


def test_a_training_that_sees_no_number_ends_and_says_so():
    with pytest.raises(NotFinite):
        trainer = Trainer("ppo", NaN, workers=1, **SETTINGS)
        try:
            trainer.iterate()
        finally:
            trainer.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors as Linux shows them")
def test_no_descriptor_stays_open():
    with Workers(1) as workers:
        counts = []
        for _ in range(3):
            env = WorkerEnv(functools.partial(Counter, "step"), 2, "test", workers)
            rollout = env.rollout(4, env.columns())
            env.reset(rollout, 0)
            with pytest.raises(ZeroDivisionError):
                for t in range(4):
                    env.step(rollout, t)
            env.close()
            del env, rollout
            counts.append(held())
        assert counts[1] == counts[2]


def mapped(pid):
    """Pieces of shared memory in a process."""
    return sum("/dev/shm" in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors as Linux shows them")
def test_a_rollout_that_nobody_holds_is_given_back(tmp_path):
    env = WorkerEnv(
        functools.partial(Counter, "kill", 4, once=str(tmp_path / "happened")), 2, "test", 1, on_error="restart"
    )
    kept = env.rollout(4, env.columns())
    env.reset(kept, 0)
    counts = []
    for _ in range(6):
        rollout = env.rollout(4, env.columns())
        env.reset(rollout, 0)
        for t in range(4):
            env.step(rollout, t)
        env.step(kept, 0)
        del rollout
        counts.append((held(), mapped("self"), mapped(env._transport.workers[0].process.pid)))
    assert counts[1] == counts[-1] and kept.terminated[0].all()
    env.close()
