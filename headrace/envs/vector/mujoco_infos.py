"""Infos of Gymnasium's MuJoCo tasks (v5), for many simulations at once: Gymnasium's names, arrays [N, ...]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from headrace.envs.vector import mujoco_tasks as tasks
from headrace.envs.vector.mujoco_simulations import Fields

Arrays: TypeAlias = dict[str, np.ndarray]
Find: TypeAlias = Callable[[Any, Fields, Fields, np.ndarray], Arrays]


class Infos(Mapping[str, np.ndarray]):
    """Infos of a step, by name, computed when they are read first: valid until the next step.

    find: of INFOS. env: attributes of Gymnasium's environment. before, after: fields of the simulations.
    action: [N, K], within its bounds.
    """

    def __init__(self, find: Find, env: Any, before: Fields, after: Fields, action: np.ndarray) -> None:
        self._find, self._given = find, (env, before, after, action)

    @cached_property
    def _found(self) -> Arrays:
        return self._find(*self._given)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def _place(seen: Fields) -> Arrays:
    """Position of the root in the plane, and its distance from the origin."""
    x, y = seen["qpos"][:, 0], seen["qpos"][:, 1]
    return {"x_position": x, "y_position": y, "distance_from_origin": np.linalg.norm(seen["qpos"][:, :2], axis=1)}


def _height(env: Any, seen: Fields, axis: int) -> Arrays:
    return {"z_distance_from_origin": seen["qpos"][:, axis] - env.init_qpos[axis]}


def _tendons(seen: Fields) -> Arrays:
    return {"tendon_length": seen["ten_length"], "tendon_velocity": seen["ten_velocity"]}


def _moved(env: Any, x_velocity: np.ndarray) -> Arrays:
    return {"x_velocity": x_velocity, "reward_forward": env._forward_reward_weight * x_velocity}


def _run(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Arrays:
    moved = _moved(env, tasks.speed(env, before, after))
    return {"x_position": after["qpos"][:, 0], **moved, "reward_ctrl": -tasks.control_cost(env, action)}


def _swim(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Arrays:
    sideways = (after["qpos"][:, 1] - before["qpos"][:, 1]) / env.dt
    return {**_run(env, before, after, action), **_place(after), "y_velocity": sideways}


def _hop(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Arrays:
    survive = tasks.healthy(env, after) * env._healthy_reward
    return {**_run(env, before, after, action), **_height(env, after, 1), "reward_survive": survive}


def _ant(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Arrays:
    x_velocity, y_velocity = tasks.body_velocity(env, before, after).T
    return {
        **_place(after),
        **_moved(env, x_velocity),
        "y_velocity": y_velocity,
        "reward_ctrl": -tasks.control_cost(env, action),
        "reward_contact": -tasks.contact_cost_ant(env, after),
        "reward_survive": tasks.healthy_ant(env, after) * env._healthy_reward,
    }


def _humanoid(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Arrays:
    x_velocity, y_velocity = (
        (tasks.center(env, after, axis) - tasks.center(env, before, axis)) / env.dt for axis in range(2)
    )
    return {
        **_place(after),
        **_tendons(after),
        **_moved(env, x_velocity),
        "y_velocity": y_velocity,
        "reward_ctrl": -tasks.squared_control(env, after),
        "reward_contact": -tasks.contact_cost_humanoid(env, after),
        "reward_survive": tasks.healthy_humanoid(env, after) * env._healthy_reward,
    }


def _stand_up(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Arrays:
    place = _place(after)
    return {
        "x_position": place["x_position"],
        "y_position": place["y_position"],
        **_height(env, after, 2),
        **_tendons(after),
        "reward_linup": after["qpos"][:, 2] / env.model.opt.timestep,
        "reward_quadctrl": -tasks.squared_control(env, after),
        "reward_impact": -tasks.impact_cost(env, after),
    }


def _balance(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Arrays:
    return {"reward_survive": (~tasks.fallen(after)).astype(np.int64)}


def _balance_two(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Arrays:
    distance, velocity = tasks.penalties(env, after)
    survive = env._healthy_reward * ~tasks.fallen_two(after)
    return {"reward_survive": survive, "distance_penalty": -distance, "velocity_penalty": -velocity}


def _push(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Arrays:
    near, far = tasks.distances(env, after)
    return {"reward_dist": -far, "reward_ctrl": -tasks.control_of_arm(env, action), "reward_near": -near}


def _reach(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Arrays:
    return {"reward_dist": -tasks.distance(env, after), "reward_ctrl": -tasks.control_of_arm(env, action)}


INFOS: dict[str, Find] = {  # those of mujoco_tasks.TASKS
    "AntEnv": _ant,
    "HalfCheetahEnv": _run,
    "HopperEnv": _hop,
    "HumanoidEnv": _humanoid,
    "HumanoidStandupEnv": _stand_up,
    "InvertedDoublePendulumEnv": _balance_two,
    "InvertedPendulumEnv": _balance,
    "PusherEnv": _push,
    "ReacherEnv": _reach,
    "SwimmerEnv": _swim,
    "Walker2dEnv": _hop,
}
