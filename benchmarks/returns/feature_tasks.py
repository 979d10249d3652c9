"""Tasks of feature_returns.py that no package has, in Gymnasium's interface, so that each library steps the same."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Mover(gymnasium.Env):
    """Come close to a place in 20 steps: leaps go far and end nearby, steps are short and exact. Hybrid actions."""

    observation_space = spaces.Box(-3.0, 3.0, (2,), np.float32)
    action_space = spaces.Dict({"how far": spaces.Box(-1.0, 1.0, (1,), np.float32), "mode": spaces.Discrete(2)})

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.place, self.goal = self.np_random.uniform(-1, 1, 2)
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        leap, far = bool(action["mode"]), float(action["how far"][0])
        way = 2 * far + self.np_random.uniform(-0.2, 0.2) if leap else 0.1 * far
        self.place = float(np.clip(self.place + way, -1, 1))
        self.steps += 1
        return self._observe(), -abs(self.goal - self.place) - 0.2 * leap, False, self.steps >= 20, {}

    def _observe(self) -> np.ndarray:
        return np.array([self.place, self.goal - self.place], np.float32)


class Matrix(gymnasium.Env):
    """Repeat the observed matrix for 20 steps: a Box of 2 x 3 actions. The best return is 0, that of zeros -6.7."""

    observation_space = spaces.Box(-1.0, 1.0, (6,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (2, 3), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._draw(), {}

    def step(self, action: Any) -> Any:
        reward = -float(np.mean((np.asarray(action).reshape(6) - self.seen) ** 2))
        self.steps += 1
        return self._draw(), reward, False, self.steps >= 20, {}

    def _draw(self) -> np.ndarray:
        self.seen = self.np_random.uniform(-1, 1, 6).astype(np.float32)
        return self.seen


class Doors(gymnasium.Env):
    """Find which of ten doors the observation means, for 20 steps. Three doors at most are open, and a closed one ends
    the episode. The best return is 20. The mask is in the infos, and what action_masks() returns."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(10)
    directions = np.random.default_rng(0).normal(size=(10, 4))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self._draw(), self._infos()

    def step(self, action: Any) -> Any:
        closed = not self.open[action]
        reward = float(not closed and action == self.best)
        self.steps += 1
        return self._draw(), reward, closed, self.steps >= 20, self._infos()

    def action_masks(self) -> np.ndarray:
        """The method that sb3-contrib asks for the mask."""
        return self.open

    def _infos(self) -> dict[str, Any]:
        return {"action_mask": self.open.astype(np.int8)}

    def _draw(self) -> np.ndarray:
        seen = self.np_random.uniform(-1, 1, 4).astype(np.float32)
        self.open = np.zeros(10, bool)
        self.open[self.np_random.choice(10, 3, replace=False)] = True
        self.best = int(np.argmax(np.where(self.open, self.directions @ seen, -np.inf)))
        return seen


class Bits(gymnasium.Env):
    """Turn ten bits into ten others within ten steps, one a step: a goal, and -1 for each step before it is reached."""

    observation_space = spaces.Dict(
        {name: spaces.Box(0.0, 1.0, (10,), np.float32) for name in ("observation", "achieved_goal", "desired_goal")}
    )
    action_space = spaces.Discrete(10)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.bits, self.goal = self.np_random.integers(0, 2, (2, 10)).astype(np.float32)
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.bits = self.bits.copy()
        self.bits[action] = 1 - self.bits[action]
        self.steps += 1
        reward = float(self.compute_reward(self.bits, self.goal, {}))
        return self._observe(), reward, reward == 0.0, self.steps >= 10, {"is_success": reward == 0.0}

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        """0 where the goal is reached, -1 elsewhere, of one step or of many."""
        return np.all(achieved_goal == desired_goal, axis=-1).astype(np.float32) - 1

    def _observe(self) -> dict[str, np.ndarray]:
        return {"observation": self.bits.copy(), "achieved_goal": self.bits, "desired_goal": self.goal.copy()}


def without_velocities(**options: Any) -> gymnasium.Env[Any, Any]:
    """CartPole-v1, of which the positions alone are observed: a task for recurrent policies."""
    env = gymnasium.make("CartPole-v1", **options)
    space = env.observation_space
    assert isinstance(space, spaces.Box)
    seen = spaces.Box(space.low[[0, 2]], space.high[[0, 2]])
    return gymnasium.wrappers.TransformObservation(env, lambda observation: observation[[0, 2]], seen)


def register() -> None:
    """Give them ids."""
    for name, entry in {"Mover": Mover, "Matrix": Matrix, "Doors": Doors, "Bits": Bits}.items():
        gymnasium.register(f"{name}-v0", entry)
    gymnasium.register("CartPoleWithoutVelocities-v0", without_velocities)
