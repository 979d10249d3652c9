"""Ids of MuJoCo's tasks are stepped by compiled loops where these have the same episodes, and say so."""

from __future__ import annotations

import gymnasium
import pytest
import torch

import headrace as hr

pytest.importorskip("mujoco")

from headrace.envs.native_source import native

SMALL = {"num_steps": 16, "epochs": 1, "hidden": (8,), "device": "cpu", "progress": "none"}


def trainer(env="Hopper-v5", num_envs=8, **settings) -> hr.Trainer:
    return hr.Trainer("ppo", env, num_envs=num_envs, **SMALL, **settings)


@pytest.mark.parametrize(
    "settings",
    [{}, {"time_limit": 9}, {"env_kwargs": {"reset_noise_scale": 0.3}}, {"collection": "double_buffered"}],
)
def test_a_training_takes_them_and_says_so(settings, capfd):
    made = trainer(**settings)
    assert (made.env.backend, made.env.name) == ("vector", "Hopper-v5")
    assert made.env.max_steps == settings.get("time_limit", 1000)
    assert capfd.readouterr().err.count("Hopper-v5 is stepped by compiled loops that call MuJoCo") == 1
    made.close()


@pytest.mark.parametrize(
    ("settings", "lacks"),
    [
        ({"frame_stack": 2}, "frame_stack"),
        ({"reward_scale": 0.1}, "reward_scale"),
        ({"on_error": "restart"}, "on_error"),
        ({"wrapper": ("gymnasium.wrappers:ClipAction",)}, "wrappers"),
        ({"env_kwargs": {"xml_file": "hopper.xml"}}, "xml_file"),
    ],
)
def test_what_they_lack_is_said_and_gymnasium_steps(settings, lacks, capfd):
    made = trainer(**settings)
    assert made.env.backend in ("inline", "workers")
    assert f"Hopper-v5 is stepped by Gymnasium: compiled loops have no {lacks}" in capfd.readouterr().err
    made.close()


@pytest.mark.parametrize("settings", [{"backend": "inline"}, {"workers": 2}, {"num_envs": 4, "workers": 1}])
def test_who_says_how_environments_are_stepped_is_obeyed(settings, capfd):
    made = trainer(**settings)
    assert made.env.backend in ("inline", "workers") and "Hopper-v5 is" not in capfd.readouterr().err
    made.close()


def test_others_are_left_alone():
    for source in ("CartPole-v1", "Pendulum-v1", "Hopper-v4", "Reacher-v5", "mujoco/Hopper-v5", lambda: None):
        assert native(source, 8, {}) == (source, {}, "")
    assert native("Hopper-v5", 7, {})[0] == "Hopper-v5"


def test_an_id_that_a_user_has_wrapped_is_gymnasium_s(monkeypatch):
    spec = gymnasium.spec("Hopper-v5")
    wrapper = gymnasium.wrappers.TransformReward.wrapper_spec(func=abs)
    monkeypatch.setattr(spec, "additional_wrappers", (wrapper,))
    monkeypatch.setitem(gymnasium.registry, "Hopper-v5", spec)
    assert native("Hopper-v5", 8, {})[0] == "Hopper-v5"


def test_they_learn_what_gymnasium_s_teach():
    policies = []
    for backend in ("auto", "inline"):
        made = trainer(backend=backend, seed=2)
        made.iterate()
        policies.append(made.policy.state_dict())
        made.close()
    for name, weights in policies[0].items():
        torch.testing.assert_close(weights, policies[1][name], rtol=1e-3, atol=1e-4)
