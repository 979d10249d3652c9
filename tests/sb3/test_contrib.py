"""DDPG and the models of sb3-contrib: their arguments, files, and optimizers."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest
import torch

from headrace.core.fused import plain_only
from headrace.sb3 import DDPG, PPO, QRDQN, SAC, TQC, TRPO, CrossQ, RecurrentPPO
from headrace.sb3.parameters import optimizers

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
    assert not torch.equal(second, first) and torch.equal(again, first)


def test_adams_settings_by_optimizer_kwargs():
    kwargs = {"optimizer_class": torch.optim.Adam, "optimizer_kwargs": {"eps": 1e-6, "betas": (0.8, 0.99)}}
    for kind, env in ((PPO, "CartPole-v1"), (SAC, "Pendulum-v1")):
        model = kind("MlpPolicy", env, policy_kwargs=kwargs)
        found = [(one.eps, one.beta1, one.beta2) for one in optimizers(model.algorithm)]
        assert set(found) == {(1e-6, 0.8, 0.99)}
    assert optimizers(PPO("MlpPolicy", "CartPole-v1").algorithm)[0].eps == 1e-5


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
