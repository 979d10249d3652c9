"""A resumed run equals one that was never interrupted, bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from helpers import forked
from helpers.same import same
from helpers.tiny import TINY, Walk

import headrace as hr
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.core import fused
from headrace.data.spaces import Box, Discrete
from headrace.policies.actor_critic import ActorCritic
from headrace.runs import checkpoint
from headrace.training import resuming

LONG = TINY | {"total_steps": 3000, "schedule": "linear", "normalize_observation": True, "normalize_return": True}


pytestmark = pytest.mark.usefixtures("in_tmp")


class Stopped(Walk):
    """Ctrl-C comes in the middle of the seventh rollout."""

    def step(self, rollout, t):
        super().step(rollout, t)
        if self.taken == 6 * 16 + 5:
            os.kill(os.getpid(), signal.SIGINT)


def episodes(run):
    """Columns r and l of monitor.csv, as text."""
    return [line.rpartition(",")[0] for line in (run.path / "monitor.csv").read_text().splitlines()[2:]]


def same_policy(a, b):
    return same(dict(a.policy.state_dict()), dict(b.policy.state_dict()))


def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit():
    straight = hr.train("ppo", Walk(), **LONG)
    stopped = hr.train("ppo", Stopped(), on_interrupt="return", **LONG)
    assert stopped.interrupted and stopped.metrics["iteration"] == 6 and not same_policy(straight, stopped)
    resumed = hr.train(resume=stopped.path, env=Walk(), progress="none")
    assert resumed.path == stopped.path and resumed.metrics["iteration"] == straight.metrics["iteration"]
    assert same_policy(straight, resumed)
    assert episodes(resumed) == episodes(straight)
    assert resumed.metrics["return"] == straight.metrics["return"] and resumed.seconds > stopped.seconds
    ends = [checkpoint.load(run.path / "last", "training") for run in (straight, resumed)]
    for end in ends:
        del end["learner"]["seconds"]
    assert same(*ends)  # optimizer, normalisers, counters, worlds, window of episodes


def test_a_compiled_world_resumes_bit_for_bit(monkeypatch):
    """Acting and learning of the compiled environment are kernels too, from the first iteration to the last."""
    options = LONG | {"num_envs": 16, "num_steps": 32, "backend": "cpu", "target_return": None, "save_freq": 1000}
    straight = hr.train("ppo", "CartPole-v1", **options)
    served, serves = set(), fused._serves
    monkeypatch.setattr(
        fused, "_serves", lambda *given: (answer := serves(*given), served.add((given[1].__name__, answer)))[0]
    )
    resumed = hr.train(resume=next(straight.path.glob("step_1*")))
    assert {("process_and_learn", True), ("steps", True)} <= served
    assert ("process_and_learn", False) not in served
    assert same_policy(straight, resumed) and episodes(resumed) == episodes(straight)


def test_logs_written_after_the_checkpoint_are_taken_back():
    straight = hr.train("ppo", Walk(), **LONG)
    run = hr.train("ppo", Walk(), save_freq=1000, **LONG)
    steps = sorted(run.path.glob("step_*"), key=lambda path: int(path.name.partition("_")[2]))
    resumed = hr.train(resume=steps[0], env=Walk())
    assert same_policy(straight, resumed) and episodes(resumed) == episodes(straight)
    rows = [json.loads(line)["steps"] for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert rows == sorted(set(rows))


def test_a_killed_process_resumes_from_its_last_checkpoint():
    """A process that dies leaves rows behind that its checkpoint knows nothing of."""
    straight = hr.train("ppo", Walk(), **LONG)

    class Dying(Walk):
        def step(self, rollout, t):
            if self.taken == 10 * 16:
                raise KeyboardInterrupt
            super().step(rollout, t)

    with pytest.raises(KeyboardInterrupt):
        hr.train("ppo", Dying(), save_freq=500, **LONG)
    resumed = hr.train(resume="runs/ppo/Walk_2", env=Walk())
    assert same_policy(straight, resumed) and episodes(resumed) == episodes(straight)


def test_a_run_is_resumed_by_one_process_from_what_it_has_read_within_its_lock(monkeypatch):
    run = hr.train("ppo", Walk(), **TINY | {"total_steps": 200})

    class Other(resuming.Trainer):
        """Trainer during whose construction another training resumes the same run."""

        def __init__(self, *args, **options):
            with pytest.raises(RuntimeError, match=rf"another training \(process {os.getpid()} on "):
                hr.train(resume=run.path, env=Walk(), total_steps=400, progress="none")
            super().__init__(*args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(resuming, "Trainer", Other)
        resumed = hr.train(resume=run.path / "last", env=Walk(), total_steps=300, progress="none")
    assert 300 <= resumed.steps < 400
    with pytest.raises(TypeError, match="give it again"):  # an error sets the folder free
        hr.train(resume=run.path)
    hr.train(resume=run.path, env=Walk(), total_steps=400, progress="none")
    policy = hr.save(run.policy, "policy")
    with pytest.raises(ValueError, match="a policy alone"):
        hr.train(resume=policy, env=Walk())
    assert not Path("command.txt").exists()


def test_a_step_that_is_saved_again_leaves_no_second_copy(monkeypatch):
    """A run that is resumed from before step_N, which a kill had left next to an older last/, saves step_N again."""
    run = hr.train("ppo", "CartPole-v1", **{**TINY, "num_envs": 8, "total_steps": 512, "save_freq": 128})
    steps = sorted(path.name for path in run.path.glob("step_*"))
    assert len(steps) == 4
    for last in ("last", "last.previous"):
        shutil.rmtree(run.path / last)
    shutil.copytree(run.path / steps[1], run.path / "last")
    again = hr.train(resume=run.path)
    assert again.steps == run.steps and sorted(path.name for path in run.path.glob("step_*")) == steps


def test_limits_may_move_and_the_rest_stays():
    run = hr.train("ppo", Walk(), total_steps=500, gamma=0.5, **TINY)
    again = hr.train(resume=run.path, env=Walk())
    assert again.steps == run.steps and again.reason == "total_steps" and again.metrics == run.metrics
    longer = hr.train(resume=run.path, env=Walk(), total_steps=1000)
    assert longer.steps >= 1000 and longer.metrics["episodes"] == len(episodes(longer))
    assert "gamma = 0.5" in (run.path / "config.toml").read_text()
    assert len((run.path / "command.txt").read_text().splitlines()) == 3
    with pytest.raises(ValueError, match=r"seed is 0 in .* and cannot become 3"):
        hr.train(resume=run.path, env=Walk(), seed=3)


def test_a_gymnasium_world_resumes_with_fresh_episodes_and_says_so(capsys):
    options = TINY | {"num_envs": 2, "backend": "inline", "progress": "plain"}
    run = hr.train("ppo", "CartPole-v1", total_steps=300, **options)
    longer = hr.train(resume=run.path, total_steps=600)
    assert "CartPole-v1 cannot be saved: resuming with fresh episodes" in capsys.readouterr().out
    lengths = [int(line.split(",")[1]) for line in episodes(longer)]
    assert longer.steps >= 600 and min(lengths) > 0 and len(lengths) == longer.metrics["episodes"]


def test_a_resumed_replay_truncates_the_episodes_that_could_not_be_saved():
    options = {"num_envs": 2, "num_steps": 4, "backend": "inline", "learning_starts": 10**6, "n_steps": 3}
    options |= {"hidden": (8,), "progress": "none", "threads": 1, "seed": 1}
    first = hr.Trainer("dqn", "CartPole-v1", **options)
    for _ in range(6):
        first.iterate()
    state, length = first.state_dict(), 24
    running = first.collector.rollout.valid[-1].clone()
    second = hr.Trainer("dqn", "CartPole-v1", **options)
    second.load_state_dict(state)
    for trainer in (first, second):
        trainer.iterate()
    ends = [x.algorithm.replay.ring.truncated[: length + 4] for x in (first, second)]
    assert running.any() and not ends[0].any()
    assert torch.equal(ends[1][length - 1], running) and int(ends[1].sum()) == int(running.sum())
    env = int(running.nonzero()[0])
    reward, discount, steps = second.algorithm.replay._ahead(torch.tensor([(length - 2) * 2 + env]), 0.9)
    assert (reward.item(), discount.item(), steps.item()) == (pytest.approx(1.9), pytest.approx(0.81), 2)
    for trainer in (first, second):
        trainer.close()


class Marked(gymnasium.Env):
    """Environment that observes the episode's first random number and the step, for five steps that earn 1 each."""

    observation_space = Box(0, 10, (2,))
    action_space = Discrete(2)
    seen: ClassVar[list[float]] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time, self.mark = 0, self.np_random.random()
        Marked.seen.append(self.mark)
        return np.array([self.mark, 0], np.float32), {}

    def step(self, action):
        self.time += 1
        return np.array([self.mark, self.time], np.float32), 1.0, self.time == 5, False, {}


@pytest.mark.parametrize("workers", [None, 2])
def test_episodes_after_resuming_are_none_of_those_before(workers):
    def initial(trainer):
        """The marks of all episodes in the next two rollouts."""
        marks = set()
        for _ in range(2):
            rollout = trainer.collector.collect()
            starts = (rollout.observation[..., 1] == 0) & rollout.valid
            marks |= set(rollout.observation[..., 0][starts].tolist())
        return marks

    def resumed(state):
        trainer = hr.Trainer("ppo", Marked, num_envs=4, workers=workers, **TINY)
        trainer.load_state_dict(state)
        found, after = initial(trainer), trainer.state_dict()
        trainer.close()
        return found, after

    trainer = hr.Trainer("ppo", Marked, num_envs=4, workers=workers, **TINY)
    before, first = initial(trainer), trainer.state_dict()
    trainer.close()
    once, second = resumed(first)
    again, _ = resumed(second)
    assert min(map(len, (before, once, again))) >= 16
    assert not before & once and not before & again and not once & again


def test_memory_and_agent_info_begin_anew_where_the_environments_do():
    goals = Discrete(1000)
    options = {"num_envs": 4, "recurrent": "gru", "rnn_size": 4, "sequence_length": 4, "agent_info": goals, **TINY}
    trainer = hr.Trainer("ppo", Marked, **options)
    trainer.iterate()
    state = trainer.state_dict()
    assert state["collectors"][0]["rnn_state"].any()
    trainer.close()
    trainer = hr.Trainer("ppo", Marked, **options)
    trainer.load_state_dict(state)
    rollout = trainer.collector.collect()
    trainer.close()
    assert not rollout.valid[0].any() and rollout.valid[1].all()
    assert not rollout.rnn_state[1].any() and rollout.rnn_state[2].any()  # [1]: before the first action
    goal = rollout.observation.agent_info
    assert (goal[1] != goal[0]).any() and torch.equal(goal[2], goal[1])  # drawn with the episodes


def test_n_step_returns_end_where_a_run_was_resumed():
    options = {"num_envs": 2, "num_steps": 4, "n_steps": 3, "learning_starts": 10**6, "progress": "none"}
    trainer = hr.Trainer("dqn", Marked, **options)
    trainer.iterate()
    state = trainer.state_dict()
    trainer.close()
    trainer = hr.Trainer("dqn", Marked, **options)
    trainer.load_state_dict(state)
    trainer.iterate()
    replay = trainer.algorithm.replay
    batch = replay.gather(torch.tensor([2 * 2, 3 * 2]), gamma=1.0)  # the last two steps before, of environment 0
    assert batch.reward.tolist() == [2.0, 1.0]  # not into the episode after
    assert batch.discount.tolist() == [1.0, 1.0]
    assert torch.equal(batch.next_observation[:, 0], batch.observation[:, 0])  # of the same episode
    trainer.close()


def test_a_policy_of_ones_own_is_asked_for_on_resuming():
    policy = ActorCritic(Walk.observation_space, Walk.action_space, hidden=(7,))
    run = hr.train(PPO(policy, PPOConfig(num_steps=8)), Walk(), total_steps=100, progress="none")
    assert run.resume_command == "headrace.train(resume='runs/ppo/Walk_1', algorithm=..., env=...)"
    asked = r"hidden \[7\], not .*: where it is of your own, give its algorithm, train\(resume=..., algorithm="
    with pytest.raises(TypeError, match=asked):
        hr.train(resume=run.path, env=Walk(), progress="none")


def test_what_a_checkpoint_cannot_make_again_is_asked_for():
    run = hr.train("ppo", Walk(), total_steps=100, **TINY)
    with pytest.raises(TypeError, match="was made by you: give it again, train"):
        hr.train(resume=run.path)
    with pytest.raises(ValueError, match="resume from its run's folder"):
        hr.train(resume=run.path / "best")
    with pytest.raises(FileNotFoundError, match="there is no"):
        hr.train(resume="runs/ppo/Walk_77")


def test_an_algorithm_of_ones_own_resumes():
    def algorithm(env):
        return PPO(ActorCritic(env.observation_space, env.action_space, hidden=(8,)), PPOConfig(num_steps=8))

    env = Walk()
    straight = hr.train(algorithm(env), Walk(), total_steps=1000, progress="none")
    first = hr.train(algorithm(env), Walk(), total_steps=500, progress="none")
    resumed = hr.train(algorithm(env), Walk(), resume=first.path, total_steps=1000)
    assert same_policy(straight, resumed)


def test_the_command_line_stops_on_a_signal_and_goes_on_with_the_command_it_prints():
    command = [sys.executable, "-m", "headrace"]
    flags = (
        "train ppo CartPole-v1 --backend inline --num-envs 2 --num-steps 16 --total-steps 10000000 --final-episodes 0"
    )
    process = forked.Popen([*command, *flags.split()], stdout=subprocess.PIPE, text=True)
    metrics = Path("runs/ppo/CartPole-v1_1/metrics.jsonl")
    while not metrics.exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate()
    assert process.returncode == 0
    said = out.rpartition("to go on: headrace ")[2].split()
    assert said == ["train", "--resume", "runs/ppo/CartPole-v1_1"]
    steps = checkpoint.read_manifest("runs/ppo/CartPole-v1_1/last")["counters"]["steps"]
    rest = ["--total-steps", str(steps + 100), "--final-episodes", "0"]
    forked.run([*command, *said, *rest], check=True, capture_output=True)
    assert checkpoint.read_manifest("runs/ppo/CartPole-v1_1/last")["counters"]["steps"] >= steps + 100


@pytest.mark.parametrize("theirs", [True, False])
def test_a_terminal_that_is_closed_does_not_lose_a_run(theirs):
    """Writing to the terminal is an error afterwards. Its processes get SIGHUP, and end."""
    master, slave = os.openpty()
    flags = (
        "train ppo CartPole-v1 --backend inline --num-envs 2 --num-steps 16 --total-steps 10000000 --final-episodes 0"
    )
    command = [sys.executable, "-c", OWN_TERMINAL if theirs else TERMINAL, *flags.split()]
    process = forked.Popen(command, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
    os.close(slave)
    metrics, said = Path("runs/ppo/CartPole-v1_1/metrics.jsonl"), b""
    while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
        said += os.read(master, 65536)  # else the terminal is full one day
    os.close(master)
    assert metrics.exists(), said  # a signal before the training has begun ends it: there is a row
    if not theirs:
        time.sleep(1.0)  # some tables long
        process.send_signal(signal.SIGTERM)
    assert process.wait() == 0, said
    assert checkpoint.read_manifest("runs/ppo/CartPole-v1_1/last")["counters"]["steps"] > 0


TERMINAL = """
import sys
from headrace.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
# a process whose controlling terminal is its standard input, as a shell's are
OWN_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)" + TERMINAL
