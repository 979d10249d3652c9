"""Policies of one's own in train(), other environments' settings there, and training that begins from another run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import headrace as hr
from headrace.algorithms.ddpg import DDPG
from headrace.algorithms.sac import SAC
from headrace.algorithms.td3 import TD3
from headrace.algorithms.tqc import TQC
from headrace.cli.main import main
from headrace.core.user_names import import_user_module
from headrace.data.spaces import Box
from headrace.envs.gym.pettingzoo import inline
from headrace.policies.actor_q import ActorQ

FILE = '''
import gymnasium, numpy as np, torch
from gymnasium.spaces import Box, Dict, Discrete, Text
from torch import nn
import headrace as hr


class Half(gymnasium.RewardWrapper):
    def reward(self, reward):
        return reward / 2


class Mission(gymnasium.Env):
    """An observation with text; every episode has `length` steps of reward `bonus`."""

    observation_space = Dict({"x": Box(-1, 1, (3,)), "mission": Text(20)})
    action_space = Discrete(2)

    def __init__(self, length=5, bonus=1.0):
        self.length, self.bonus, self.t = length, bonus, 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.seen(), {}

    def seen(self):
        return {"x": np.full(3, self.t / 10, np.float32), "mission": "go"}

    def step(self, action):
        self.t += 1
        return self.seen(), self.bonus, self.t >= self.length, False, {}


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.layer = nn.Linear(size, size)

    def forward(self, x):
        return x + torch.tanh(self.layer(x))


class Residual(hr.ActorCritic):
    def __init__(self, observation_space, action_space, hidden=(64,), seed=0):
        super().__init__(observation_space, action_space, hidden=hidden, seed=seed)
        torch.manual_seed(seed)
        self.actor = nn.Sequential(self.actor, Block(hidden[-1]))


class Wrong(hr.ActorCritic):
    def __init__(self, observation_space, action_space, depth, hidden=()):
        super().__init__(observation_space, action_space)
'''
SMALL = {"num_envs": 4, "num_steps": 16, "hidden": (8,), "total_steps": 300, "progress": "none", "target_return": None}
SMALL |= {"schedule": "constant"}  # so that a training does not depend on its limit


@pytest.fixture(autouse=True)
def _own_file(in_tmp):
    Path("mine.py").write_text(FILE)


def same(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_policy_by_name_trains_resumes_and_is_evaluated(capsys):
    straight = hr.train("ppo", "CartPole-v1", policy="mine.py:Residual", **SMALL)
    assert type(straight.policy).__name__ == "Residual" and straight.policy.hidden == (8,)
    first = hr.train("ppo", "CartPole-v1", policy="mine.py:Residual", **SMALL | {"total_steps": 150})
    resumed = hr.train(resume=first.path, total_steps=300)
    assert same(resumed.policy, straight.policy) and not same(first.policy, straight.policy)
    assert main(["eval", str(resumed.path), "--episodes", "2", "--load-last", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["return"]["mean"] == resumed.evaluate(2).mean
    with pytest.raises(ValueError, match="policy_class"):
        hr.load(resumed.path)  # a checkpoint does not name code
    assert main(["export", str(resumed.path), "--to", "numpy"]) == 2
    assert "a Residual cannot be exported" in capsys.readouterr().err


def test_a_policy_in_the_runs_own_folder_is_run_only_where_it_is_trusted(capsys):
    run = hr.train("ppo", "CartPole-v1", policy="mine.py:Residual", **SMALL)
    shutil.copy("mine.py", run.path / "mine.py")
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace(str(Path("mine.py").resolve()), str(run.path / "mine.py")))
    for words in (["eval", str(run.path), "--episodes", "1"], ["export", str(run.path), "--to", "numpy"]):
        assert main(words) == 2 and "add --trust" in capsys.readouterr().err
    assert main(["eval", str(run.path), "--episodes", "1", "--trust"]) == 0


def test_a_class_that_no_name_finds_is_asked_for_again():
    class Local(hr.ActorCritic):
        pass

    run = hr.train("ppo", "CartPole-v1", policy=Local, **SMALL)
    assert type(run.policy) is Local and run.needed_to_resume == ("policy",)
    with pytest.raises(TypeError, match=r"policy=\.\.\."):
        hr.train(resume=run.path)
    assert hr.train(resume=run.path, policy=Local, total_steps=400).steps >= 400


@pytest.mark.parametrize(
    ("algorithm", "policy", "wrong"),
    [
        ("ppo", "mine.py:Wrong", "needs depth"),
        ("ppo", "mine.py:Half", "no class derived from"),
        ("ppo", "mine.py:Nothing", "no class or function 'Nothing'"),
        ("ppo", "Residual", "file.py:Name"),
        ("dqn", "mine.py:Residual", "derive Residual from headrace.policies.q_network.QNetwork"),
    ],
)
def test_a_wrong_policy_is_named(algorithm, policy, wrong):
    with pytest.raises((TypeError, ValueError), match=wrong):
        hr.train(algorithm, "CartPole-v1", policy=policy, **SMALL)


def test_settings_of_the_environment_hold_in_training_evaluation_and_resuming(capsys):
    words = ["train", "ppo", "mine.py:Mission", "--num-envs", "4", "--num-steps", "16", "--total-steps", "300"]
    words += ["--hidden", "8", "--progress", "none", "--final-episodes", "2"]
    assert main(words) == 2 and "text has no numbers" in capsys.readouterr().err
    words += ["--ignore", "mission", "--env-kwargs", "length=6", "bonus=3", "--wrapper", "mine.py:Half"]
    assert main(words) == 0 and "return 18 " in capsys.readouterr().out  # 6 steps of 3, of which the wrapper gives half
    run = "runs/ppo/Mission_1"
    assert main(["eval", run, "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["return"]["mean"] == 18
    assert main(["train", "--resume", run, "--total-steps", "400", "--final-episodes", "2"]) == 0
    assert "return 18 " in capsys.readouterr().out
    again = ["train", "ppo", "mine.py:Mission", "--config", f"{run}/config.toml", "--total-steps", "100"]
    assert main([*again, "--final-episodes", "2"]) == 0 and "return 18 " in capsys.readouterr().out


def test_parameters_reach_everything_that_steps_the_environment(capsys):
    run = hr.train("ppo", "CartPole-v1", params={"gravity": 90.0}, **SMALL)
    plain = hr.train("ppo", "CartPole-v1", **SMALL)
    assert not same(run.policy, plain.policy)
    heavy = hr.evaluate(run.policy, "CartPole-v1", 4, params={"gravity": 90.0}).lengths
    assert run.evaluate(4).lengths == heavy != hr.evaluate(run.policy, "CartPole-v1", 4).lengths
    assert main(["eval", str(run.path), "--load-last", "--episodes", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["length"]["mean"] == sum(heavy) / 4
    video = hr.play(run.policy, "CartPole-v1", "a.gif", params={"gravity": 90.0}, max_steps=50)
    assert video.frames == video.lengths[0] + 1 < 40  # it falls sooner
    for wrong, why in (({"gravty": 1}, "gravty"), ({"gravity": [1, 2]}, "one number for each name")):
        with pytest.raises(ValueError, match=why):
            hr.train("ppo", "CartPole-v1", params=wrong, **SMALL)


def test_a_list_of_functions_makes_environments_in_turn():
    mine = import_user_module("mine.py")
    kinds = [lambda: mine.Half(mine.Mission(3)), lambda: mine.Mission(5)]
    env = hr.make(kinds, 3, ignore=("mission",))
    rollout = env.rollout(8, env.columns())
    env.reset(rollout, 0)
    for t in range(8):
        env.step(rollout, t)
    assert rollout.episode_length.amax(0).tolist() == [3, 5, 3]
    assert rollout.reward[0].tolist() == [0.5, 1.0, 0.5]
    part = inline(env.factory, 2, "part", first_env=1)  # of a worker
    assert [one.unwrapped.length for one in part.envs] == [5, 3]
    run = hr.train("ppo", kinds, ignore=("mission",), **SMALL)
    assert sorted(set(run.evaluate(4).returns)) == [3.0, 5.0] and run.needed_to_resume == ("env",)
    with pytest.raises(ValueError, match="the observation_space of environment 1 is"):
        hr.make(["CartPole-v1", "Acrobot-v1"], 2)


def test_games_with_turns_are_stepped_in_turn():
    pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    from pettingzoo.classic import tictactoe_v3

    run = hr.train("ppo", tictactoe_v3.env, **SMALL)
    assert run.metrics["episodes"] > 0
    assert set(run.evaluate(2).by_agent) == {"player_1", "player_2"}


# ---------------------------------------------------------------- init_from


def test_a_training_begins_with_the_weights_of_another(capsys):
    run = hr.train("ppo", "CartPole-v1", **SMALL)
    trainer = hr.Trainer("ppo", "CartPole-v1", init_from=run.path.as_posix() + "/last", **SMALL | {"seed": 5})
    assert same(trainer.policy, run.policy)
    trainer.close()
    tuned = hr.train("ppo", "CartPole-v1", init_from=str(run.path), learning_rate=1e-12, **SMALL | {"total_steps": 60})
    best = hr.load(run.path)
    assert torch.allclose(tuned.policy.actor_out.weight, best.actor_out.weight, atol=1e-6)
    config = (tuned.path / "config.toml").read_text()
    assert f'init_from = "{run.path.resolve()}"' in config
    for path in (run.path / "best", run.path / "last"):
        shutil.rmtree(path)
    assert hr.train(resume=tuned.path, total_steps=120).steps >= 120  # without the other run


def test_weights_of_other_shapes_are_named(capsys):
    run = hr.train("ppo", "CartPole-v1", **SMALL)
    hr.Trainer("ppo", "Acrobot-v1", init_from=run.path, **SMALL).close()
    said = capsys.readouterr().err
    assert "actor.layers.0.weight 8x4 -> 8x6" in said and "actor.layers.0.bias" not in said
    with pytest.raises(ValueError, match="no weight of its policy fits"):
        hr.Trainer("ppo", "Acrobot-v1", init_from=str(run.path), **SMALL | {"hidden": (9,)})


class Fixed(hr.ActorCritic):
    def __init__(self, observation_space, action_space, activation="relu"):
        super().__init__(observation_space, action_space, hidden=(4,), activation=activation)


class FixedQ(hr.QNetwork):
    def __init__(self, observation_space, action_space, **others):
        super().__init__(observation_space, action_space, hidden=(4,))


@pytest.mark.parametrize(
    ("algorithm", "policy", "given"),
    [
        ("ppo", Fixed, {"hidden": (8,)}),
        ("a2c", Fixed, {"normalize_observation": False}),
        ("trpo", Fixed, {"recurrent": "gru"}),
        ("dqn", FixedQ, {"dueling": True}),
        ("pqn", FixedQ, {"layer_norm": False}),
    ],
)
def test_settings_that_a_policy_of_ones_own_does_not_read_are_refused(algorithm, policy, given):
    (name,) = given
    with pytest.raises(ValueError, match=rf"{name}=.* is for the usual network, and {policy.__name__}\(.* add it to"):
        hr.Trainer(algorithm, "CartPole-v1", num_envs=2, policy=policy, **given)
    hr.Trainer(algorithm, "CartPole-v1", num_envs=2, policy=policy).close()  # registered settings are not given


def test_settings_that_it_reads_take_effect_and_those_of_a_run_are_not_given(tmp_path):
    options = {"total_steps": 200, "num_envs": 2, "num_steps": 16, "progress": "none", "log_folder": tmp_path}
    run = hr.train("ppo", "CartPole-v1", policy=Fixed, activation="elu", **options)
    assert run.policy.activation == "elu"
    resumed = hr.train(resume=run.path, policy=Fixed, total_steps=300, progress="none")
    assert resumed.policy.activation == "elu" and resumed.steps >= 300
    with pytest.raises(ValueError, match=r"hidden is \[64\] in .* and cannot become \(9,\) on resuming"):
        hr.train(resume=run.path, policy=Fixed, total_steps=400, hidden=(9,), progress="none")


@pytest.mark.parametrize(("algorithm", "critics"), [("td3", 2), ("ddpg", 1), ("sac", 2)])
def test_an_actor_with_critics_is_made_as_the_algorithm_needs_it(algorithm, critics):
    trainer = hr.Trainer(algorithm, "Pendulum-v1", policy=ActorQ, hidden=(8,), num_envs=2)
    assert (trainer.policy.deterministic, trainer.policy.critics.number) == (algorithm != "sac", critics)
    trainer.close()


def test_an_actor_or_critics_of_another_kind_are_refused():
    """The compiled learning call would run another algorithm on them."""
    spaces = Box(-1, 1, (3,)), Box(-1, 1, (2,))
    stochastic, deterministic = (ActorQ(*spaces, (8,), deterministic=x) for x in (False, True))
    for kind, policy in ((TD3, stochastic), (DDPG, stochastic), (SAC, deterministic), (TQC, deterministic)):
        wanted = policy is stochastic
        with pytest.raises(ValueError, match=rf"make the policy with deterministic={wanted}"):
            kind(policy)
    with pytest.raises(ValueError, match="this policy has 2 critics, and the algorithm learns 1: make the policy with"):
        DDPG(deterministic)
