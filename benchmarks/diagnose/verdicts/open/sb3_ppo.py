from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv  # noqa: F401
from task import Rate, Task


class Stop(BaseCallback):
    def _on_training_start(self):
        self.rate = Rate()

    def _on_step(self):
        return self.rate.more(4)


if __name__ == "__main__":
    env = make_vec_env(lambda: Task(cost=0.003), n_envs=4, vec_env_cls=DummyVecEnv)
    PPO("MlpPolicy", env, n_steps=64, batch_size=256, device="cpu").learn(10**9, callback=Stop())
