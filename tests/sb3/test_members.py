"""Members that users of Stable-Baselines3 reach for: what they are, or what to use instead."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from headrace.policies.other_libraries import INSTEAD as OF_POLICIES
from headrace.policies.other_libraries import METHODS, OF_POLICIES_ALONE
from headrace.sb3 import A2C, DQN, PPO, SAC, make_vec_env
from headrace.sb3.members import INSTEAD, OF_LOGGER

SMALL = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "seed": 0, "device": "cpu"}


def test_members_that_there_are():
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", 3), learning_rate=lambda left: 1e-3 * left, **SMALL)
    assert model._last_obs is None and model._episode_num == 0 and model._current_progress_remaining == 1.0
    model.learn(300)
    assert model._last_obs.shape == (3, 4) and model._last_obs.dtype == np.float32
    assert np.abs(model._last_obs).max() < 5 and model._last_episode_starts.shape == (3,)
    assert model._episode_num >= len(model.ep_info_buffer) > 0
    assert model.lr_schedule(0.5) == pytest.approx(5e-4) and type(model.lr_schedule(0.5)) is float
    assert PPO("MlpPolicy", "CartPole-v1", learning_rate=0.25, **SMALL).lr_schedule(0.1) == 0.25
    assert model.clip_range == model.clip_range(0.5) == 0.2 and type(model.clip_range(1.0)) is float
    assert model.policy_class is type(model.policy) and model._vec_normalize_env is None
    drawn = []
    for _ in range(2):
        model.set_random_seed(7)
        drawn.append([int(model.predict(np.zeros(4))[0]) for _ in range(30)])
    assert drawn[0] == drawn[1] and len({*drawn[0]}) == 2
    model.set_env(make_vec_env("CartPole-v1", 3))
    assert model._last_obs is None
    model.logger.info("said")
    assert model.logger.get_dir() is None
    assert model.action_noise is None and model.use_sde is False and model._setup_lr_schedule() is None
    assert model._num_timesteps_at_start == 0 and model._stats_window_size == 100 and model._last_original_obs is None
    model.logger.record("own", 1.0)
    assert model.logger.name_to_value.pop("own") == 1.0 and not model.logger.name_to_excluded["own"]
    model._dump_logs()
    assert not model.logger.name_to_value


@pytest.mark.parametrize("kind", [PPO, SAC, DQN])
def test_other_members_say_what_to_use_instead(kind):
    arguments = SMALL if kind is PPO else {"buffer_size": 100, "device": "cpu"}
    model = kind("MlpPolicy", "Pendulum-v1" if kind is SAC else "CartPole-v1", **arguments)
    for name, instead in INSTEAD.items():
        with pytest.raises(AttributeError, match=f"{kind.__name__} has no attribute '{name}': ") as raised:
            getattr(model, name)
        assert instead in str(raised.value)
    for name, instead in OF_POLICIES.items():
        if name not in ("actor", "critic") and name not in vars(type(model.policy)):
            with pytest.raises(AttributeError, match=f"has no attribute '{name}': ") as raised:
                getattr(model.policy, name)
            assert instead in str(raised.value)
    for name, instead in OF_LOGGER.items():
        with pytest.raises(AttributeError, match=f"Logger has no attribute '{name}': ") as raised:
            getattr(model.logger, name)
        assert instead in str(raised.value)
    for owner in (model, model.policy, model.logger):
        assert not hasattr(owner, "wrong_name") and not hasattr(owner, "__wrong__")
    assert copy.copy(model.policy).hidden == model.policy.hidden


OF_THE_POLICY = (*METHODS, *OF_POLICIES_ALONE)  # which its parts have not
PARTS = ("actor", "critic", "critics", "actor_out", "critic_out", "trunk", "out", "encoder", "head")


@pytest.mark.parametrize("kind", [PPO, SAC, DQN])
def test_parts_of_policies_say_what_to_use_instead(kind):
    arguments = SMALL if kind is PPO else {"buffer_size": 100, "device": "cpu"}
    policy = kind("MlpPolicy", "Pendulum-v1" if kind is SAC else "CartPole-v1", **arguments).policy
    parts = [policy, *(policy._modules[name] for name in PARTS if policy._modules.get(name) is not None)]
    assert len(parts) > 3
    for part in parts:
        for name in (*OF_POLICIES, *(OF_THE_POLICY if part is not policy else ())):
            if name in dir(part):
                continue
            for reach in (getattr, delattr):
                with pytest.raises(
                    AttributeError, match=f"{type(part).__name__} has no attribute '{name}': "
                ) as raised:
                    reach(part, name)
                assert OF_POLICIES.get(name, f"policy.{name} is what the policy has") in str(raised.value)
        assert not hasattr(part, "wrong_name")
    assert copy.deepcopy(policy).state_dict().keys() == policy.state_dict().keys()


def test_what_is_deleted_is_gone_or_the_line_says_what_it_is_here():
    model = SAC("MlpPolicy", "Pendulum-v1", buffer_size=100, device="cpu")
    model.own = 1
    del model.own
    for name in ("actor", "critic_target"):
        with pytest.raises(AttributeError, match=f"SAC has no attribute '{name}': model.policy is Headrace's own"):
            delattr(model, name)
    model.policy.own = torch.nn.Linear(1, 1)
    del model.policy.own
    assert not hasattr(model, "own") and not hasattr(model.policy, "own")


def test_values_that_are_no_numbers_are_said_once(tmp_path, capsys):
    model = PPO("MlpPolicy", "CartPole-v1", tensorboard_log=str(tmp_path), **SMALL)

    def record(local: dict, _: dict) -> None:
        model.logger.record("parts/figure", object())
        model.logger.record("hidden", "text", exclude="tensorboard")
        model.logger.record("count", 3)

    model.learn(64, callback=record)
    assert capsys.readouterr().err.count("parts/figure (object) is not in TensorBoard's file") == 1


def test_counts_and_clipping_are_recorded_as_there(capsys):
    for model, name, value in (
        (
            PPO("MlpPolicy", "CartPole-v1", verbose=1, clip_range_vf=0.25, clip_range=0.125, **SMALL | {"n_epochs": 3}),
            "clip_range_vf",
            "0.25 ",
        ),
        (A2C("MlpPolicy", "CartPole-v1", n_steps=16, verbose=1), "n_updates", "3 "),
    ):
        model.learn(50, log_interval=1)
        printed = capsys.readouterr().out
        rows = [row.split("|")[1:3] for row in printed.splitlines() if row.count("|") == 3]
        last = {key.strip(): text.strip() + " " for key, text in rows}
        assert last[name] == value
        if isinstance(model, PPO):
            assert last["clip_range"] == "0.125 " and int(last["n_updates"]) == 3 * (int(last["iterations"]) - 1)
        else:
            assert "clip_range" not in last and "clip_range_vf" not in last
        # a table comes before the update by its rollout
        assert model._n_updates == int(last["n_updates"]) + getattr(model, "n_epochs", 1)
