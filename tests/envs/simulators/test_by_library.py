"""Simulators of robots by name: against fakes of their libraries, and against these where they are installed."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch

import headrace as hr
from headrace.cli.main import main
from headrace.envs.simulators import by_library
from headrace.envs.simulators.published import of_brax, of_rsl_rl
from headrace.envs.simulators.torch_vector import TorchVector
from headrace.envs.simulators.two_groups import TwoGroups
from headrace.envs.vector.terms import Terms

SMALL = {"num_steps": 8, "epochs": 1, "hidden": (8,), "device": "cpu"}


@pytest.fixture
def fake(monkeypatch):
    """A function that puts modules of a library in place."""

    def put(name, **members):
        module = ModuleType(name)
        module.__dict__.update(members)
        module.__spec__ = importlib.util.spec_from_loader(name, None)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return put


class MjlabEnv:
    """Counts steps: what mjlab's environment has, on the CPU."""

    max_episode_length = 5

    def __init__(self, config, device):
        assert not config.auto_reset and device == "cpu"
        self.num_envs, self.resets = config.scene.num_envs, []
        self.observation_manager = SimpleNamespace(group_obs_dim={"actor": (2,), "critic": (3,)})
        self.action_manager = SimpleNamespace(total_action_dim=1)
        self.age = torch.zeros(self.num_envs)

    def _seen(self):
        return {"actor": self.age[:, None].repeat(1, 2), "critic": self.age[:, None].repeat(1, 3)}

    def reset(self, seed=None, env_ids=None):
        lived = self.age.mean() if env_ids is None else self.age[env_ids].mean()
        self.age[slice(None) if env_ids is None else env_ids] = 0
        self.resets.append(env_ids)
        return self._seen(), {"log": {"Episode_Reward/upright": lived, "alive": 2.0}}

    def step(self, action):
        assert action.shape == (self.num_envs, 1)
        self.age += 1
        cut = self.age >= self.max_episode_length
        return self._seen(), torch.ones(self.num_envs), torch.zeros_like(cut), cut, {"log": {}}

    def close(self):
        self.closed = True


@dataclass
class RunnerConfig:
    """mjlab's settings for rsl_rl 5."""

    num_steps_per_env: int = 32
    max_iterations: int = 500
    clip_actions: float | None = 100.0
    algorithm: dict = field(default_factory=lambda: {**RULE})
    actor: dict = field(default_factory=lambda: {**ACTOR})
    critic: dict = field(default_factory=lambda: {**ACTOR, "hidden_dims": (64,), "distribution_cfg": None})


RULE = {
    **{"num_learning_epochs": 5, "num_mini_batches": 4, "learning_rate": 0.002, "schedule": "adaptive"},
    **{"desired_kl": 0.02, "gamma": 0.98, "lam": 0.9, "clip_param": 0.3, "use_clipped_value_loss": True},
    **{"entropy_coef": 0.01, "value_loss_coef": 2.0, "max_grad_norm": 1.5, "class_name": "PPO", "optimizer": "adam"},
    **{"normalize_advantage_per_mini_batch": False, "share_cnn_encoders": False},
}
ACTOR = {
    **{"hidden_dims": (32, 16), "activation": "elu", "obs_normalization": False, "cnn_cfg": None, "rnn_type": None},
    "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 0.5, "std_type": "scalar"},
}
TRANSLATED = {
    **{"num_envs": 12, "num_steps": 32, "total_steps": 192_000, "epochs": 5, "minibatch_size": 96},
    **{"learning_rate": 0.002, "schedule": "adaptive", "desired_kl": 0.02, "gamma": 0.98, "gae_lambda": 0.9},
    **{"clip": 0.3, "value_clip": 0.3, "entropy_coef": 0.01, "value_coef": 2.0, "max_grad_norm": 1.5},
    **{"hidden": (32, 16), "critic_hidden": (64,), "activation": "elu", "initial_std": 0.5, "state_std": False},
    **{"normalize_observation": False, "normalize_return": False, "ortho_init": False, "stagger": True},
}


@pytest.fixture
def mjlab(fake):
    config = lambda task: SimpleNamespace(scene=SimpleNamespace(num_envs=1), auto_reset=True, episode_length_s=10.0)  # noqa: E731
    for name in ("mjlab", "mjlab.tasks"):
        fake(name)
    functions = {"load_env_cfg": config, "load_rl_cfg": lambda task: RunnerConfig()}
    fake("mjlab.tasks.registry", list_tasks=lambda: ["B-Balance", "A-Walk"], **functions)
    fake("mjlab.envs", ManagerBasedRlEnv=MjlabEnv)


def test_tasks_are_listed(mjlab, capsys):
    assert main(["envs", "mjlab"]) == 0 and capsys.readouterr().out == "mjlab/A-Walk\nmjlab/B-Balance\n"
    assert main(["envs", "mjlab", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ["mjlab/A-Walk", "mjlab/B-Balance"]


def test_a_task_trains_with_a_critic_that_sees_more(mjlab, capfd):
    trainer = hr.Trainer("ppo", "mjlab/A-Walk", num_envs=3, **SMALL)
    simulator = trainer.env.source.simulator
    trainer.iterate()
    assert trainer.algorithm.config.critic_members == ("privileged_state",)
    assert "privileged_state of the observations is for the critic alone" in capfd.readouterr().err
    first, *ended = simulator.env.resets
    assert first is None and [ids.tolist() for ids in ended] == [[0, 1, 2]] * len(ended) and len(ended) == 1
    trainer.close()
    assert simulator.env.closed


def test_terms_are_logged_once_an_iteration(mjlab):
    trainer = hr.Trainer("ppo", "mjlab/A-Walk", num_envs=3, **SMALL | {"num_steps": 4})
    found = [{name: x for name, x in trainer.iterate().details.items() if "/" in name} for _ in range(3)]
    assert found[0] == {}  # an episode has five steps
    assert found[1] == {"Episode_Reward/upright": 5.0, "log/alive": 2.0} and trainer.env.metrics() == found[2]
    trainer.close()


def test_terms_are_means_over_the_calls_of_a_rollout():
    terms = Terms(torch.device("cpu"))
    for value in (1.0, torch.tensor([2.0, 4.0]), np.float32(2.0), np.array([6, 6])):
        terms.add({"a": value, "Reward/b": 1})
    terms.add(None)
    assert terms.mean() == {"log/a": 3.0, "Reward/b": 1.0}
    terms.clear()
    assert terms.mean() == {}


def test_settings_of_rsl_rl_are_translated(mjlab):
    settings, by = by_library.published("mjlab/A-Walk", 12)
    assert settings == TRANSLATED and by == "mjlab for rsl_rl (without counterpart: clip_actions)"
    assert by_library.published("mjlab/A-Walk", None).settings["num_envs"] == 4096
    assert by_library.published("CartPole-v1", None) is None


def test_older_settings_of_rsl_rl_are_translated():
    policy = {"actor_hidden_dims": [32, 16], "critic_hidden_dims": [64], "activation": "elu", "init_noise_std": 0.5}
    rule = {**RULE, "schedule": "fixed", "symmetry_cfg": {"use_data_augmentation": True}}
    config = {"policy": policy, "algorithm": rule, "num_steps_per_env": 32, "max_iterations": 500}
    settings, by = of_rsl_rl("Lab", {**config, "empirical_normalization": True}, 12)
    expected = TRANSLATED | {"schedule": "constant", "normalize_observation": True}
    assert settings == {name: x for name, x in expected.items() if name != "desired_kl"}
    assert by == "Lab for rsl_rl (without counterpart: symmetry_cfg)"


def test_settings_of_brax_are_translated():
    config = {
        **{"num_envs": 2048, "batch_size": 1024, "num_minibatches": 32, "unroll_length": 30, "num_timesteps": 60_000},
        **{"num_updates_per_batch": 16, "discounting": 0.995, "learning_rate": 1e-3, "entropy_cost": 0.01},
        **{"normalize_observations": True, "reward_scaling": 10.0, "action_repeat": 1},
        "network_factory": {"policy_hidden_layer_sizes": (8, 8)},
    }
    settings, by = of_brax("Play", config)
    assert settings["num_steps"] == 480 and settings["minibatch_size"] == 30_720  # 32 minibatches of 1,024 unrolls
    assert settings["hidden"] == (8, 8) and settings["critic_hidden"] == (256,) * 5 and settings["state_std"]
    assert (settings["gamma"], settings["gae_lambda"], settings["clip"], settings["epochs"]) == (0.995, 0.95, 0.3, 16)
    assert by.startswith("Play for Brax's PPO (without counterpart: reward_scaling, unroll_length")


def test_a_training_begins_with_published_settings_and_says_whose(mjlab, tmp_path, capfd):
    given = {"device": "cpu", "num_envs": 12, "total_steps": 500, "log_folder": str(tmp_path), "progress": "plain"}
    with hr.Training("ppo", "mjlab/A-Walk", clip=0.1, **given) as training:
        config, own = training.trainer.config, training.trainer.algorithm.config
        next(iter(training))
    assert (config.num_envs, config.total_steps, own.num_steps, own.minibatch_size) == (12, 500, 32, 96)
    assert own.clip == 0.1 and own.value_clip == 0.3 and own.desired_kl == 0.02
    said = "".join(capfd.readouterr())
    assert "as published by mjlab for rsl_rl (without counterpart: clip_actions) and not tuned here" in said
    plain = hr.Trainer("ppo", "mjlab/A-Walk", registered=False, **given)
    assert plain.algorithm.config.value_clip == 0.0
    plain.close()


def test_what_is_missing_names_what_to_install(monkeypatch):
    monkeypatch.setattr(by_library, "find_spec", lambda name: None)
    for library in by_library.LIBRARIES:
        with pytest.raises(ImportError, match=f"{library}/ needs .*, which is not installed: "):
            hr.make(f"{library}/Task", 2)
    with pytest.raises(ValueError, match="there are no simulators of 'gazebo': use mjlab, playground"):
        by_library.tasks("gazebo")


def test_names_that_are_nearly_right(mjlab):
    with pytest.raises(ValueError, match="there is no environment 'mjlab:A-Walk'; write mjlab/A-Walk"):
        hr.make("mjlab:A-Walk", 2)
    with pytest.raises(ValueError, match=r"mjlab has no task 'A-Wolk'; did you mean 'A-Walk'\?.*headrace envs mjlab"):
        hr.make("mjlab/A-Wolk", 2)


def test_a_vector_of_tensors_keeps_them_and_its_final_observations():
    class Vector:
        """Ends each third step; what ManiSkill's vector gives."""

        num_envs, device = 2, "cpu"
        single_action_space = gymnasium.spaces.Box(-1, 1, (1,))
        age = torch.zeros(2)

        @property
        def unwrapped(self):
            return self

        def reset(self, seed=None):
            self.age = torch.zeros(2)
            return self.age[:, None].clone(), {}

        def step(self, action):
            self.age = self.age + 1
            done, seen = self.age == 3, self.age[:, None].clone()
            infos = {"final_observation": seen.clone()} if done.any() else {}
            self.age = torch.where(done, 0.0, self.age)
            return self.age[:, None].clone(), torch.ones(2), torch.zeros_like(done), done, infos

    space = gymnasium.spaces.Box(-np.inf, np.inf, (1,))
    env = hr.envs.adapted(TorchVector(Vector(), "maniskill/T", space, finals="final_observation"))
    rollout = env.rollout(5, env.columns())
    env.reset(rollout, 0)
    rollout.action.zero_()
    for t in range(5):
        env.step(rollout, t)
    assert rollout.observation[:4, 0, 0].tolist() == [0, 1, 2, 3] and rollout.truncated[2].all()


def test_groups_of_observations():
    one, two = TwoGroups({"policy": 4}, "policy", "critic"), TwoGroups({"state": (2,), "more": (5,)}, "state", "more")
    assert one.space.shape == (4,) and one({"policy": 1}) == 1
    assert two({"state": 1, "more": 2}) == {"policy": 1, "privileged_state": 2}
    assert {name: space.shape for name, space in two.space.items()} == {"policy": (2,), "privileged_state": (5,)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "name", "num_envs", "steps", "options", "reached"),
    [
        ("mjlab", "mjlab/Mjlab-Cartpole-Balance", 64, 90_000, {"episode_length_s": 10.0}, 3.5),
        ("brax", "brax/inverted_pendulum", 64, 90_000, {}, 150.0),
        ("mujoco_playground", "playground/CartpoleBalance", 32, 200_000, {}, 700.0),
    ],
)
def test_simulators_that_are_installed_learn(package, name, num_envs, steps, options, reached, tmp_path):
    pytest.importorskip(package)
    found = hr.train(
        *("ppo", name),
        **{"num_envs": num_envs, "num_steps": 24, "minibatch_size": num_envs * 6, "epochs": 5, "hidden": (128, 128)},
        **{"learning_rate": 1e-3, "gamma": 0.97, "stagger": True, "total_steps": steps, "device": "cpu"},
        **{"env_kwargs": options, "log_folder": str(tmp_path), "progress": "none", "registered": False, "window": 20},
    )
    assert found.metrics["return"] > reached


@pytest.mark.slow
def test_hopper_of_envpool_learns(tmp_path):
    pytest.importorskip("envpool")
    found = hr.train(
        *("ppo", "envpool/Hopper-v5"),
        **{"num_envs": 16, "num_steps": 64, "epochs": 4, "minibatch_size": 256, "hidden": (128, 128)},
        **{"learning_rate": 1e-3, "total_steps": 180_000, "device": "cpu", "registered": False, "window": 20},
        **{"log_folder": str(tmp_path), "progress": "none"},
    )
    assert found.metrics["return"] > 700
