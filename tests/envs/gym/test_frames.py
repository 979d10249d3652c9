"""Stacked observations, and arrays that an environment writes into again."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

import headrace as hr
from headrace.checks import random_rollout
from headrace.envs.gym.columns import copied
from headrace.envs.gym.frames import stacked_space
from headrace.envs.vector.adapter import VectorAdapter
from headrace.envs.vector.simulators import SimulatorSource

LAST = 5  # step of an episode
ARRAY = Box(-1, 300, (2,))


SPACES = {
    "array": ARRAY,
    "tensor": ARRAY,
    "image": Box(0, 255, (8, 6, 3), np.uint8),
    "dict": Dict(inner=Dict(camera=Box(0, 255, (3, 8, 6), np.uint8)), pair=Tuple([ARRAY, Discrete(9)])),
    "mask": Dict(observation=ARRAY, action_mask=MultiBinary(3)),
}


class Reusing(gymnasium.Env):
    """Counts steps in arrays that are made once. kind: what it gives them as."""

    action_space = Discrete(3)

    def __init__(self, kind="array"):
        self.kind, self.observation_space = kind, SPACES[kind]
        shape = (8, 6, 3) if kind == "image" else (3, 8, 6) if kind == "dict" else (2,)
        self.array = np.zeros(shape, np.uint8 if len(shape) == 3 else np.float32)
        self.small, self.allowed, self.info = np.zeros(2, np.float32), np.zeros(3, np.int8), {}

    def look(self):
        self.array[:] = self.small[:] = self.count
        self.allowed[:] = [self.count % 2, 1 - self.count % 2, 1]
        given = {
            "tensor": torch.from_numpy(self.array),
            "dict": {"inner": {"camera": self.array}, "pair": (self.small, self.count)},
            "mask": {"observation": self.array, "action_mask": self.allowed},
        }
        self.info["count"] = self.small
        return given.get(self.kind, self.array)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.look(), self.info

    def step(self, action):
        self.count += 1
        return self.look(), 1.0, self.count == LAST, False, self.info


def steps_of(env, member, num_steps=8):
    """List of the numbers in a member's stack, for each row."""
    rollout = env.rollout(num_steps, env.columns())
    env.reset(rollout, 0)
    for t in range(num_steps):
        env.step(rollout, t)
    env.close()
    return [sorted(set(row.ravel().tolist())) for row in np.asarray(member(rollout.observation)[:, 0], np.int64)]


STACKED = [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize("options", [{}, {"workers": 1}])
@pytest.mark.parametrize(
    ("kind", "member"),
    [
        ("array", lambda seen: seen),
        ("tensor", lambda seen: seen),
        ("image", lambda seen: seen),
        ("dict", lambda seen: seen["inner"]["camera"]),
        ("dict", lambda seen: seen["pair"]["0"]),
        ("dict", lambda seen: seen["pair"]["1"]),
        ("mask", lambda seen: seen["observation"]),
    ],
)
def test_frames_are_those_of_their_steps_although_an_array_is_used_again(kind, member, options):
    assert steps_of(hr.make(lambda: Reusing(kind), 2, frame_stack=3, **options), member) == STACKED


def test_the_stack_of_an_agent_is_of_its_steps():
    pytest.importorskip("pettingzoo")
    from helpers.relay import Relay

    class OneArray(Relay):
        def __init__(self):
            super().__init__({"a": 3, "b": 4})
            self.arrays = {agent: np.zeros(2, np.float32) for agent in "ab"}

        def _again(self, observations):
            for agent, seen in observations.items():
                self.arrays[agent][:] = seen
            return {agent: self.arrays[agent] for agent in observations}

        def reset(self, **given):
            observations, infos = super().reset(**given)
            return self._again(observations), infos

        def step(self, actions):
            observations, *outcome = super().step(actions)
            return self._again(observations), *outcome

    env = hr.make(OneArray, 1, frame_stack=2)
    rollout = env.rollout(3, env.columns())
    env.reset(rollout, 0)
    for t in range(3):
        env.step(rollout, t)
    assert rollout.observation[:, 0, :, 0].tolist() == [[0, 0], [0, 1], [1, 2], [2, 3]]


def test_members_of_a_dict_are_stacked_as_they_are_alone():
    seen = Dict(
        [
            ("zebra", Box(0, 255, (8, 6, 3), np.uint8)),
            ("grey", Box(0, 255, (8, 6), np.uint8)),
            ("gears", MultiDiscrete([3, 4], start=[1, 0])),
            ("gear", Discrete(5, start=2)),
            ("inner", Tuple([Box(0, 255, (3, 8, 6), np.uint8), MultiBinary(2)])),
            ("action_mask", MultiBinary(3)),
            ("achieved_goal", ARRAY),
        ]
    )
    stack = stacked_space(seen, 4)
    assert list(stack) == list(seen)
    assert stack["zebra"] == Box(0, 255, (12, 8, 6), np.uint8) == stack["inner"][0]
    assert stack["grey"].shape == (4, 8, 6) and stack["inner"][1].shape == (4, 2)
    assert stack["gears"] == MultiDiscrete([[3, 4]] * 4, start=[[1, 0]] * 4)
    assert stack["gear"] == MultiDiscrete([5] * 4, start=[2] * 4)
    assert stack["action_mask"] == MultiBinary(3)
    assert stack["achieved_goal"].shape == (4, 2)  # without a desired one it is no goal of hindsight
    goals = stacked_space(Dict(observation=ARRAY, achieved_goal=ARRAY, desired_goal=ARRAY), 4)
    assert goals["observation"].shape == (4, 2) and goals["achieved_goal"] == goals["desired_goal"] == ARRAY


def test_a_stack_of_a_dict_holds_its_frames_in_order():
    class Seen(Reusing):
        def __init__(self):
            super().__init__()
            self.observation_space = Dict(camera=Box(0, 255, (9, 8, 3), np.uint8), gear=Discrete(9))

        def look(self):
            self.array = np.arange(9 * 8 * 3, dtype=np.uint8).reshape(9, 8, 3) % 3 + 10 * self.count
            return {"camera": np.asfortranarray(self.array), "gear": self.count}

    env = hr.make(Seen, 1, frame_stack=2)
    rollout = env.rollout(1, env.columns())
    env.reset(rollout, 0)
    env.step(rollout, 0)
    assert rollout.observation["camera"][1, 0, :, 1, 2].tolist() == [0, 1, 2, 10, 11, 12]
    assert rollout.observation["gear"][:, 0].tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_policies_learn_from_a_stack_with_the_mask_of_this_step(algorithm, tmp_path):
    class Strict(Reusing):
        def step(self, action):
            assert self.allowed[action], "forbidden"
            return super().step(action)

    options = {"num_envs": 2, "total_steps": 200, "hidden": (8,), "progress": "none", "log_folder": str(tmp_path)}
    run = hr.train(algorithm, lambda: Strict("mask"), frame_stack=3, **options)
    assert run.evaluate(episodes=2).mean == LAST


def test_an_env_with_stacked_frames_continues_from_a_checkpoint():
    class Saved(Reusing):
        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    made = [hr.make(lambda: Saved("dict"), 1, frame_stack=3) for _ in range(2)]
    rollouts = [env.rollout(4, env.columns()) for env in made]
    for env, rollout in zip(made, rollouts, strict=True):
        env.reset(rollout, 0)
    for t in range(2):
        made[0].step(rollouts[0], t)
    made[1].load_state_dict(made[0].state_dict())
    for env, rollout, t in ((made[0], rollouts[0], 2), (made[1], rollouts[1], 0)):
        rollout.valid[t] = True
        env.step(rollout, t)
    assert torch.equal(rollouts[0].observation["pair"]["0"][3], rollouts[1].observation["pair"]["0"][1])


@pytest.mark.parametrize("options", [{}, {"workers": 1}])
def test_the_final_observation_and_info_of_a_vector_are_those_of_the_episode_that_ended(options):
    shared = hr.make_vec(lambda: Reusing(), 2, autoreset_mode="SameStep", **options)
    shared.reset(seed=0)
    for _ in range(LAST):
        observation, *_, infos = shared.step(np.zeros(2, np.int64))
    assert observation.tolist() == [[0, 0]] * 2
    assert [final.tolist() for final in infos["final_obs"]] == [[LAST, LAST]] * 2
    assert infos["final_info"]["count"].tolist() == [[LAST, LAST]] * 2
    shared.close()


def test_environments_of_a_vector_may_share_one_array():
    array = np.zeros(2, np.float32)

    class Sharing(Reusing):
        def __init__(self, start):
            super().__init__()
            self.start = start

        def look(self):
            array[:] = self.count + self.start
            return array

    starts = iter([10, 20])
    envs_ = hr.make_vec(lambda: Sharing(next(starts)), 2)
    assert envs_.reset(seed=0)[0][:, 0].tolist() == [10, 20]
    assert envs_.step(np.zeros(2, np.int64))[0][:, 0].tolist() == [11, 21]


class Scribbling:
    """A simulator of two environments whose reset_some() writes into the arrays that step() gave."""

    num_envs, device, observation_space, action_space, max_steps = 2, "cpu", Box(-9, 99, (1,)), Discrete(2), None
    autoreset = "Disabled"

    def __init__(self):
        self.seen, self.reward = torch.zeros(2, 1), torch.zeros(2)
        self.ended, self.cut = torch.zeros(2, dtype=torch.bool), torch.zeros(2, dtype=torch.bool)
        self.count = torch.zeros(2)

    def reset(self, seed):
        self.count[:] = torch.tensor([0.0, 1.0])
        return self._look()

    def _look(self):
        self.seen[:, 0] = self.count
        return self.seen

    def step(self, action):
        self.count += 1
        self.reward[:], self.ended[:] = self.count, self.count == 3
        return self._look(), self.reward, self.ended, self.cut

    def reset_some(self, mask):
        self.count[mask] = 0
        self._look()
        self.seen[~mask], self.reward[:], self.ended[:] = -9, -9, True  # only those of the mask are used
        return self.seen


def test_resetting_some_environments_leaves_the_outcomes_of_others():
    env = VectorAdapter(SimulatorSource(Scribbling()))
    rollout = env.rollout(4, env.columns())
    env.reset(rollout, 0)
    for t in range(4):
        env.step(rollout, t)
    # a masked row is the first step of the next episode, unless all are reset at once
    assert rollout.observation[:, :, 0].T.tolist() == [[0, 1, 2, 3, 1], [1, 2, 3, 1, 2]]
    assert rollout.reward.T.tolist() == [[1, 2, 3, 0], [2, 3, 0, 2]]
    assert rollout.terminated.int().T.tolist() == [[0, 0, 1, 0], [0, 1, 0, 0]]


def test_the_check_of_seeds_keeps_copies():
    class Unseeded(Reusing):
        def look(self):
            super().look()
            self.array += np.float32(np.random.default_rng().uniform())
            return self.array

    found = random_rollout.seeding(Unseeded, Unseeded(), 0, 1e-5)
    assert [finding.outcome for finding in found if finding.check in ("seeding", "reset")] == ["wrong", "wrong"]


def test_what_users_give_is_kept_as_it_was():
    numbers, gravity = np.array([1.0, 2.0], np.float32), np.array([9.0, 8.0])
    env = hr.envs.wrappers.conditioning.InformedEnv(hr.make(Reusing, 2), numbers)
    compiled = hr.make("CartPole-v1", 2, params={"gravity": gravity})
    numbers[:], gravity[:] = -1, -1
    rollout = env.rollout(1, env.columns())
    env.reset(rollout, 0)
    assert rollout.observation.agent_info[0].tolist() == [1, 2]
    assert compiled.params["gravity"].tolist() == [9, 8]


def test_a_copy_shares_no_memory():
    array, tensor = np.zeros(2), torch.zeros(2)
    kept = copied({"a": array, "b": (tensor, [array]), "c": None, "d": np.float32(1)})
    array += 1
    tensor += 1
    assert kept["a"].tolist() == kept["b"][0].tolist() == kept["b"][1][0].tolist() == [0, 0]
    assert kept["c"] is None and kept["d"] == 1
