"""TQC on Reacher with crash recovery: the cluster kills jobs, so keep the last state on disk."""
import os
import shutil
import tempfile

import gymnasium as gym
import torch as th
from sb3_contrib import TQC
from stable_baselines3.common.callbacks import BaseCallback, CallbackList


class KeepAlive(BaseCallback):
    def __init__(self, folder, every=10):
        super().__init__()
        self.folder, self.every = folder, every

    def _on_step(self):
        if self.n_calls % self.every == 0:
            tmp = os.path.join(self.folder, "state.part")
            self.model.save(tmp + ".zip")
            self.model.save_replay_buffer(tmp + ".pkl")
            for ext in (".zip", ".pkl"):
                os.replace(tmp + ext, os.path.join(self.folder, "state" + ext))
        return True


class Progress(BaseCallback):
    def __init__(self):
        super().__init__()
        self.total, self.done = 0.0, []

    def _on_step(self):
        self.total += float(self.locals["rewards"][0])
        if self.locals["dones"][0]:
            self.done.append(self.total)
            self.total = 0.0
            if len(self.done) % 20 == 0:
                print(self.num_timesteps, "episodes", len(self.done), "mean", sum(self.done[-20:]) / 20, flush=True)
        return True


def main():
    th.set_num_threads(1)
    folder = tempfile.mkdtemp(prefix="reach_")
    env = gym.make("Reacher-v5")
    model = TQC(
        "MlpPolicy", env, learning_rate=7e-4, buffer_size=20_000, batch_size=128, train_freq=16, gradient_steps=1,
        learning_starts=200, top_quantiles_to_drop_per_net=2, device="cpu", seed=4,
        policy_kwargs=dict(net_arch=[128, 128], n_critics=2, n_quantiles=15),
    )
    state = os.path.join(folder, "state.pkl")
    if os.path.exists(state):
        model.load_replay_buffer(state)
    try:
        model.learn(5_000_000, callback=CallbackList([KeepAlive(folder), Progress()]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
