import gymnasium
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env
from task import Rate, Task

register_env("task", lambda config: Task(cost=0.004))
config = (
    PPOConfig()
    .environment("task")
    .env_runners(num_env_runners=0, num_envs_per_env_runner=1, rollout_fragment_length=100)
    .learners(num_learners=0)
    .training(train_batch_size_per_learner=100, minibatch_size=50, num_epochs=1)
)
algorithm, rate = config.build_algo(), Rate()
assert gymnasium
while True:
    algorithm.train()
    rate.tick(100)
