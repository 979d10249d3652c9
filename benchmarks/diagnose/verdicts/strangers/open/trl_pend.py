"""DDPG on Pendulum, TorchRL building blocks, own outer loop."""
import argparse

import torch
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import nn
try:
    from torchrl.collectors import Collector
except ImportError:
    from torchrl.collectors import SyncDataCollector as Collector
from torchrl.data import ListStorage, TensorDictReplayBuffer
from torchrl.envs import Compose, DoubleToFloat, GymEnv, RewardScaling, RewardSum, StepCounter, TransformedEnv
from torchrl.modules import MLP, AdditiveGaussianModule, TanhModule, ValueOperator
from torchrl.objectives import DDPGLoss, SoftUpdate


def get_env():
    return TransformedEnv(
        GymEnv("Pendulum-v1"),
        Compose(DoubleToFloat(), StepCounter(max_steps=200), RewardScaling(0.0, 0.1), RewardSum()),
    )


def main(a):
    torch.set_num_threads(1)
    torch.manual_seed(a.seed)
    env = get_env()
    spec = env.action_spec
    actor = TensorDictSequential(
        TensorDictModule(MLP(out_features=1, num_cells=[64, 64], in_features=3), ["observation"], ["action"]),
        TanhModule(in_keys=["action"], spec=spec),
    )
    critic = ValueOperator(MLP(out_features=1, num_cells=[128, 128], in_features=4, activation_class=nn.ReLU),
                           in_keys=["observation", "action"])
    noisy = TensorDictSequential(actor, AdditiveGaussianModule(spec, sigma_init=0.4, sigma_end=0.1, annealing_num_steps=50_000))

    loss_fn = DDPGLoss(actor, critic, loss_function="l2", delay_actor=True, delay_value=True)
    loss_fn.make_value_estimator(gamma=0.98)
    target = SoftUpdate(loss_fn, eps=0.99)
    opt_a = torch.optim.Adam(loss_fn.actor_network_params.flatten_keys().values(), lr=3e-4)
    opt_c = torch.optim.Adam(loss_fn.value_network_params.flatten_keys().values(), lr=1e-3)

    replay = TensorDictReplayBuffer(storage=ListStorage(a.capacity), batch_size=a.batch)
    source = Collector(env, noisy, frames_per_batch=a.chunk, total_frames=a.frames, init_random_frames=400)
    seen = 0
    best = []
    for data in source:
        seen += data.numel()
        replay.extend(data.reshape(-1))
        noisy[-1].step(a.chunk)
        ended = data["next", "done"].squeeze(-1)
        best += data["next", "episode_reward"][ended].flatten().tolist()
        if seen >= 400:
            for _ in range(a.updates):
                batch = replay.sample()
                out = loss_fn(batch)
                opt_c.zero_grad()
                opt_a.zero_grad()
                (out["loss_value"] + out["loss_actor"]).backward()
                opt_c.step()
                opt_a.step()
                target.step()
        if best and seen % 1000 < a.chunk:
            print(seen, "return", round(10 * sum(best[-10:]) / len(best[-10:]), 1), flush=True)
    source.shutdown()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--frames", type=int, default=4_000_000)
    p.add_argument("--chunk", type=int, default=20)
    p.add_argument("--updates", type=int, default=4)
    p.add_argument("--batch", type=int, default=256)
    p.add_argument("--capacity", type=int, default=100_000)
    p.add_argument("--seed", type=int, default=0)
    main(p.parse_args())
