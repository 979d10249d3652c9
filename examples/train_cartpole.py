"""Train PPO on CartPole and evaluate it on Gymnasium's CartPole: train_cartpole.py [STEPS]"""

import sys

import headrace as hr

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
run = hr.train("ppo", "CartPole-v1", total_steps=steps, target_return=475, seed=1)
print(run)
print(run.evaluate(episodes=100))
