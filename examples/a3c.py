"""A3C: actors compute gradients by themselves, and each is applied as it comes: a3c.py [STEPS]

Mnih et al. 2016, arXiv:1602.01783. With collection="sync" it is A2C, computed by all actors together.
"""

import sys

import headrace as hr

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
run = hr.train(
    "a2c",
    "CartPole-v1",
    exchange="gradients",
    collection="async",
    actors=2,
    max_policy_lag=1,  # at most so many updates by the other actor while one computes a gradient
    total_steps=steps,
    seed=1,
)
print(run)
print(run.evaluate(episodes=100))
