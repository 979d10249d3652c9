import torch
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.monitor import Monitor
from task import Rate, Task

torch.set_num_threads(1)


class Stop(BaseCallback):
    def _on_training_start(self):
        self.rate = Rate()

    def _on_step(self):
        return self.rate.more()


watcher = EvalCallback(Monitor(Task(length=100)), eval_freq=200, n_eval_episodes=10, verbose=0)
model = DQN("MlpPolicy", Monitor(Task()), learning_starts=100)
model.learn(10**9, callback=[watcher, Stop()])
