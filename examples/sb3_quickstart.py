"""Stable-Baselines3's quickstart with one import changed: sb3_quickstart.py [TIMESTEPS]"""

import sys

import gymnasium as gym

from headrace.sb3 import PPO  # before: from stable_baselines3 import PPO

timesteps = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
env = gym.make("CartPole-v1", render_mode="rgb_array")

model = PPO("MlpPolicy", env, verbose=1, seed=0)
model.learn(total_timesteps=timesteps)

vec_env = model.get_env()
obs = vec_env.reset()
returns = []
while len(returns) < 5:
    action, _state = model.predict(obs, deterministic=True)
    obs, reward, done, info = vec_env.step(action)
    if done[0]:
        returns.append(info[0]["episode"]["r"])
print("returns of 5 episodes:", *returns)
