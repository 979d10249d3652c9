"""The training loop: what it learns, when it stops, and what it says of settings and numbers that are wrong."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from helpers.tiny import TINY, Walk

import headrace as hr
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.data.finite import NotFinite
from headrace.data.spaces import Box, Discrete
from headrace.policies.actor_critic import ActorCritic
from headrace.runs import checkpoint, signals
from headrace.runs.signals import Interrupts
from headrace.training.config import TrainConfig, merge_settings, read_toml, to_toml
from headrace.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("in_tmp")


def test_it_learns():
    run = hr.train("ppo", Walk(32), total_steps=20_000, learning_rate=0.01, **TINY)
    first = float((run.path / "monitor.csv").read_text().split("\n")[2].split(",")[0])
    assert first < 10 and run.metrics["return"] > 11.5  # 12 is all there is; a coin earns 6


def test_an_algorithm_of_ones_own():
    env = Walk()
    algorithm = PPO(ActorCritic(env.observation_space, env.action_space, hidden=(8,)), PPOConfig(num_steps=8))
    run = hr.train(algorithm, env, total_steps=100, progress="none")
    assert run.policy is algorithm.policy and algorithm.iteration == 2


def test_the_same_seed_gives_the_same_weights_and_another_gives_others():
    weights = [
        torch.cat(
            [p.flatten() for p in hr.train("ppo", Walk(), total_steps=500, seed=seed, **TINY).policy.parameters()]
        )
        for seed in (1, 1, 2)
    ]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("limit", "reached"),
    [
        ({"total_steps": 300}, lambda run: 300 <= run.steps < 300 + 16 * 8),
        ({"max_episodes": 30}, lambda run: run.metrics["episodes"] >= 30),
        ({"max_seconds": 0.05, "total_steps": None}, lambda run: run.seconds >= 0.05),
        ({"target_return": 1.0, "window": 10}, lambda run: run.metrics["return"] >= 1.0),
    ],
)
def test_each_limit_ends_the_training_and_is_named(limit, reached):
    run = hr.train("ppo", Walk(), **limit, **TINY)
    assert run.reason == next(iter(limit)) and reached(run)


def test_steps_count_valid_rows_alone():
    trainer = hr.Trainer("ppo", Walk(), **TINY)
    trainer.iterate()
    trainer.iterate()
    dead = trainer.episodes.count
    assert dead > 0 and trainer.steps == 2 * 16 * 8 - dead


def test_episodes_are_those_the_world_had():
    trainer = hr.Trainer("ppo", Walk(), window=1000, **TINY)
    for _ in range(4):
        trainer.iterate()
    assert set(trainer.episodes.lengths) <= set(range(1, 13))
    assert all(
        0 <= total <= length for total, length in zip(trainer.episodes.returns, trainer.episodes.lengths, strict=True)
    )
    assert sum(trainer.episodes.lengths) <= trainer.steps


def test_rehearsing_before_the_clock_runs_leaves_no_trace(monkeypatch):
    rehearsed = hr.Trainer("ppo", Walk(), normalize_observation=True, normalize_return=True, **TINY)
    monkeypatch.setattr("headrace.training.warm_up.warm_up", lambda parts: None)
    fresh = hr.Trainer("ppo", Walk(), normalize_observation=True, normalize_return=True, **TINY)
    for trainer in (rehearsed, fresh):
        trainer.iterate()
    state, other = rehearsed.policy.state_dict(), fresh.policy.state_dict()
    assert all(torch.equal(state[name], other[name]) for name in state)


def test_schedules_see_the_share_of_the_training_done():
    trainer = hr.Trainer("ppo", Walk(), total_steps=1000, schedule="linear", learning_rate=0.1, **TINY)
    assert trainer.iterate().metrics["learning_rate"] == pytest.approx(0.1)
    share = trainer.progress()
    assert share == trainer.steps / 1000
    assert trainer.iterate().metrics["learning_rate"] == pytest.approx(0.1 * (1 - share))


def test_a_trainer_stepped_by_hand_counts_its_time_and_writes_nothing(tmp_path):
    trainer = hr.Trainer("ppo", Walk(), **TINY)
    metrics = trainer.iterate().metrics
    assert trainer.seconds > 0 and trainer.steps > 0 and "value_loss" in metrics
    shares = trainer.result().fractions
    assert set(shares) == {"env", "inference", "learning", "other"} and sum(shares.values()) == pytest.approx(
        1, abs=0.05
    )
    assert list(tmp_path.iterdir()) == []


# --- settings


def test_keyword_beats_file_beats_environment_beats_default(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('gamma = 0.5\nnum_envs = 3\nmax_seconds = "none"\nhidden = [4, 4]\n')
    defaults = {"num_envs": 2, "gamma": 0.4, "clip": 0.3, "max_seconds": 7}
    train, ppo = merge_settings(PPOConfig, defaults, read_toml(file), {"gamma": 0.6, "total_steps": 1e5})
    assert (ppo.gamma, train.num_envs, ppo.clip, train.window) == (0.6, 3, 0.3, 100)
    assert train.max_seconds is None and train.total_steps == 100_000 and ppo.hidden == (4, 4)


def test_config_toml_gives_the_same_settings_again(tmp_path):
    before = TrainConfig(num_envs=3, total_steps=None, max_seconds=1.5), PPOConfig(hidden=(7, 5))
    file = tmp_path / "config.toml"
    file.write_text(to_toml(*[], train=before[0], ppo=before[1]))
    assert merge_settings(PPOConfig, {}, read_toml(file), {}) == before


def test_a_file_may_name_algorithm_and_environment(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text('algorithm = "ppo"\nenv = "CartPole-v1"\nbackend = "inline"\nnum_envs = 1\nnum_steps = 8\n')
    trainer = hr.Trainer(config=file)
    assert trainer.env.name == "CartPole-v1" and trainer.algorithm.name == "ppo"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"total_step": 5}, TypeError, "no setting 'total_step'; did you mean 'total_steps'"),
        ({"learning_rat": 5}, TypeError, "did you mean 'learning_rate'"),
        ({"num_envs": 0}, ValueError, "num_envs must be at least 1, got 0"),
        ({"total_steps": -5}, ValueError, "total_steps must be at least 1, got -5"),
        ({"max_seconds": 0}, ValueError, "max_seconds must be above 0, got 0"),
        ({"max_seconds": float("nan")}, ValueError, "max_seconds must be a number, got nan"),
        ({"seed": -1}, ValueError, "seed must be at least 0, got -1"),
        ({"seed": 2**32}, ValueError, "seed must be below 2\\^32 = 4294967296, got 4294967296"),
        ({"num_envs": 9}, ValueError, "num_envs is 9, and the environments you made are 8"),
        ({"eval_freq": 10}, TypeError, "cannot be made again"),
        ({"total_steps": None}, ValueError, "nothing would stop this run"),
        ({"total_steps": 1.5}, TypeError, r"total_steps must be int \| None, got 1.5"),
        ({"num_envs": True}, TypeError, "num_envs must be int, got True"),
        ({"progress": "loud"}, ValueError, "progress must be one of auto, rich, plain, none, got 'loud'"),
        ({"device": "gpu"}, ValueError, "unknown device 'gpu'"),
        ({"learning_rate": 0.0}, ValueError, "learning_rate must be above 0, got 0"),
    ],
)
def test_wrong_settings_are_errors_with_the_value(options, error, message):
    with pytest.raises(error, match=message):
        hr.train("ppo", Walk(), **options)


def test_wrong_names_are_errors(tmp_path):
    with pytest.raises(ValueError, match="no algorithm 'pppo'; did you mean 'ppo'"):
        hr.train("pppo", "CartPole-v1")
    with pytest.raises(ValueError, match="CartPole-v1"):
        hr.train("ppo", "CartPol-v1")
    with pytest.raises(TypeError, match="name an algorithm and an environment"):
        hr.train("ppo")
    (tmp_path / "bad.toml").write_text("gamma = = 1")
    with pytest.raises(ValueError, match=r"bad\.toml is not valid TOML"):
        hr.train("ppo", Walk(), config=tmp_path / "bad.toml")
    assert not (tmp_path / "runs").exists()


# --- numbers that are none


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("column", ["reward", "observation"])
def test_a_number_that_is_none_stops_the_run_and_is_located(column, value):
    with pytest.raises(NotFinite) as caught:
        hr.train("ppo", Walk(bad=(column, 5, 40, value)), total_steps=10_000, save_freq=1, **TINY)
    row = 39 - 32 + (column == "observation")  # the 40th step is row 7 of the third rollout, and is seen one row later
    message = str(caught.value)
    assert f"{column}[0] is {value} in env 5" in message or f"reward is {value} in env 5" in message
    assert f"row {row} of the rollout: step {32 + row} of that env" in message
    last = message.rpartition("The last good checkpoint is ")[2]
    assert all(torch.isfinite(p).all() for p in hr.load(last).parameters())


def test_sums_that_overflow_are_no_error():
    trainer = hr.Trainer("ppo", Walk(bad=("reward", 5, 4, 3e38)), **TINY)
    trainer.collector.collect()
    trainer.collector.rollout.reward[5, 1] = 3e38
    from headrace.data.finite import check_rollout

    check_rollout(trainer.collector.rollout, 0, 0)


def test_a_loss_that_is_none_stops_the_run_and_keeps_the_checkpoint():
    env = Walk()
    algorithm = PPO(ActorCritic(env.observation_space, env.action_space, hidden=(8,)), PPOConfig(num_steps=8))
    update = algorithm.update

    def spoilt(rollout, progress):
        metrics = update(rollout, progress)
        if algorithm.iteration == 3:
            metrics["value_loss"] *= float("nan")
        return metrics

    algorithm.update = spoilt
    with pytest.raises(NotFinite, match=r"value_loss is nan after learning at .* steps.*last good checkpoint is"):
        hr.train(algorithm, env, progress="none", save_freq=1)
    assert hr.load("runs/ppo/Walk_1/last").predict([0.0, 0.0])[0] in (0, 1)


# --- signals


class Interrupted(Walk):
    """Sends a signal to its own process at its 20th step."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__()
        self.number = number

    def step(self, rollout, t):
        super().step(rollout, t)
        if self.taken == 20:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_iteration_saves_and_restores_handlers(number, capsys):
    before = signal.getsignal(number)
    run = hr.train("ppo", Interrupted(number), on_interrupt="return", **TINY | {"progress": "plain"})
    assert run.interrupted and run.reason == number.name
    assert run.metrics["iteration"] == 1  # the rollout under way is given up, between two steps
    assert signal.getsignal(number) is before
    said = capsys.readouterr().out
    assert "the last rollout is not part of the run" in said and f"ended by {number.name}" in said
    assert "to go on: headrace.train(resume='runs/ppo/Walk_1', env=...)" in said
    assert hr.load(run.path, which="last") is not None


def test_a_signal_that_comes_while_another_learners_is_asked_for_is_not_lost(monkeypatch):
    monkeypatch.setattr(Trainer, "caught", property(lambda trainer: signal.raise_signal(signal.SIGINT) or ""))
    run = hr.train("ppo", Walk(), total_steps=2000, on_interrupt="return", **TINY)
    assert run.reason == "SIGINT" and run.metrics["iteration"] == 1


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_loop_over_seeds_ends_with_the_training_that_a_signal_ends(number, error):
    with pytest.raises(error) as raised:
        for seed in range(3):
            hr.train("ppo", Interrupted(number), seed=seed, **TINY)
    assert [path.name for path in Path("runs/ppo").iterdir()] == ["Walk_1"]
    assert checkpoint.read_manifest("runs/ppo/Walk_1/last")["ended_by"] == number.name
    if error is SystemExit:
        assert raised.value.code == 128 + number
    else:  # Python prints it below the traceback
        assert str(raised.value) == "the run is saved; to go on: headrace.train(resume='runs/ppo/Walk_1', env=...)"
    with pytest.raises(ValueError, match="on_interrupt must be 'raise' or 'return', got 'go on'"):
        hr.train("ppo", Walk(), on_interrupt="go on")


class Slow(gymnasium.Env):
    """A thousand steps an episode, each of which takes a while."""

    observation_space, action_space = Box(0, 1, (1,)), Discrete(2)
    steps = 0  # of all environments

    def __init__(self, seconds=0.001):
        self.seconds = seconds

    def reset(self, *, seed=None, options=None):
        self.left = 1000
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        Slow.steps += 1
        time.sleep(self.seconds)
        return np.zeros(1, np.float32), 1.0, self.left == 0, False, {}


def test_max_seconds_ends_a_rollout_of_slow_environments_between_two_steps():
    options = TINY | {"num_steps": 5000, "progress": "none"}  # a rollout of 5 s or more
    run = hr.train("ppo", Slow, num_envs=1, max_seconds=0.2, total_steps=None, **options)
    assert run.reason == "max_seconds" and run.steps == 0 and run.seconds >= 0.2
    longer = hr.train(resume=run.path, env=Slow, max_seconds=0.3)
    assert longer.reason == "max_seconds" and longer.seconds >= 0.3


def test_a_signal_ends_an_evaluation():
    class Signalling(Slow):
        def reset(self, *, seed=None, options=None):
            made.append(self)
            if len(made) == 3:  # in the evaluation
                Slow.steps = 0
                os.kill(os.getpid(), signal.SIGTERM)
            return super().reset(seed=seed)

    made = []
    options = TINY | {"eval_freq": 10, "eval_episodes": 2, "on_interrupt": "return"}
    run = hr.train("ppo", lambda: Signalling(0.0), num_envs=2, **options)
    assert run.reason == "SIGTERM" and run.metrics["iteration"] == 1
    assert len(made) >= 3 and Slow.steps <= 2  # of a thousand in each of two episodes
    assert checkpoint.read_manifest(run.path / "last")["ended_by"] == "SIGTERM"


@pytest.fixture
def ctrl_c():
    """Python's own answer to SIGINT, which a shell's background jobs are started without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_second_signal_interrupts_at_once(ctrl_c):
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.caught == "SIGINT"
        interrupts._caught_at -= 2 * signals.ONE_WISH
        os.kill(os.getpid(), signal.SIGINT)


def test_signals_at_nearly_the_same_time_are_one_wish():
    with Interrupts() as interrupts:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        assert interrupts.caught == "SIGTERM"


def test_training_in_a_thread_leaves_signals_alone():
    runs = []
    thread = threading.Thread(target=lambda: runs.append(hr.train("ppo", Walk(), total_steps=100, **TINY)))
    thread.start()
    thread.join(60)
    assert runs[0].steps >= 100


def test_a_second_signal_in_a_run_says_that_nothing_was_saved(ctrl_c, capsys, monkeypatch):
    monkeypatch.setattr(signals, "ONE_WISH", -1.0)

    class Impatient(Walk):
        def step(self, rollout, t):
            super().step(rollout, t)
            if self.taken == 20:
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        hr.train("ppo", Impatient(), **TINY | {"progress": "plain", "save_freq": 1})
    assert "without saving. The last good checkpoint is runs/ppo/Walk_1/last" in capsys.readouterr().out


# --- threads, smallest sizes, and what does not fit together


def test_torch_has_its_threads_back_after_each_iteration():
    class Asking(Walk):
        def step(self, rollout, t):
            super().step(rollout, t)
            seen.add(torch.get_num_threads())

    before, seen = torch.get_num_threads(), set()
    torch.set_num_threads(2)
    try:
        hr.train("ppo", Asking(), total_steps=300, **TINY | {"threads": 1})
        assert seen == {1} and torch.get_num_threads() == 2
        hr.train("ppo", Asking(), total_steps=300, **TINY | {"threads": None})
        assert seen == {1, 2}
    finally:
        torch.set_num_threads(before)


def test_one_step_of_one_environment_is_a_rollout():
    run = hr.train("ppo", Walk(1), total_steps=5, **TINY | {"num_steps": 1})
    assert run.metrics["explained_variance"] == 0 and run.metrics["iteration"] == 5


def test_what_does_not_fit_together_is_said():
    policy = ActorCritic(Walk.observation_space, Walk.action_space, hidden=(8,))
    with pytest.raises(ValueError, match=r"policy was made for the observation_space Box.* that of Pendulum-v1 is Box"):
        hr.Trainer(PPO(policy, PPOConfig(num_steps=8)), "Pendulum-v1", num_envs=2, backend="inline")
    with pytest.raises(TypeError, match="PPO is a class"):
        hr.Trainer(PPO, Walk())
