"""PPO for HalfCheetah with skrl, four copies."""
import shutil
import tempfile

import gymnasium as gym
import torch
import torch.nn as nn
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from skrl.utils import set_seed


class Policy(GaussianMixin, Model):
    def __init__(self, observation_space, action_space, device):
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device=device)
        GaussianMixin.__init__(self, clip_actions=False, clip_log_std=True, min_log_std=-5, max_log_std=1)
        self.net = nn.Sequential(nn.Linear(self.num_observations, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(),
                                 nn.Linear(64, self.num_actions), nn.Tanh())
        self.log_std = nn.Parameter(torch.full((self.num_actions,), -0.5))

    def compute(self, inputs, role=""):
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Value(DeterministicMixin, Model):
    def __init__(self, observation_space, action_space, device):
        Model.__init__(self, observation_space=observation_space, action_space=action_space, device=device)
        DeterministicMixin.__init__(self, clip_actions=False)
        self.net = nn.Sequential(nn.Linear(self.num_observations, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(),
                                 nn.Linear(64, 1))

    def compute(self, inputs, role=""):
        return self.net(inputs["observations"]), {}


def configure(folder):
    cfg = PPO_CFG()
    cfg.rollouts = 64
    cfg.learning_epochs = 6
    cfg.mini_batches = 4
    cfg.discount_factor = 0.99
    cfg.learning_rate = 3e-4
    cfg.grad_norm_clip = 0.5
    cfg.ratio_clip = 0.2
    cfg.value_loss_scale = 0.5
    cfg.experiment.directory = folder
    cfg.experiment.write_interval = 2000
    cfg.experiment.checkpoint_interval = 20000
    return cfg


def main():
    set_seed(9)
    torch.set_num_threads(1)
    folder = tempfile.mkdtemp(prefix="skrl_")
    env = wrap_env(gym.make_vec("HalfCheetah-v5", num_envs=4, vectorization_mode="sync"))
    device = env.device
    memory = RandomMemory(memory_size=64, num_envs=env.num_envs, device=device)
    models = {
        "policy": Policy(env.observation_space, env.action_space, device),
        "value": Value(env.observation_space, env.action_space, device),
    }
    agent = PPO(models=models, memory=memory, cfg=configure(folder), device=device,
                observation_space=env.observation_space, action_space=env.action_space)
    trainer = SequentialTrainer(cfg={"timesteps": 3_000_000, "headless": True}, env=env, agents=agent)
    try:
        trainer.train()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
