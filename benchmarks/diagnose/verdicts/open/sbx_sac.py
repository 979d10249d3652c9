from sbx import SAC
from stable_baselines3.common.callbacks import BaseCallback
from task import Rate, Task


class Stop(BaseCallback):
    def _on_training_start(self):
        self.rate = Rate()

    def _on_step(self):
        return self.rate.more()


model = SAC("MlpPolicy", Task(continuous=True), learning_starts=50, policy_kwargs={"net_arch": [256, 256]})
model.learn(10**9, callback=Stop())
