"""DDPG and the models of sb3-contrib: their arguments, files, and optimizers."""

from __future__ import annotations

import io
import json
import math
import zipfile
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from headrace.core.fused import plain_only
from headrace.data.hindsight import GoalReplay
from headrace.sb3 import DDPG, PPO, QRDQN, SAC, TD3, TQC, TRPO, CrossQ, RecurrentPPO
from headrace.sb3.parameters import optimizers

FILES = Path(__file__).parent / "files"
OFF = {"learning_starts": 8, "batch_size": 8, "buffer_size": 100, "policy_kwargs": {"net_arch": [8]}, "train_freq": 4}
MODELS = {
    DDPG: ("Pendulum-v1", OFF),
    TQC: ("Pendulum-v1", OFF | {"top_quantiles_to_drop_per_net": 1}),
    CrossQ: ("Pendulum-v1", OFF),
    TRPO: ("Pendulum-v1", {"n_steps": 16, "batch_size": 16}),
    RecurrentPPO: ("CartPole-v1", {"n_steps": 16, "batch_size": 16, "policy_kwargs": {"lstm_hidden_size": 8}}),
    QRDQN: ("CartPole-v1", OFF),
}
EXPECTED = {
    DDPG: {"exploration": 0.0, "hidden": (8,)},
    TQC: {"critics": 2, "quantiles": 25, "dropped_quantiles": 1, "critic_hidden": (8,)},
    CrossQ: {"policy_delay": 3, "learning_rate": 1e-3, "critic_hidden": (8,), "renorm_warm_up": 100_000},
    TRPO: {"cg_steps": 15, "max_kl": 0.01, "critic_epochs": 10, "minibatch_size": 16, "max_grad_norm": math.inf},
    RecurrentPPO: {"recurrent": "lstm", "rnn_size": 8, "sequence_length": 16, "epochs": 10},
    QRDQN: {"quantiles": 200, "exploration_final": 0.01, "max_grad_norm": math.inf, "learning_rate": 5e-5},
}


@pytest.mark.parametrize("kind", MODELS)
def test_models_train_save_and_go_on(kind):
    env, own = MODELS[kind]
    policy = "MlpLstmPolicy" if kind is RecurrentPPO else "MlpPolicy"
    with plain_only():
        model = kind(policy, env, seed=0, **own).learn(24)
        config = model.algorithm.config
        assert {name: getattr(config, name) for name in EXPECTED[kind]} == EXPECTED[kind]
        file = io.BytesIO()
        model.save(file)
        other = kind.load(file, env=env)
        seen = np.stack([model.observation_space.sample() for _ in range(4)])
        assert np.array_equal(*(m.predict(seen, deterministic=True)[0] for m in (model, other)))
        steps = other.num_timesteps
        assert steps >= 20 and other.learn(8, reset_num_timesteps=False).num_timesteps > steps
    with pytest.raises(ValueError, match=f"a model of {kind.__name__}, not PPO"):
        PPO.load(file)


def test_an_lstm_keeps_its_state_between_predictions():
    kwargs = {"n_steps": 16, "batch_size": 16, "policy_kwargs": {"lstm_hidden_size": 8}}
    with plain_only():
        model = RecurrentPPO("MlpLstmPolicy", "CartPole-v1", seed=0, **kwargs)
    seen = np.ones(4, np.float32)
    _, first = model.predict(seen, None, None, True)
    _, second = model.predict(seen, first, np.array([False]), True)
    _, again = model.predict(seen, first, np.array([True]), True)
    assert not np.array_equal(second, first) and np.array_equal(again, first)


def test_adams_settings_by_optimizer_kwargs():
    kwargs = {"optimizer_class": torch.optim.Adam, "optimizer_kwargs": {"eps": 1e-6, "betas": (0.8, 0.99)}}
    for kind, env in ((PPO, "CartPole-v1"), (SAC, "Pendulum-v1")):
        model = kind("MlpPolicy", env, policy_kwargs=kwargs)
        found = [(one.eps, one.beta1, one.beta2) for one in optimizers(model.algorithm)]
        assert set(found) == {(1e-6, 0.8, 0.99)}
    assert optimizers(PPO("MlpPolicy", "CartPole-v1").algorithm)[0].eps == 1e-5


class HerReplayBuffer:
    """The class of Stable-Baselines3, which is known by its name."""


class Goals(gymnasium.Env):
    """Goals at random, in episodes of ten steps."""

    action_space = gymnasium.spaces.Box(-1, 1, (2,))
    observation_space = gymnasium.spaces.Dict(
        {name: gymnasium.spaces.Box(-1, 1, (2,)) for name in ("observation", "achieved_goal", "desired_goal")}
    )
    steps = 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), -1.0, False, self.steps == 10, {}

    def compute_reward(self, achieved, desired, info):
        return -np.linalg.norm(achieved - desired, axis=-1).astype(np.float32)


def test_hindsight_by_its_replay_buffer(tmp_path):
    kwargs = {"n_sampled_goal": 3, "goal_selection_strategy": "future"}
    with plain_only():
        model = SAC(
            *("MultiInputPolicy", Goals()),
            **{"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": kwargs, **OFF, "train_freq": 1},
        ).learn(40)
        assert isinstance(model.algorithm.replay, GoalReplay) and model.algorithm.config.hindsight == 3
        model.save(tmp_path / "model")
        model.save_replay_buffer(tmp_path / "replay")
        other = SAC.load(tmp_path / "model", env=Goals())
        other.load_replay_buffer(tmp_path / "replay")
    assert other.algorithm.config.hindsight == 3 and other.replay_buffer.size() == model.replay_buffer.size() > 20
    for strategy in ("final", "episode"):
        own = {"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": {"goal_selection_strategy": strategy}}
        model = SAC("MultiInputPolicy", Goals(), **own)
        assert model.algorithm.config.hindsight_goals == strategy and model.algorithm.config.hindsight == 4
    with pytest.raises(ValueError, match="hindsight_goals must be one of future, final, episode, got 'last'"):
        SAC("MultiInputPolicy", Goals(), replay_buffer_kwargs=kwargs | {"goal_selection_strategy": "last"})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PPO("MlpPolicy", "CartPole-v1", policy_kwargs={"optimizer_class": torch.optim.SGD}), "is Adam"),
        (lambda: PPO("MlpPolicy", "CartPole-v1", policy_kwargs={"optimizer_kwargs": {"weight_decay": 1}}), "is Adam"),
        (lambda: TRPO("MlpPolicy", "Pendulum-v1", sub_sampling_factor=2), "sub_sampling_factor=2 has no counterpart"),
        (
            lambda: RecurrentPPO("MlpLstmPolicy", "CartPole-v1", policy_kwargs={"enable_critic_lstm": False}),
            "the critic has an LSTM of its own",
        ),
        (lambda: DDPG("MlpPolicy", "Pendulum-v1", policy_kwargs={"n_critics": 2}), "ddpg has 1 here"),
        (lambda: SAC("MlpPolicy", "Pendulum-v1", replay_buffer_class=dict), "replay buffer is Headrace's own"),
    ],
)
def test_what_has_no_counterpart_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def rewritten(name, change, **data):
    """A file of tests/sb3/files with other tensors and other data."""
    with zipfile.ZipFile(FILES / f"{name}.zip") as archive:
        about = json.loads(archive.read("data")) | data
        weights = torch.load(io.BytesIO(archive.read("policy.pth")), weights_only=True)
    tensors, file = io.BytesIO(), io.BytesIO()
    torch.save(change(weights), tensors)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("data", json.dumps(about))
        archive.writestr("policy.pth", tensors.getvalue())
    return file


def of_contrib(folder):
    return {"__module__": f"sb3_contrib.{folder}.policies"}


def sequential(weights, prefix, x, function):
    """The output of an MLP of a file, [B, outputs]."""
    numbers = sorted(int(k.split(".")[-2]) for k in weights if k.startswith(prefix) and k.endswith("weight"))
    for number in numbers:
        x = torch.nn.functional.linear(x, weights[f"{prefix}{number}.weight"], weights[f"{prefix}{number}.bias"])
        x = x if number == numbers[-1] else function(x)
    return x


def test_files_of_ddpg_and_trpo_act_as_those_that_they_are_like():
    seen = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    one = rewritten("td3", lambda w: {k: x for k, x in w.items() if "qf1" not in k})
    actions = [kind.load(file).predict(seen)[0] for kind, file in ((DDPG, one), (TD3, one), (TD3, FILES / "td3.zip"))]
    assert np.array_equal(actions[0], actions[2]) and np.array_equal(actions[1], actions[2])
    like = rewritten("ppo", dict, cg_max_steps=12, target_kl=0.02, batch_size=128)
    model = TRPO.load(like, env="Pendulum-v1")
    expected = PPO.load(FILES / "ppo.zip").predict(seen, deterministic=True)[0]
    assert np.array_equal(model.predict(seen, deterministic=True)[0], expected)
    assert (model.algorithm.config.cg_steps, model.algorithm.config.max_kl) == (12, 0.02)


@pytest.mark.parametrize(
    ("kwargs", "eps"),
    [
        ({}, 0.01 / 40),
        ({"optimizer_kwargs": {"eps": 1e-3}}, 0.01 / 40),  # which are replaced there without optimizer_class
        ({"optimizer_class": torch.optim.Adam, "optimizer_kwargs": {"eps": 1e-3}}, 1e-3),
        ({"optimizer_class": torch.optim.Adam}, 1e-8),
    ],
)
def test_a_qrdqn_has_the_epsilon_and_the_clipping_of_gradients_that_are_sums(kwargs, eps):
    kwargs = {"n_quantiles": 10, "net_arch": [8], **kwargs}
    model = QRDQN("MlpPolicy", "CartPole-v1", batch_size=40, max_grad_norm=5.0, policy_kwargs=kwargs)
    (optimizer,) = optimizers(model.algorithm)
    assert optimizer.eps == pytest.approx(eps / 10) and model.algorithm.config.max_grad_norm == 0.5


def test_quantiles_of_a_qrdqn_are_those_of_the_file():
    generator = torch.Generator().manual_seed(0)

    def change(weights):
        named = {
            k.replace("q_net.q_net", "quantile_net.quantile_net"): x for k, x in weights.items() if "target" not in k
        }
        last = max(named, key=lambda k: int(k.split(".")[2])).rpartition(".")[0]
        for part in ("weight", "bias"):
            shape = named[f"{last}.{part}"].shape
            named[f"{last}.{part}"] = torch.randn(5 * shape[0], *shape[1:], generator=generator)
        change.made = named
        return named

    file = rewritten("dqn", change, n_quantiles=5, policy_class=of_contrib("qrdqn"))
    model, seen = QRDQN.load(file), torch.randn(6, change.made["quantile_net.quantile_net.0.weight"].shape[1])
    found = model.policy.outputs(model.policy.encoder(seen))  # [A, M, B]
    function = {"relu": torch.relu, "tanh": torch.tanh}[model.algorithm.config.activation]
    wanted = sequential(change.made, "quantile_net.quantile_net.", seen, function)
    torch.testing.assert_close(found.permute(2, 1, 0), wanted.unflatten(1, (5, -1)))


def test_critics_of_a_tqc_are_those_of_the_file():
    def change(weights):
        named = {k: x for k, x in weights.items() if "target" not in k}
        last = max(int(k.split(".")[2]) for k in named if k.startswith("critic.qf0"))
        for critic in range(3):
            for k in [k for k in named if k.startswith("critic.qf0")]:
                named[k.replace("qf0", f"qf{critic}")] = torch.randn_like(named[k])
            for part in ("weight", "bias"):
                old = named[f"critic.qf{critic}.{last}.{part}"]
                named[f"critic.qf{critic}.{last}.{part}"] = torch.randn(7, *old.shape[1:])
        change.made = named
        return named

    model = TQC.load(rewritten("sac", change, policy_class=of_contrib("tqc"), top_quantiles_to_drop_per_net=1))
    seen, action = torch.randn(6, 3), torch.rand(6, 1)
    found = model.policy.critics(model.policy.encoder(seen), action)
    function = {"relu": torch.relu, "tanh": torch.tanh}[model.algorithm.config.activation]
    both = torch.cat((seen, action), 1)
    wanted = torch.stack([sequential(change.made, f"critic.qf{k}.", both, function) for k in range(3)])
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
