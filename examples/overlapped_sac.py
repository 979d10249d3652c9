"""SAC that collects while it learns: an actor steps the environments with the policy before the last update.

overlapped_sac.py [STEPS]
"""

import sys

import headrace as hr

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
run = hr.train("sac", "Pendulum-v1", num_envs=4, actors=1, collection="overlapped", total_steps=steps, seed=1)
print(run)
print(run.evaluate(episodes=20))
