"""Train on an environment written for Gymnasium, by its class; an id such as "LunarLander-v3" works as well:
gymnasium_env.py [STEPS]"""

import sys

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

import headrace as hr


class Thermostat(gymnasium.Env):
    """Keep a room at 20 degrees by switching a heater on and off."""

    observation_space = Box(-2.0, 2.0, (1,))  # difference from 20 degrees, in tens of degrees
    action_space = Discrete(2)  # off, on

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.temperature = 0, self.np_random.uniform(10.0, 30.0)
        return self._observation(), {}

    def step(self, action):
        self.temperature += 1.0 * action - 0.05 * (self.temperature - 10.0)
        self.steps += 1
        return self._observation(), -abs(self.temperature - 20.0) / 10.0, False, self.steps == 50, {}

    def _observation(self):
        return np.array([(self.temperature - 20.0) / 10.0], np.float32)


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    run = hr.train("ppo", Thermostat, num_envs=16, num_steps=64, total_steps=steps, learning_rate=1e-3, seed=1)
    print(run.evaluate(episodes=20))
