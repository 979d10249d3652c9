import json
import os
import tempfile
import time

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, CheckpointCallback, EvalCallback
from stable_baselines3.common.monitor import Monitor

SECONDS = float(os.environ.get("SECONDS", 60))
SWITCH = {p: os.environ.get("ABLATE") == p for p in ("environment", "learning", "evaluation", "saving")}
REMEDY = os.environ.get("REMEDY") == "1"


class Still(gym.Env):
    observation_space = gym.spaces.Box(-8, 8, (3,), np.float32)
    action_space = gym.spaces.Box(-2, 2, (1,), np.float32)

    def __init__(self):
        self.n, self.o = 0, np.zeros(3, np.float32)

    def reset(self, seed=None, options=None):
        self.n = 0
        return self.o, {}

    def step(self, action):
        self.n += 1
        return self.o, 0.0, False, self.n % 200 == 0, {}


class StopWatch(BaseCallback):
    def _on_training_start(self):
        self.t0, self.mark = time.time(), None

    def _on_step(self):
        t = time.time() - self.t0
        if self.mark is None and t > 1:
            self.mark = (t, self.num_timesteps)
        self.end = (t, self.num_timesteps)
        return t < SECONDS


def main():
    torch.set_num_threads(1)
    out = tempfile.mkdtemp(prefix="pend_")
    env = Monitor(Still() if SWITCH["environment"] else gym.make("Pendulum-v1"))
    eval_env = Monitor(gym.make("Pendulum-v1"))
    model = PPO("MlpPolicy", env, n_steps=256, batch_size=64, n_epochs=6, gamma=0.95, verbose=0,
                seed=0, device="cpu")
    watch = StopWatch()
    callbacks = [watch]
    if not SWITCH["evaluation"]:
        callbacks.append(EvalCallback(eval_env, n_eval_episodes=5, eval_freq=2000 if REMEDY else 200,
                                      best_model_save_path=out, log_path=out, deterministic=True, verbose=0))
    if not SWITCH["saving"]:
        callbacks.append(CheckpointCallback(save_freq=1000, save_path=out, name_prefix="ppo"))
    if SWITCH["learning"]:
        model.train = lambda: None
    model.learn(total_timesteps=10_000_000, callback=CallbackList(callbacks))
    (t1, n1), (t2, n2) = watch.mark, watch.end
    print(json.dumps({"steps_per_second": (n2 - n1) / (t2 - t1)}))


if __name__ == "__main__":
    main()
