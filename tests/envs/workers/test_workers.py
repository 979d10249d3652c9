"""Worker processes: as the same environments inline, whatever goes wrong, and nothing left behind."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from helpers import forked
from helpers.faulty import Counter

from headrace import envs
from headrace.data.rollout import Rollout, tree_map
from headrace.data.shared_memory import SharedRollout
from headrace.data.spaces import action_column, env_columns
from headrace.envs.gym.inline import InlineEnv
from headrace.envs.workers.env import WorkerEnv
from headrace.envs.workers.transport import WorkerError
from headrace.training.trainer import Trainer

CARTPOLE = functools.partial(gymnasium.make, "CartPole-v1")


def columns(env):
    return env_columns(env.observation_space) | {"action": action_column(env.action_space)}


@pytest.fixture
def workers():
    """A maker of WorkerEnvs that are closed at the end."""
    made = []

    def make(factory, num_envs=5, workers=2, **options):
        made.append(WorkerEnv(factory, num_envs, "test", workers, **options))
        return made[-1]

    yield make
    for env in made:
        env.close()


def run(env, rollout, steps=40, seed=7, actions=None):
    """Steps through a rollout again and again; gives copies of what was written."""
    generator = torch.Generator().manual_seed(seed)
    env.reset(rollout, seed)
    seen = []
    for first in range(0, steps, rollout.num_steps):
        if first:
            rollout.continue_from(rollout)
        rollout.action.copy_(torch.randint(0, 2, rollout.action.shape, generator=generator))
        for t in range(rollout.num_steps):
            env.step(rollout, t)
        seen.append({name: tree_map(torch.clone, getattr(rollout, name)) for name in rollout.columns})
    return seen


@pytest.mark.parametrize("direct", [True, False])
def test_workers_give_what_the_same_environments_give_inline(workers, direct):
    env, inline = workers(CARTPOLE), InlineEnv(CARTPOLE, 5, "test")
    rollout = env.rollout(8, columns(env)) if direct else Rollout(8, 5, columns(env))
    for ours, theirs in zip(run(env, rollout), run(inline, Rollout(8, 5, columns(env))), strict=True):
        dead = ~theirs["valid"][:-1]
        for name, column in theirs.items():
            rows = dead if name.startswith("episode") else ...  # written at masked steps alone
            assert torch.equal(ours[name][rows], column[rows]), name
    assert env.max_steps == 500 and env.restarts == 0


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores are chosen by the system here")
@pytest.mark.parametrize("more", [0, 1])
def test_each_worker_keeps_to_its_share_of_the_cores_unless_there_are_more_workers(workers, more):
    allowed = os.sched_getaffinity(0)
    number = min(len(allowed), 4) if not more else len(allowed) + 1
    env = workers(CARTPOLE, number, number)
    env.reset(env.rollout(1, columns(env)), 0)
    shares = [os.sched_getaffinity(worker.process.pid) for worker in env._transport.workers]
    if more:
        assert shares == [allowed] * number
    else:
        assert set.union(*shares) == allowed and sum(map(len, shares)) == len(allowed)


def test_shared_rollouts_are_rollouts():
    space = Dict({"place": Box(-1, 1, (3,)), "kind": Discrete(4)})
    declared = env_columns(space) | {"action": action_column(Discrete(2))}
    shared, plain = SharedRollout(6, 10, declared), Rollout(6, 10, declared)
    assert repr(shared) == repr(plain)
    assert shared.observation.place.stride() == plain.observation.place.stride()
    shared.observation.place.fill_(1.0)
    shared.reward.fill_(2.0)
    assert not shared.observation.kind.any() and not shared.valid.any() and not shared.episode_return.any()
    part = shared[:, 2:4]
    part.reward[0] = 5.0
    assert shared.reward[0].tolist() == [2, 2, 5, 5, 2, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("fault", ["step", "reset", "shape"])
def test_an_exception_comes_with_its_traceback_its_env_and_seed(workers, fault):
    env = workers(functools.partial(Counter, fault))
    kind, words = (ValueError, "does not fit") if fault == "shape" else (ZeroDivisionError, f"the {fault} went wrong")
    with pytest.raises(kind, match=words) as caught:
        run(env, env.rollout(8, columns(env)))
    notes = "".join(caught.value.__notes__)
    assert "of 5 of test, episode 0" in notes and "its seed was" in notes
    where = str(caught.value.__cause__) if fault == "shape" else notes  # a message of ours needs no traceback
    assert "in a worker process:" in where and ("faulty.py" in where or fault == "shape")


def test_an_exception_in_the_constructor_comes_when_it_is_made():
    with pytest.raises(ZeroDivisionError, match="the constructor went wrong"):
        WorkerEnv(functools.partial(Counter, "constructor"), 3, "test", 1)


@pytest.mark.parametrize(("fault", "how"), [("kill", "was ended by SIGKILL"), ("exit", "ended with exit code 3")])
def test_a_death_is_told(workers, fault, how):
    env = workers(functools.partial(Counter, fault))
    with pytest.raises(WorkerError, match=rf"worker [01] \(envs \d to \d of test\) {how}"):
        run(env, env.rollout(8, columns(env)))


def test_a_hanging_worker_is_told(workers):
    env = workers(functools.partial(Counter, "hang"), step_timeout=0.5)
    with pytest.raises(WorkerError, match=r"worker [01] \(envs \d to \d of test\) has not answered for 0.5 s"):
        run(env, env.rollout(8, columns(env)))


@pytest.mark.parametrize("fault", ["step", "reset", "shape", "kill", "exit", "hang"])
@pytest.mark.parametrize("direct", [True, False])
def test_restart_goes_on_and_counts(workers, fault, direct, tmp_path):
    factory = functools.partial(Counter, fault, once=str(tmp_path / "happened"))
    env = workers(factory, step_timeout=2.0, on_error="restart")
    rollout = env.rollout(10, columns(env)) if direct else Rollout(10, 5, columns(env))
    rows = run(env, rollout, steps=30)
    of_worker = fault in ("kill", "exit", "hang")
    # with a worker go all of its environments, 2 of the first and 3 of the second
    assert env.restarts in ((2, 3) if of_worker else (1,))
    lengths = torch.cat([part["episode_length"][~part["valid"][:-1]] for part in rows]).tolist()
    assert lengths.count(5) > 15 and set(lengths) <= {0, 2, 5}
    truncated = sum(int(part["truncated"].sum()) for part in rows)
    assert truncated == (0 if fault == "reset" else env.restarts)
    for part in rows:
        # an episode counts up from 0, with one mark
        steps, valid = part["observation"][..., 0], part["valid"]
        went_on = valid[:-1] & ~part["truncated"]
        assert torch.equal(steps[1:][went_on], steps[:-1][went_on] + 1)
        assert (part["reward"][went_on] == 1).all() and not part["reward"][~went_on].any()


def test_an_environment_that_always_fails_is_given_up(workers):
    env = workers(functools.partial(Counter, "reset"), on_error="restart")
    with pytest.raises(ZeroDivisionError, match="the reset went wrong"):
        run(env, env.rollout(8, columns(env)))


def test_what_cannot_be_sent_is_named():
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"cannot be sent to a worker process: .*lock.*inside the function"):
        WorkerEnv(lambda: lock, 2, "test", 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": 0}, "workers must be between 1 and num_envs = 5, got 0"),
        ({"workers": 6}, "between 1 and num_envs = 5, got 6"),
        ({"on_error": "ignore"}, "on_error must be 'raise' or 'restart', got 'ignore'"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        WorkerEnv(CARTPOLE, 5, "test", **options)


def test_set_up_and_clean_up_run_in_the_workers(tmp_path):
    def note(what, place):
        (tmp_path / f"{what}{place}").write_text(str(os.getpid()))

    env = WorkerEnv(
        CARTPOLE, 4, "test", 2, set_up=functools.partial(note, "up"), clean_up=functools.partial(note, "down")
    )
    env.close()
    env.close()
    pids = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert set(pids) == {"up0", "up1", "down0", "down1"}
    assert pids["up0"] == pids["down0"] != pids["up1"] and str(os.getpid()) not in pids.values()


SCRIPT = """
import ctypes, gymnasium, os, tempfile, time
tempfile.template = f"of_script_{os.getpid()}_"
from headrace.envs.workers.env import WorkerEnv
from headrace.data.spaces import env_columns, action_column

class Mine(gymnasium.Wrapper):  # defined in the script itself, which has no guard
    steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 2:  # hangs, and no other thread of Python can run
            ctypes.PyDLL(None).sleep(1000)
        return super().step(action)

print("script")
env = WorkerEnv(lambda: Mine(gymnasium.make("CartPole-v1")), 2, "test", 2)
rollout = env.rollout(4, env_columns(env.observation_space) | {"action": action_column(env.action_space)})
env.reset(rollout, 0)
env.step(rollout, 0)
print(*(worker.process.pid for worker in env._transport.workers), flush=True)
"""


def alive(pid):
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"


@pytest.mark.parametrize(
    "ending",
    [
        "1 / 0",
        "env.start(rollout, 1, 0); time.sleep(100)",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("", "raise SystemExit(0)")),
    ],
)
def test_no_process_and_no_memory_outlive_the_script(ending, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + ending)
    process = forked.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "script\n"
    pids = process.stdout.readline().split()
    if "sleep" in ending:
        assert all(map(alive, pids))
        process.kill()
    rest, errors = process.communicate()
    assert len(pids) == 2, errors
    assert rest == ""  # the script has run once, not in every worker
    while any(map(alive, pids)):
        time.sleep(0.05)
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"of_script_{process.pid}_")]


def test_training_takes_workers_and_equals_training_inline(tmp_path):
    options = {"num_envs": 4, "num_steps": 8, "total_steps": 96, "hidden": (8,), "seed": 3, "scale": False}
    with_workers = Trainer("ppo", CARTPOLE, workers=2, **options)
    inline = Trainer("ppo", CARTPOLE, backend="inline", **options)
    assert with_workers.env.backend == "workers"
    for _ in range(3):
        assert with_workers.iterate() == inline.iterate()
    assert torch.equal(with_workers.collector.rollout.observation, inline.collector.rollout.observation)
    with_workers.close()
    with pytest.raises(ValueError, match="workers=2 is for the workers backend; the backend is 'cpu'"):
        Trainer("ppo", "CartPole-v1", workers=2, backend="cpu")


def test_what_lies_in_a_file_is_found_there_by_the_workers(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import gymnasium\nclass Mine(gymnasium.Wrapper):\n    def __init__(self):\n"
        "        super().__init__(gymnasium.make('CartPole-v1'))\n"
    )
    env = envs.make(f"{tmp_path}/mine.py:Mine", 3, workers=1)
    rollout = env.rollout(4, columns(env))
    env.reset(rollout, 0)
    assert rollout.observation[0].any() and rollout.valid[0].all()
    env.close()
