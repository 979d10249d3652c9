"""Flock, Tag and IonTrap in NumPy, float64, from their rules: one step of W environments.

State: name -> array [W, M] of M entities, as the environments name their fields. p: the environment's Params.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

State = dict[str, np.ndarray]


class Outcome(NamedTuple):
    """Outcome of a step."""

    state: State
    reward: np.ndarray  # [W, agents]
    observation: np.ndarray  # [W, agents, F]
    terminated: np.ndarray  # [W]
    unsure: np.ndarray  # [W, M]: entities whose result hangs on the rounding of a comparison


def pairs(x: np.ndarray) -> np.ndarray:
    """The way along an axis from entity i to entity j, [W, i, j]."""
    return x[:, None, :] - x[:, :, None]


def framed(state: State, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """A vector's components forward and to the left of each entity."""
    rotated = (state["right"] - 1j * state["up"]) * (x + 1j * y)
    return [rotated.real, rotated.imag]


def flock_step(state: State, action: np.ndarray, p: Any) -> Outcome:
    """action [W, learning]. Without noise."""
    s = {name: field.astype(np.float64) for name, field in state.items()}
    direction = s["right"] + 1j * s["up"]
    way = s["along_x"] + 1j * s["along_y"] + p.cohesion * (s["centre_x"] + 1j * s["centre_y"])
    way = way + p.separation * (s["away_x"] + 1j * s["away_y"])
    wanted = np.angle(way * direction.conj())
    turn = np.clip(wanted, -p.turn, p.turn)
    turn[:, : action.shape[1]] = p.turn * np.clip(action, -1, 1)
    unsure = np.abs(wanted) > np.pi - 1e-3  # left or right
    direction = direction * np.exp(1j * turn)
    s["right"], s["up"] = direction.real, direction.imag
    s["x"], s["y"] = (s["x"] + p.speed * s["right"]) % 1.0, (s["y"] + p.speed * s["up"]) % 1.0
    right, up = ((pairs(s[axis]) + 0.5) % 1.0 - 0.5 for axis in "xy")
    distance = np.hypot(right, up) + 10.0 * np.eye(right.shape[1])
    seen, close = (distance < p.reach).astype(float), (distance < p.near).astype(float)
    unsure = unsure | ((np.abs(distance - p.reach) < 1e-6) | (np.abs(distance - p.near) < 1e-6)).any(2)
    s["neighbours"] = seen.sum(2)
    share = 1.0 / np.maximum(s["neighbours"], 1.0)
    s["centre_x"], s["centre_y"] = (share * (seen * d).sum(2) / p.reach for d in (right, up))
    s["along_x"], s["along_y"] = (share * (seen * s[d][:, None]).sum(2) for d in ("right", "up"))
    s["away_x"], s["away_y"] = (-(close * d).sum(2) / p.near for d in (right, up))
    s["reward"] = s["along_x"] * s["right"] + s["along_y"] * s["up"] - p.crowding * close.sum(2)
    parts = [part for name in ("centre", "along", "away") for part in framed(s, s[f"{name}_x"], s[f"{name}_y"])]
    observation, agents = np.stack([*parts, s["neighbours"] / 16.0], 2), action.shape[1]
    return Outcome(s, s["reward"][:, :agents], observation[:, :agents], np.zeros(len(right), bool), unsure)


def tag_step(state: State, action: np.ndarray, placed: State, p: Any, taggers: int) -> Outcome:
    """action [W, M, 2]; placed: x, y of those that were tagged before, which are random."""
    s = {name: field.astype(np.float64) for name, field in state.items()}
    before, tags = state["tagged"], np.arange(action.shape[1]) < taggers
    turn = np.where(tags, p.tagger_turn, p.runner_turn) * (1 - action[:, :, 1])
    direction = (s["right"] + 1j * s["up"]) * np.exp(1j * turn)
    fastest = np.where(tags, p.tagger_speed, p.runner_speed)
    speed = np.minimum(np.maximum(s["speed"] + p.acceleration * (action[:, :, 0] - 1.0), 0.0), fastest)
    s["right"], s["up"], s["speed"] = direction.real, direction.imag, np.where(before, 0.0, speed)
    for axis, along in (("x", direction.real), ("y", direction.imag)):
        s[axis] = np.where(before, placed[axis], np.clip(s[axis] + speed * along, 0.0, p.side))
    right, up = pairs(s["x"]), pairs(s["y"])
    distance = np.hypot(right, up)
    opposed = tags[:, None] != tags[None, :]
    others = np.where(opposed, distance, np.inf)
    mates = np.where(opposed | np.eye(len(tags), dtype=bool), np.inf, distance)
    unsure = np.zeros(before.shape, bool)
    for found in (others, mates):
        nearest = np.partition(found, 1, axis=2)
        unsure |= nearest[:, :, 1] - nearest[:, :, 0] < 1e-4
    s["other"], s["mate"] = others.argmin(2), mates.argmin(2)
    nearest = others.min(2)
    unsure |= np.abs(nearest - p.reach) < 1e-5
    s["tagged"] = ~tags & (nearest < p.reach)
    credited = (s["other"][:, None, :] == np.arange(len(tags))[:, None]) & s["tagged"][:, None, :]
    s["reward"] = np.where(s["tagged"], -1.0, credited.sum(2))

    def at(index: np.ndarray, field: np.ndarray) -> np.ndarray:
        return np.take_along_axis(field, index, 1)

    other, mate = s["other"], s["mate"]
    speeds = at(other, s["speed"]) / p.tagger_speed
    vectors = [
        ((0.5 * p.side - s["x"]) / 10, (0.5 * p.side - s["y"]) / 10),
        ((at(other, s["x"]) - s["x"]) / 10, (at(other, s["y"]) - s["y"]) / 10),
        (speeds * at(other, s["right"]), speeds * at(other, s["up"])),
        ((at(mate, s["x"]) - s["x"]) / 10, (at(mate, s["y"]) - s["y"]) / 10),
    ]
    parts = [part for vector in vectors for part in framed(s, *vector)]
    observation = np.stack([s["speed"] / p.tagger_speed, *parts], 2)
    unsure |= unsure.any(1, keepdims=True) & tags  # whose rewards may be for such runners
    return Outcome(s, s["reward"], observation, np.zeros(len(action), bool), unsure)


def trap_step(state: State, action: np.ndarray, p: Any) -> Outcome:
    """action [W]."""
    s = {name: field.astype(np.float64) for name, field in state.items()}
    voltage = np.clip(action, -1, 1)
    right, up = -pairs(s["x"]), -pairs(s["y"])
    strength = p.repulsion * (right**2 + up**2 + p.softening**2) ** -1.5
    s["pull_x"], s["pull_y"] = (strength * right).sum(2), (strength * up).sum(2)
    field = p.gradient * voltage[:, None]
    s["right"] = s["right"] + p.dt * (s["pull_x"] - field * s["x"])
    s["up"] = s["up"] + p.dt * (s["pull_y"] + field * s["y"])
    s["x"], s["y"] = s["x"] + p.dt * s["right"], s["y"] + p.dt * s["up"]
    s["squared"], s["voltage"] = s["x"] ** 2 + s["y"] ** 2, voltage
    farthest = s["squared"].max(1)
    means = [s["x"], s["y"], s["right"] / p.fast, s["up"] / p.fast, s["x"] ** 2, s["y"] ** 2]
    means += [s["x"] * s["right"] / p.fast, s["y"] * s["up"] / p.fast]
    observation = np.stack([*(field.mean(1) for field in means), farthest, voltage], 1)[:, None]
    unsure = np.broadcast_to(np.abs(farthest - 1.0)[:, None] < 1e-5, s["x"].shape)
    return Outcome(s, np.ones((len(voltage), 1)), observation, farthest > 1.0, unsure)
