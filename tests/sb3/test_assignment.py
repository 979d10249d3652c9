"""Attributes of models that are set: arguments take effect as in the constructor, others are refused by name."""

from __future__ import annotations

import io
from functools import cache
from typing import Any

import pytest
import torch

from headrace.sb3 import A2C, DQN, PPO, SAC, TD3, make_vec_env
from headrace.sb3.assignment import METHODS, PARTS
from headrace.sb3.members import INSTEAD

ON_POLICY = {"n_steps": 32}
OFF_POLICY = {"buffer_size": 500, "learning_starts": 20, "policy_kwargs": {"net_arch": [8]}, "batch_size": 16}
MODELS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "ppo": (PPO, "CartPole-v1", {**ON_POLICY, "batch_size": 16, "n_epochs": 2}),
    "a2c": (A2C, "Pendulum-v1", ON_POLICY),
    "sac": (SAC, "Pendulum-v1", OFF_POLICY),
    "td3": (TD3, "Pendulum-v1", OFF_POLICY),
    "dqn": (DQN, "CartPole-v1", {**OFF_POLICY, "target_update_interval": 16}),
}


class NormalActionNoise:
    """Stable-Baselines3's class of this name."""

    _mu, _sigma = [0.0], [0.7]


SET = [
    *[
        ("ppo", name, value)
        for name, value in {"gamma": 0.5, "gae_lambda": 0.3, "ent_coef": 0.5, "vf_coef": 0.1}.items()
    ],
    *[("ppo", name, value) for name, value in {"n_epochs": 3, "batch_size": 8, "max_grad_norm": 0.01}.items()],
    *[("ppo", name, value) for name, value in {"clip_range": 0.001, "learning_rate": 0.1, "target_kl": 1e-9}.items()],
    *[("ppo", name, value) for name, value in {"normalize_advantage": False, "clip_range_vf": 0.01}.items()],
    ("ppo", "learning_rate", lambda left: 0.01 * left),
    ("ppo", "clip_range", lambda left: 0.01 * left),
    *[("a2c", name, value) for name, value in {"gamma": 0.5, "ent_coef": 0.5, "normalize_advantage": True}.items()],
    *[("sac", name, value) for name, value in {"gamma": 0.5, "tau": 0.5, "learning_rate": 0.1}.items()],
    *[("sac", name, value) for name, value in {"target_entropy": 3.0, "gradient_steps": 2, "batch_size": 8}.items()],
    *[("td3", name, value) for name, value in {"policy_delay": 1, "target_policy_noise": 0.9, "gamma": 0.5}.items()],
    ("td3", "action_noise", NormalActionNoise()),
    *[("dqn", name, value) for name, value in {"gamma": 0.5, "tau": 0.5, "target_update_interval": 4}.items()],
    *[("dqn", name, value) for name, value in {"exploration_initial_eps": 0.1, "learning_starts": 50}.items()],
]
LATE = [("ppo", "n_steps", 64), ("sac", "buffer_size", 700), ("sac", "ent_coef", 0.1), ("dqn", "train_freq", 8)]


def made(name: str, **arguments: Any) -> Any:
    kind, env, settings = MODELS[name]
    return kind("MlpPolicy", make_vec_env(env, 1), seed=0, device="cpu", **settings | arguments)


def weights(model: Any) -> torch.Tensor:
    return torch.cat([x.detach().flatten() for x in model.policy.parameters()])


@cache
def usual(name: str) -> tuple[Any, torch.Tensor]:
    """A model without assigned attributes, and the weights that it has learned."""
    model = made(name).learn(100)
    return model, weights(model)


@pytest.mark.parametrize(("name", "argument", "value"), SET)
def test_an_argument_that_is_set_means_what_it_means_in_the_constructor(name, argument, value):
    given, later, (other, others) = made(name, **{argument: value}), made(name), usual(name)
    assert getattr(other, argument) == getattr(later, argument) != value
    setattr(later, argument, value)
    assert getattr(later, argument) == value
    for model in (given, later):
        model.learn(100)
    assert torch.equal(weights(given), weights(later)) and not torch.equal(others, weights(later))


@pytest.mark.parametrize(("name", "argument", "value"), LATE)
def test_an_argument_that_is_too_late_says_how_to_go_on_with_another(name, argument, value):
    model = made(name).learn(64)
    before = getattr(model, argument)
    with pytest.raises(
        AttributeError, match=rf"{argument}=.* too late: model.save\(path\), then {type(model).__name__}"
    ):
        setattr(model, argument, value)
    assert getattr(model, argument) == before
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    other = type(model).load(file, env=model.get_env(), **{argument: value})
    assert getattr(other, argument) == value
    other.learn(64)


def test_schedules_end_where_a_number_is_set():
    model = made("ppo", learning_rate=lambda left: 0.1 * left, clip_range=lambda left: 0.2 * left).learn(96)
    model.learning_rate, model.clip_range = 0.1, 0.2  # the first values of the schedules
    model.learn(32)
    assert model.algorithm.optimizer.learning_rate == pytest.approx(0.1) and model.algorithm.config.clip == 0.2
    model.lr_schedule = lambda left: 0.05
    model.learn(32)
    assert model.algorithm.optimizer.learning_rate == pytest.approx(0.05) and model.learning_rate(1.0) == 0.05


def test_wrong_values_leave_the_model_as_it_was():
    model = made("ppo")
    for name, value, message in (
        ("gamma", 2.0, "gamma"),
        ("rollout_buffer_class", dict, "rollout_buffer_class"),
        ("n_epochs", 0, "epochs"),
    ):
        before = getattr(model, name)
        with pytest.raises(ValueError, match=message):
            setattr(model, name, value)
        assert getattr(model, name) == before
    with pytest.raises(AttributeError, match=r"policy_kwargs=.* too late: PPO\(policy, env, policy_kwargs=...\)"):
        model.policy_kwargs = {"net_arch": [4]}
    model.learn(32)


@pytest.mark.parametrize("name", MODELS)
def test_parts_that_cannot_be_set_say_what_to_do(name):
    model = made(name)
    for member, instead in {**INSTEAD, **METHODS}.items():
        with pytest.raises(AttributeError, match=f"^{member} of {type(model).__name__} cannot be set: ") as raised:
            setattr(model, member, None)
        assert instead in str(raised.value)
    with pytest.raises(AttributeError, match=r"load_state_dict\(\).*set_parameters\(\)"):
        model.policy = made(name).policy
    model.policy = torch.compile(model.policy)  # of the same parameters
    assert model.policy is not model.algorithm.policy
    assert not PARTS & {*dir(model.algorithm.policy)}


def test_a_part_of_another_library_in_the_policy_is_refused():
    model = made("ppo")
    model.policy.actor.own = torch.nn.Linear(1, 1)  # under a name that means nothing
    model.learn(32)
    model.policy.optimizer = torch.optim.AdamW(model.policy.parameters())
    with pytest.raises(ValueError, match=r"policy\.optimizer was set, .*: it is model\.algorithm\.optimizer"):
        model.learn(32)
    model = made("sac")
    model.policy.critics.qf0 = torch.nn.Linear(4, 1)
    with pytest.raises(ValueError, match=r"policy\.critics\.qf0 was set, .*: policy\.critics\("):
        model.learn(32)


def test_a_logger_that_was_set_stays_and_verbose_counts(tmp_path, capsys):
    model = made("a2c", tensorboard_log=str(tmp_path))
    model.learn(32, log_interval=1)
    assert capsys.readouterr().out == ""
    model.verbose = 1
    model.learn(32, log_interval=1)
    assert "total_timesteps" in capsys.readouterr().out and model.logger.folder.name == "A2C_2"
    own = model.logger
    model.set_logger(own)
    model.learn(32)
    assert model.logger is own and len([*tmp_path.iterdir()]) == 2
