"""Simulators of robots by name: against fakes of their libraries, and against these where they are installed."""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType, SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch

import headrace as hr
from headrace.cli.main import main
from headrace.envs.simulators import by_library
from headrace.envs.simulators.torch_vector import TorchVector
from headrace.envs.simulators.two_groups import TwoGroups

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
        self.age[slice(None) if env_ids is None else env_ids] = 0
        self.resets.append(env_ids)
        return self._seen(), {}

    def step(self, action):
        assert action.shape == (self.num_envs, 1)
        self.age += 1
        cut = self.age >= self.max_episode_length
        return self._seen(), torch.ones(self.num_envs), torch.zeros_like(cut), cut, {}

    def close(self):
        self.closed = True


@pytest.fixture
def mjlab(fake):
    config = lambda task: SimpleNamespace(scene=SimpleNamespace(num_envs=1), auto_reset=True, episode_length_s=10.0)  # noqa: E731
    for name in ("mjlab", "mjlab.tasks"):
        fake(name)
    fake("mjlab.tasks.registry", list_tasks=lambda: ["B-Balance", "A-Walk"], load_env_cfg=config)
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
    ("package", "name", "num_envs", "options", "reached"),
    [
        ("mjlab", "mjlab/Mjlab-Cartpole-Balance", 64, {"episode_length_s": 10.0}, 3.5),
        ("brax", "brax/inverted_pendulum", 64, {}, 150.0),
        ("mujoco_playground", "playground/CartpoleBalance", 32, {}, 700.0),
    ],
)
def test_simulators_that_are_installed_learn(package, name, num_envs, options, reached, tmp_path):
    pytest.importorskip(package)
    found = hr.train(
        *("ppo", name),
        **{"num_envs": num_envs, "num_steps": 24, "minibatch_size": num_envs * 6, "epochs": 5, "hidden": (128, 128)},
        **{"learning_rate": 1e-3, "gamma": 0.97, "stagger": True, "total_steps": 90_000, "device": "cpu"},
        **{"env_kwargs": options, "log_folder": str(tmp_path), "progress": "none"},
    )
    assert found.metrics["return"] > reached
