"""Train on a thousand different CartPoles at once, so that the policy generalises to other poles:
domain_randomisation.py [STEPS]"""

import sys

import numpy as np

import headrace as hr

NUM_ENVS = 1024
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000

random = np.random.default_rng(0)
params = {
    "half_length": random.uniform(0.25, 1.0, NUM_ENVS),  # m: a value for each environment
    "pole_mass": random.uniform(0.05, 0.3, NUM_ENVS),  # kg
    "gravity": 9.8,  # m/s^2: one value for all
}
envs = hr.make("CartPole-v1", NUM_ENVS, params=params)
run = hr.train("ppo", envs, total_steps=steps, num_steps=32, minibatch_size=4096, learning_rate=1e-3, seed=1)
print(run.evaluate(episodes=20))  # on Gymnasium's CartPole: half_length 0.5 m, pole_mass 0.1 kg
