"""Environments that go wrong in the middle of a training: it goes on and counts them, or ends and says why, and leaves
no descriptor behind. benchmarks/faults.py does this a thousand times, and looks for processes and shared memory too."""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.faulty import Counter

from headrace.core import fused
from headrace.data.finite import NotFinite
from headrace.data.rollout import Rollout
from headrace.envs.gym.inline import TRIES, InlineEnv
from headrace.envs.workers.env import WorkerEnv
from headrace.envs.workers.process import Workers
from headrace.training.trainer import Trainer

SETTINGS = {"num_envs": 4, "num_steps": 8, "minibatch_size": 16, "epochs": 1, "hidden": (4,)}


@pytest.fixture(autouse=True)
def without_kernels():
    """They would be compiled for this alone."""
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


class NaN(Counter):
    """What is seen at the third step is no number."""

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


@pytest.mark.parametrize(("fault", "restarts"), [("step", 1), ("reset", 1), ("shape", 1), ("kill", 2)])
def test_a_training_goes_on_and_its_rows_count_what_happened(fault, restarts, tmp_path):
    faulty = functools.partial(Counter, fault, once=str(tmp_path / "happened"))
    trainer = Trainer("ppo", faulty, workers=2, on_error="restart", **SETTINGS)
    rows = [trainer.iterate().row() for _ in range(3)]
    trainer.close()
    assert rows[-1]["restarts"] == restarts and all(np.isfinite(row["policy_gradient_loss"]) for row in rows)
    assert rows[-1]["episodes"] > 10


def test_a_training_that_sees_no_number_ends_and_says_so():
    with pytest.raises(NotFinite):
        trainer = Trainer("ppo", NaN, workers=1, **SETTINGS)
        try:
            trainer.iterate()
        finally:
            trainer.close()


@pytest.mark.slow
def test_a_tenth_of_the_benchmarks_faults(tmp_path):
    program = Path(__file__).parents[3] / "benchmarks" / "faults.py"
    command = [sys.executable, str(program), "--quick", "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "faults.jsonl").read_text())
    assert result["faults"] > 200 and result["wrong"] == [] and len(result["rows"]) == 14


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
