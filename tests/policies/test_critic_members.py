"""Critics that see members of a Dict observation that the actor does not have."""

from __future__ import annotations

from contextlib import closing

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

import headrace as hr
from headrace.algorithms.on_policy import actor_critic
from headrace.algorithms.ppo import PPOConfig
from headrace.data.flat_dict import FlatDict
from headrace.deploy.policy_graph import describe
from headrace.policies.actor_critic import AsymmetricActorCritic

SPACE = Dict(policy=Box(-9, 9, (3,), np.float32), privileged_state=Box(-9, 9, (2,), np.float32))
SMALL = {"num_envs": 4, "num_steps": 16, "total_steps": 256, "hidden": (8,), "progress": "none"}


class Both(gymnasium.Env):
    observation_space, action_space = SPACE, Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self._seen(), {}

    def step(self, action):
        self.age += 1
        return self._seen(), float(action), self.age == 9, False, {}

    def _seen(self):
        numbers = self.np_random.uniform(-1, 1, 5).astype(np.float32)
        return {"policy": numbers[:3], "privileged_state": numbers[3:]}


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "appo", "impala", "trpo", "reinforce"])
def test_it_trains_is_loaded_and_acts_without_them(algorithm, tmp_path):
    run = hr.train(algorithm, Both, critic_members=("privileged_state",), log_folder=str(tmp_path), **SMALL)
    policy = hr.load(run.path)
    assert type(policy) is AsymmetricActorCritic and list(policy.observation_space) == ["policy"]
    seen, other = Both().reset(seed=1)[0], np.zeros(2, np.float32)
    alone = {"policy": seen["policy"]}
    for deterministic in (True, False):
        draws = [torch.Generator().manual_seed(3) for _ in range(3)]
        found = [
            policy.predict(x, deterministic=deterministic, generator=draw)[0]
            for x, draw in zip((seen, alone, {**alone, "privileged_state": other}), draws, strict=True)
        ]
        assert found[0] == found[1] == found[2]
    assert len(hr.evaluate(policy, Both, 3).returns) == 3


@pytest.mark.parametrize("distribution", ["Discrete", "Box"])
def test_exports_do_not_ask_for_them(distribution, tmp_path):
    action = Discrete(3) if distribution == "Discrete" else Box(-1, 1, (2,), np.float32)
    config = PPOConfig(critic_members=("privileged_state",), hidden=(8,))
    policy = actor_critic(config, SPACE, action, 0)
    graph = describe(policy)
    assert [x.keys for x in graph.inputs] == [("policy",)]
    for one in (policy, Derived(SPACE, action, ("privileged_state",))):
        with pytest.raises(ValueError, match="leave out --value"):
            hr.export(one, "onnx", tmp_path / "policy.onnx", value=True)


@pytest.mark.parametrize("space", [SPACE, FlatDict(SPACE.spaces)])
def test_neither_part_learns_by_the_other(space):
    config = PPOConfig(critic_members=("privileged_state",), hidden=(8,))
    policy = actor_critic(config, space, Discrete(3), 0)
    flat = isinstance(space, FlatDict)
    rows = torch.randn(64, 5)
    whole = rows if flat else hr.data.rollout.Group({"policy": rows[:, :3], "privileged_state": rows[:, 3:]})
    distribution, value = policy(whole)
    critics = [p for name, p in policy.named_parameters() if name.startswith("critic")]
    assert torch.equal(policy.distribution(rows[:, :3] if flat else whole).log_probs, distribution.log_probs)
    value.square().sum().backward(retain_graph=True)
    assert all(p.grad is None or not p.grad.any() for p in policy.actor_parameters())
    policy.zero_grad()
    distribution.entropy().sum().backward()
    assert all(p.grad is None or not p.grad.any() for p in critics)
    assert policy.critic_encoder.size == 5 and policy.encoder.size == 3


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"critic_members": ("privileged",)}, "observations have no privileged, but policy, privileged_state"),
        ({"critic_members": ("policy", "privileged_state")}, "nothing is left for the actor"),
        ({"critic_members": ("privileged_state",), "shared": True}, "does not go with shared=True"),
        (
            {"critic_members": ("privileged_state",), "recurrent": "gru"},
            "does not go with recurrent=.gru.: leave one of them out",
        ),
    ],
)
def test_what_is_refused(options, wrong):
    with pytest.raises(ValueError, match=wrong):
        hr.Trainer("ppo", Both, num_envs=2, num_steps=8, **options)
    with pytest.raises(ValueError, match="observations have no members"):
        hr.Trainer("ppo", "CartPole-v1", num_envs=2, num_steps=8, critic_members=("x",))
    for algorithm in ("dqn", "pqn", "sac"):
        with pytest.raises(TypeError, match=r"no setting 'critic_members'; it is one of ppo, a2c"):
            hr.Trainer(algorithm, Both, num_envs=2, critic_members=("privileged_state",))


class Own(hr.ActorCritic):
    pass


class Derived(hr.AsymmetricActorCritic):
    pass


def test_a_policy_that_is_given_must_have_such_a_critic(tmp_path):
    options = {"critic_members": ("privileged_state",), "num_envs": 2, "num_steps": 8}
    with pytest.raises(ValueError, match="critic_members is privileged_state, and Own, the policy that was given"):
        hr.Trainer("ppo", Both, policy=Own, **options)
    ready = hr.ActorCritic(SPACE, Discrete(2))
    with pytest.raises(ValueError, match="and ActorCritic, the policy that was given, has no such critic"):
        hr.PPO(ready, PPOConfig(critic_members=("privileged_state",)))
    with closing(hr.Trainer("ppo", Both, policy=Derived, **options)) as trainer:
        assert type(trainer.policy) is Derived and list(trainer.policy.observation_space) == ["policy"]
    described = hr.export(Derived(SPACE, Discrete(2), ("privileged_state",)), "onnx", tmp_path / "policy.onnx")
    assert described.interface.startswith("observation_policy float32 [N, 3] -> action")


def test_privileged_state_is_for_the_critic_alone_unless_the_user_says_otherwise(capsys):
    small = {"num_envs": 2, "num_steps": 8}
    with closing(hr.Trainer("ppo", Both, **small)) as trainer:
        assert trainer.settings()["critic_members"] == ("privileged_state",)
        assert list(trainer.policy.observation_space) == ["policy"]
    assert "privileged_state of the observations is for the critic alone" in capsys.readouterr().err
    for said in ({"critic_members": ()}, {"ignore": ()}):
        with closing(hr.Trainer("ppo", Both, **small, **said)) as trainer:
            assert list(trainer.policy.observation_space) == ["policy", "privileged_state"]
    with closing(hr.Trainer("dqn", Both, num_envs=2, ignore=("privileged_state",))) as trainer:
        assert list(trainer.policy.observation_space) == ["policy"]
    for algorithm, options in (("dqn", {}), ("ppo", {"recurrent": "gru"}), ("ppo", {"shared": True})):
        with pytest.raises(ValueError, match="observations have privileged_state, which no policy in use has"):
            hr.Trainer(algorithm, Both, num_envs=2, **options)


def test_learning_is_compiled(tmp_path, capsys):
    hr.train("ppo", Both, critic_members=("privileged_state",), log_folder=str(tmp_path), **SMALL)
    assert "plain PyTorch" not in capsys.readouterr().err
