"""Load a trained policy and use it in a loop of your own: load_and_act.py RUN

RUN is the folder of a run on CartPole-v1, which `headrace train ppo CartPole-v1` prints.
"""

import sys

import gymnasium
import numpy as np

import headrace as hr

policy = hr.load(sys.argv[1])

env = gymnasium.make("CartPole-v1")
observation, _ = env.reset(seed=0)
total, over = 0.0, False
while not over:
    observation, reward, terminated, truncated, _ = env.step(policy.predict(observation)[0])
    total, over = total + float(reward), terminated or truncated
print(f"one observation at a time: return {total:.0f}")

batch = np.random.default_rng(0).uniform(-0.05, 0.05, (5, 4)).astype(np.float32)
print("five at once:", policy.predict(batch)[0])
print("five at once, sampled from the policy's distribution:", policy.predict(batch, deterministic=False)[0])
