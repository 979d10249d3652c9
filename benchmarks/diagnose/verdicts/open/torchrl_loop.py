import torch
from task import Rate, Task
from tensordict.nn import TensorDictModule
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper, SerialEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor

torch.set_num_threads(1)
if __name__ == "__main__":
    body = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3))
    module = TensorDictModule(body, in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(module, in_keys=["logits"], distribution_class=OneHotCategorical, return_log_prob=True)
    kind = SerialEnv
    envs = kind(2, lambda: GymWrapper(Task(cost=0.008)))
    collector = Collector(envs, actor, frames_per_batch=64, total_frames=-1)
    optimizer, rate = torch.optim.Adam(actor.parameters(), 1e-3), Rate()
    for batch in collector:
        dist = actor.get_dist(batch)
        loss = -(dist.log_prob(batch["action"]) * batch["next", "reward"][..., 0]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rate.tick(64)
