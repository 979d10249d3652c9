"""Environments whose actions have several parts, or are no vectors."""

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

PARTS = {
    "which": Discrete(3, start=1),
    "where": Box(-1.0, 1.0, (1, 2), np.float32),
    "more": Tuple((MultiDiscrete([2, 3]), MultiBinary(2))),
}


class Hit(gymnasium.Env):
    """Choose the target that is seen, and the place where it is; 1.75 a step at best, for 20 steps."""

    observation_space = Box(-1.0, 1.0, (4,), np.float32)
    action_space = Dict(PARTS)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def _observe(self):
        self.target, self.place = int(self.np_random.integers(3)), self.np_random.uniform(-0.8, 0.8, 2)
        return np.array([self.target - 1, *self.place, 0.5], np.float32)

    def step(self, action):
        assert self.action_space.contains(action), action
        (_, kind), (side, _) = action["more"]
        hit = float(action["which"] == self.target + 1) - float(np.square(action["where"][0] - self.place).sum())
        hit += 0.5 * float(kind == self.target) + 0.25 * float(side == (self.place[0] > 0))
        self.steps += 1
        return self._observe(), hit, False, self.steps >= 20, {}

    def state_dict(self):
        """State that a resumed run goes on from."""
        return {"steps": self.steps, "target": self.target, "place": self.place.tolist()}

    def load_state_dict(self, state):
        """Go on from state_dict()."""
        self.steps, self.target, self.place = state["steps"], state["target"], np.array(state["place"])


class Masked(Hit):
    """Same as Hit, but only the target's number is allowed, and only one kind."""

    observation_space = Dict({"observation": Hit.observation_space, "action_mask": MultiBinary(8)})

    def _observe(self):
        observation = super()._observe()
        allowed = np.zeros(8, np.int8)
        # choices in the order of the space: a Dict's keys are sorted, so those of "more" come first
        allowed[[0, 2 + self.target, 5 + self.target]] = 1
        return {"observation": observation, "action_mask": allowed}

    def step(self, action):
        (first, kind), _ = action["more"]
        assert (first, kind, action["which"]) == (0, self.target, self.target + 1)
        return super().step(action)


class Grid(gymnasium.Env):
    """Actions of a Box of two dimensions, in whole numbers: the sum of all is wanted."""

    observation_space = Box(-1.0, 1.0, (2,), np.float32)
    action_space = Box(np.int32([[0, 0, -2], [0, 0, -2]]), np.int32([[4, 4, 2], [4, 4, 2]]), dtype=np.int32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        return np.zeros(2, np.float32), float(action.sum()), False, self.steps >= 10, {}


class Mover(gymnasium.Env):
    """Come close to a place in 20 steps, and stay there: leaps go far and end nearby, steps are short and exact.

    observation: own place, and the way to the other one. The reward is minus the distance, minus 0.2 for a leap.
    """

    observation_space = Box(-3.0, 3.0, (2,), np.float32)
    action_space = Dict({"how far": Box(-1.0, 1.0, (1,), np.float32), "mode": Discrete(2)})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        self.place, self.goal = self.np_random.uniform(-1, 1, 2)
        return self._observe(), {}

    def _observe(self):
        return np.array([self.place, self.goal - self.place], np.float32)

    def step(self, action):
        leap, far = bool(action["mode"]), float(action["how far"][0])
        way = 2 * far + self.np_random.uniform(-0.2, 0.2) if leap else 0.1 * far
        self.place = float(np.clip(self.place + way, -1, 1))
        self.steps += 1
        return self._observe(), -abs(self.goal - self.place) - 0.2 * leap, False, self.steps >= 20, {}

    def state_dict(self):
        """State that a resumed run goes on from."""
        return {"steps": self.steps, "place": self.place, "goal": self.goal}

    def load_state_dict(self, state):
        """Go on from state_dict()."""
        self.steps, self.place, self.goal = state["steps"], state["place"], state["goal"]
