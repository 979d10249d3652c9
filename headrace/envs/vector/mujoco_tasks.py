"""Observations, rewards and endings of Gymnasium's MuJoCo tasks (v5), for many simulations at once.

Each task is Gymnasium's formula over arrays [N, ...] of mjData's fields, in Gymnasium's order of operations. Constants
are those of `env`, an environment that Gymnasium made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.random import Generator

from headrace.envs.vector.mujoco_simulations import Fields

Judged: TypeAlias = tuple[np.ndarray, np.ndarray]  # rewards [N], and which episodes are terminated, bool [N]


class Task(NamedTuple):
    """A task of Gymnasium's. `judge` takes (env, fields before the step, fields after it, action)."""

    fields: tuple[str, ...]
    begin: Callable[[Any, Generator], tuple[np.ndarray, np.ndarray]]  # qpos and qvel at the start of an episode
    observe: Callable[[Any, Fields], np.ndarray]
    judge: Callable[[Any, Fields, Fields, np.ndarray], Judged]


def _joined(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate([part.reshape(len(part), -1) for part in parts], 1)


def _uniform(env: Any, random: Generator) -> tuple[np.ndarray, np.ndarray]:
    """Both within reset_noise_scale of the model's."""
    scale = env._reset_noise_scale
    qpos = env.init_qpos + random.uniform(-scale, scale, env.model.nq)
    return qpos, env.init_qvel + random.uniform(-scale, scale, env.model.nv)


def _normal(env: Any, random: Generator) -> tuple[np.ndarray, np.ndarray]:
    """Same as _uniform(), with normal velocities."""
    scale = env._reset_noise_scale
    qpos = env.init_qpos + random.uniform(-scale, scale, env.model.nq)
    return qpos, env.init_qvel + scale * random.standard_normal(env.model.nv)


def _never(rewards: np.ndarray) -> Judged:
    return rewards, np.zeros(len(rewards), np.bool_)


def control_cost(env: Any, action: np.ndarray) -> np.ndarray:
    return env._ctrl_cost_weight * np.square(action).sum(1)  # type: ignore[no-any-return]


def speed(env: Any, before: Fields, after: Fields) -> np.ndarray:
    """Speed of the root along the first axis, [N]."""
    return (after["qpos"][:, 0] - before["qpos"][:, 0]) / env.dt  # type: ignore[no-any-return]


def _within(values: np.ndarray, bounds: tuple[float, float]) -> np.ndarray:
    return (bounds[0] < values) & (values < bounds[1])  # type: ignore[no-any-return]


def _skipping(first: int, speed_limit: float | None = None) -> Callable[[Any, Fields], np.ndarray]:
    """Positions from `first` on, unless they are included, and velocities, which may be limited."""

    def observe(env: Any, seen: Fields) -> np.ndarray:
        skipped = first if env._exclude_current_positions_from_observation else 0
        velocity = seen["qvel"] if speed_limit is None else np.clip(seen["qvel"], -speed_limit, speed_limit)
        return _joined(seen["qpos"][:, skipped:], velocity)

    return observe


def _run_forward(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Judged:
    """HalfCheetah, Swimmer."""
    return _never(env._forward_reward_weight * speed(env, before, after) - control_cost(env, action))


def _alive(env: Any, forward: np.ndarray, healthy: np.ndarray, costs: np.ndarray) -> Judged:
    """A reward for speed and one for being healthy, without which an episode may end."""
    return forward + healthy * env._healthy_reward - costs, ~healthy & bool(env._terminate_when_unhealthy)


def healthy(env: Any, seen: Fields) -> np.ndarray:
    """Mask of healthy robots of Hopper and Walker2d, bool [N]."""
    qpos = seen["qpos"]
    upright = _within(qpos[:, 1], env._healthy_z_range) & _within(qpos[:, 2], env._healthy_angle_range)
    if not hasattr(env, "_healthy_state_range"):
        return upright
    return upright & _within(_joined(qpos, seen["qvel"])[:, 2:], env._healthy_state_range).all(1)


def _hop(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Judged:
    """Hopper, Walker2d."""
    forward = env._forward_reward_weight * speed(env, before, after)
    return _alive(env, forward, healthy(env, after), control_cost(env, action))


def _observe_ant(env: Any, seen: Fields) -> np.ndarray:
    base = _skipping(2)(env, seen)
    return _joined(base, forces(env, seen)[:, 1:]) if env._include_cfrc_ext_in_observation else base


def forces(env: Any, seen: Fields) -> np.ndarray:
    return np.clip(seen["cfrc_ext"], *env._contact_force_range)  # type: ignore[no-any-return]


def body_velocity(env: Any, before: Fields, after: Fields) -> np.ndarray:
    """Velocity of the Ant's main body, [N, 2]."""
    body = env.model.body(env._main_body).id
    return (after["xpos"][:, body, :2] - before["xpos"][:, body, :2]) / env.dt  # type: ignore[no-any-return]


def healthy_ant(env: Any, seen: Fields) -> np.ndarray:
    low, high = env._healthy_z_range
    state = _joined(seen["qpos"], seen["qvel"])
    return np.isfinite(state).all(1) & (low <= state[:, 2]) & (state[:, 2] <= high)  # type: ignore[no-any-return]


def contact_cost_ant(env: Any, seen: Fields) -> np.ndarray:
    return env._contact_cost_weight * np.square(forces(env, seen)).sum((1, 2))  # type: ignore[no-any-return]


def _ant(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Judged:
    forward = body_velocity(env, before, after)[:, 0] * env._forward_reward_weight
    return _alive(env, forward, healthy_ant(env, after), control_cost(env, action) + contact_cost_ant(env, after))


def _observe_humanoid(env: Any, seen: Fields) -> np.ndarray:
    parts = [_skipping(2)(env, seen)]
    for name, first in (("cinert", 1), ("cvel", 1), ("qfrc_actuator", 6), ("cfrc_ext", 1)):
        if getattr(env, f"_include_{name}_in_observation"):
            parts.append(seen[name][:, first:])
    return _joined(*parts)


def center(env: Any, seen: Fields, axis: int = 0) -> np.ndarray:
    """Center of mass along an axis, [N]."""
    mass = env.model.body_mass
    return (seen["xipos"][:, :, axis] * mass).sum(1) / mass.sum()  # type: ignore[no-any-return]


def squared_control(env: Any, after: Fields) -> np.ndarray:
    return env._ctrl_cost_weight * np.square(after["ctrl"]).sum(1)  # type: ignore[no-any-return]


def contact_cost_humanoid(env: Any, seen: Fields) -> np.ndarray:
    contact = env._contact_cost_weight * np.square(seen["cfrc_ext"]).sum((1, 2))
    return np.clip(contact, *env._contact_cost_range)  # type: ignore[no-any-return]


def healthy_humanoid(env: Any, seen: Fields) -> np.ndarray:
    return _within(seen["qpos"][:, 2], env._healthy_z_range)


def _humanoid(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Judged:
    forward = env._forward_reward_weight * ((center(env, after) - center(env, before)) / env.dt)
    costs = squared_control(env, after) + contact_cost_humanoid(env, after)
    return _alive(env, forward, healthy_humanoid(env, after), costs)


def impact_cost(env: Any, seen: Fields) -> np.ndarray:
    impact = env._impact_cost_weight * np.square(seen["cfrc_ext"]).sum((1, 2))
    return np.clip(impact, *env._impact_cost_range)  # type: ignore[no-any-return]


def _stand_up(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Judged:
    height = after["qpos"][:, 2] / env.model.opt.timestep
    return _never(height - squared_control(env, after) - impact_cost(env, after) + 1)


def _observe_all(env: Any, seen: Fields) -> np.ndarray:
    return _joined(seen["qpos"], seen["qvel"])


def fallen(seen: Fields) -> np.ndarray:
    """Mask of single pendulums that have fallen, bool [N]."""
    state = _joined(seen["qpos"], seen["qvel"])
    return ~np.isfinite(state).all(1) | (np.abs(state[:, 1]) > 0.2)  # type: ignore[no-any-return]


def _balance(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Judged:
    down = fallen(after)
    return (~down).astype(np.float64), down


def _observe_two(env: Any, seen: Fields) -> np.ndarray:
    angles, limited = seen["qpos"][:, 1:], [np.clip(seen[name], -10, 10) for name in ("qvel", "qfrc_constraint")]
    return _joined(seen["qpos"][:, :1], np.sin(angles), np.cos(angles), limited[0], limited[1][:, :1])


def penalties(env: Any, seen: Fields) -> tuple[np.ndarray, np.ndarray]:
    """Penalties of the double pendulum for its distance and its speed, [N] each."""
    x, y = seen["site_xpos"][:, 0, 0], seen["site_xpos"][:, 0, 2]
    first, second = seen["qvel"][:, 1:3].T
    return 0.01 * x**2 + (y - 2) ** 2, 1e-3 * first**2 + 5e-3 * second**2


def fallen_two(seen: Fields) -> np.ndarray:
    return seen["site_xpos"][:, 0, 2] <= 1  # type: ignore[no-any-return]


def _balance_two(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Judged:
    fallen, (distance, velocity) = fallen_two(after), penalties(env, after)
    return env._healthy_reward * ~fallen - distance - velocity, fallen


def body(env: Any, seen: Fields, name: str) -> np.ndarray:
    return seen["xpos"][:, env.model.body(name).id]  # type: ignore[no-any-return]


def _begin_pusher(env: Any, random: Generator) -> tuple[np.ndarray, np.ndarray]:
    cylinder = np.zeros(2)
    while not np.linalg.norm(cylinder) > 0.17:
        cylinder = np.concatenate([random.uniform(-0.3, 0, 1), random.uniform(-0.2, 0.2, 1)])
    qpos = np.concatenate([env.init_qpos[:-4], cylinder, np.zeros(2)])
    qvel = env.init_qvel + random.uniform(-0.005, 0.005, env.model.nv)
    qvel[-4:] = 0
    return qpos, qvel


def _observe_pusher(env: Any, seen: Fields) -> np.ndarray:
    bodies = [body(env, seen, name) for name in ("tips_arm", "object", "goal")]
    return _joined(seen["qpos"][:, :7], seen["qvel"][:, :7], *bodies)


def distances(env: Any, seen: Fields) -> tuple[np.ndarray, np.ndarray]:
    """Costs of the Pusher: from the tip to the object, from there to the goal."""
    tip, pushed, goal = (body(env, seen, name) for name in ("tips_arm", "object", "goal"))
    near = np.linalg.norm(pushed - tip, axis=1) * env._reward_near_weight
    return near, np.linalg.norm(pushed - goal, axis=1) * env._reward_dist_weight


def control_of_arm(env: Any, action: np.ndarray) -> np.ndarray:
    """Cost of the Pusher's and the Reacher's controls."""
    return np.square(action).sum(1) * env._reward_control_weight  # type: ignore[no-any-return]


def _push(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Judged:
    near, far = distances(env, after)
    return _never(-far + -control_of_arm(env, action) + -near)


def _begin_reacher(env: Any, random: Generator) -> tuple[np.ndarray, np.ndarray]:
    qpos = random.uniform(-0.1, 0.1, env.model.nq) + env.init_qpos
    goal = np.ones(2)
    while not np.linalg.norm(goal) < 0.2:
        goal = random.uniform(-0.2, 0.2, 2)
    qpos[-2:] = goal
    qvel = env.init_qvel + random.uniform(-0.005, 0.005, env.model.nv)
    qvel[-2:] = 0
    return qpos, qvel


def way(env: Any, seen: Fields) -> np.ndarray:
    """Vector from the target to the fingertip."""
    return body(env, seen, "fingertip") - body(env, seen, "target")


def _observe_reacher(env: Any, seen: Fields) -> np.ndarray:
    angles = seen["qpos"][:, :2]
    rest = seen["qpos"][:, 2:], seen["qvel"][:, :2], way(env, seen)[:, :2]
    return _joined(np.cos(angles), np.sin(angles), *rest)


def distance(env: Any, seen: Fields) -> np.ndarray:
    """Cost of the Reacher."""
    return np.linalg.norm(way(env, seen), axis=1) * env._reward_dist_weight


def _reach(env: Any, before: Fields, after: Fields, action: np.ndarray) -> Judged:
    return _never(-distance(env, after) + -control_of_arm(env, action))


STATE = ("qpos", "qvel")
BODIES = (*STATE, "cinert", "cvel", "qfrc_actuator", "cfrc_ext", "ctrl", "ten_length", "ten_velocity")
TASKS = {  # class in gymnasium.envs.mujoco.*_v5 -> task
    "AntEnv": Task((*STATE, "xpos", "cfrc_ext"), _normal, _observe_ant, _ant),
    "HalfCheetahEnv": Task(STATE, _normal, _skipping(1), _run_forward),
    "HopperEnv": Task(STATE, _uniform, _skipping(1, 10.0), _hop),
    "HumanoidEnv": Task((*BODIES, "xipos"), _uniform, _observe_humanoid, _humanoid),
    "HumanoidStandupEnv": Task(BODIES, _uniform, _observe_humanoid, _stand_up),
    "InvertedDoublePendulumEnv": Task((*STATE, "qfrc_constraint", "site_xpos"), _normal, _observe_two, _balance_two),
    "InvertedPendulumEnv": Task(STATE, _uniform, _observe_all, _balance),
    "PusherEnv": Task((*STATE, "xpos"), _begin_pusher, _observe_pusher, _push),
    "ReacherEnv": Task((*STATE, "xpos"), _begin_reacher, _observe_reacher, _reach),
    "SwimmerEnv": Task(STATE, _uniform, _skipping(2), _run_forward),
    "Walker2dEnv": Task(STATE, _uniform, _skipping(1, 10.0), _hop),
}
