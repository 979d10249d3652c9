import torch
from task import Rate, Task
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OffPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.space_info import SpaceInfo

torch.set_num_threads(1)
rate = Rate()


class Counted(Task):
    def step(self, action):
        rate.tick()
        return super().step(action)


train, test = DummyVectorEnv([Counted] * 4), DummyVectorEnv([lambda: Task(length=200)] * 4)
info = SpaceInfo.from_env(Task())
net = Net(
    state_shape=info.observation_info.obs_shape, action_shape=info.action_info.action_shape, hidden_sizes=[64, 64]
)
policy = DiscreteQLearningPolicy(model=net, action_space=Task.action_space, eps_training=0.1)
algorithm = DQN(policy=policy, optim=AdamOptimizerFactory(lr=1e-3))
collector = Collector(algorithm, train, VectorReplayBuffer(20_000, 4))
EPISODES = 12
algorithm.run_training(
    OffPolicyTrainerParams(
        training_collector=collector,
        test_collector=Collector(algorithm, test),
        max_epochs=10_000,
        epoch_num_steps=200,
        collection_step_num_env_steps=20,
        update_step_num_gradient_steps_per_sample=0.1,
        batch_size=64,
        test_step_num_episodes=EPISODES,
        show_progress=False,
        verbose=False,
    )
)
