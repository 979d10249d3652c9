import gymnasium
import torch
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, Model
from skrl.trainers.torch import SequentialTrainer
from task import Rate, Task

torch.set_num_threads(1)
rate = Rate()


class Counted(Task):
    def step(self, action):
        rate.tick()
        return super().step(action)


class Policy(CategoricalMixin, Model):
    def __init__(self, *spaces):
        Model.__init__(self, observation_space=spaces[0], action_space=spaces[1], device="cpu")
        CategoricalMixin.__init__(self)
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 256), torch.nn.ELU(), torch.nn.Linear(256, 3))

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {}


class Value(DeterministicMixin, Model):
    def __init__(self, *spaces):
        Model.__init__(self, observation_space=spaces[0], action_space=spaces[1], device="cpu")
        DeterministicMixin.__init__(self)
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 256), torch.nn.ELU(), torch.nn.Linear(256, 1))

    def compute(self, inputs, role):
        return self.net(inputs["observations"]), {}


env = wrap_env(gymnasium.vector.SyncVectorEnv([Counted] * 4))
spaces = env.observation_space, env.action_space
memory = RandomMemory(memory_size=32, num_envs=4, device="cpu")
models = {"policy": Policy(*spaces), "value": Value(*spaces)}
cfg = PPO_CFG(rollouts=32, learning_epochs=16, mini_batches=4)
cfg.experiment.write_interval = cfg.experiment.checkpoint_interval = 0
agent = PPO(models=models, memory=memory, observation_space=spaces[0], action_space=spaces[1], device="cpu", cfg=cfg)
SequentialTrainer(
    cfg={"timesteps": 10**7, "disable_progressbar": True, "headless": True}, env=env, agents=agent
).train()
