import tempfile

import gymnasium as gym
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.monitor import Monitor

if __name__ == "__main__":
    torch.set_num_threads(1)
    logs = tempfile.mkdtemp(prefix="ppo_pend_")

    class Scaled(gym.RewardWrapper):
        def reward(self, reward):
            return reward / 8.0

    def make():
        return Scaled(gym.make("Pendulum-v1", g=9.81))

    train_env = make_vec_env(make, n_envs=4, seed=42)
    held_out = Monitor(Scaled(gym.make("Pendulum-v1", g=9.81)))

    keeper = EvalCallback(
        held_out,
        best_model_save_path=logs,
        log_path=logs,
        eval_freq=256,
        n_eval_episodes=6,
        deterministic=True,
        verbose=1,
    )

    agent = PPO(
        "MlpPolicy",
        train_env,
        n_steps=256,
        batch_size=256,
        n_epochs=4,
        gamma=0.95,
        gae_lambda=0.9,
        learning_rate=1e-3,
        ent_coef=0.0,
        use_sde=False,
        policy_kwargs=dict(net_arch=dict(pi=[64, 64], vf=[64, 64])),
        seed=42,
        device="cpu",
        verbose=0,
    )
    print("logging to", logs, flush=True)
    agent.learn(total_timesteps=20_000_000, callback=keeper)
    agent.save(f"{logs}/final")
