"""Stable-Baselines3 (which has to be installed) on Headrace's environments, one line changed: sb3_vec_env.py [STEPS]"""

import sys

from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

from headrace.sb3 import make_vec_env  # before: from stable_baselines3.common.env_util import make_vec_env

timesteps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
env = make_vec_env("CartPole-v1", n_envs=64, seed=0)

model = PPO("MlpPolicy", env, n_steps=32, batch_size=256, n_epochs=4, learning_rate=1e-3, seed=0, device="cpu")
model.learn(total_timesteps=timesteps)
print("mean and standard deviation of 10 returns:", *evaluate_policy(model, env, n_eval_episodes=10))
