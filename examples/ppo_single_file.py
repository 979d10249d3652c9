"""PPO in one file of plain torch, on Headrace's vector environments: ppo_single_file.py [--env-id ID] [--num-envs N]

Nothing of Headrace's algorithms is used: read it from top to bottom, and change what you like. The environments are a
gymnasium.vector.VectorEnv, so that replacing the line that makes them runs it on any other one.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import tyro
from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal

import headrace as hr


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    """an environment that headrace.make_vec() takes"""
    num_envs: int = 64
    """environments that are stepped together"""
    total_timesteps: int = 300_000
    """steps of all environments together"""
    num_steps: int = 32
    """steps of each environment in a rollout"""
    learning_rate: float = 1e-3
    """of Adam; falls linearly to 0"""
    gamma: float = 0.98
    """discount factor"""
    gae_lambda: float = 0.95
    """of generalised advantage estimation"""
    num_minibatches: int = 16
    """minibatches of an epoch"""
    update_epochs: int = 4
    """passes over each rollout"""
    clip_coef: float = 0.2
    """range around 1 in which the probability ratio is not clipped"""
    ent_coef: float = 0.0
    """weight of the entropy bonus"""
    vf_coef: float = 0.5
    """weight of the value loss"""
    max_grad_norm: float = 0.5
    """gradients are clipped to this norm"""
    seed: int = 1
    """of weights, episodes and actions"""


def layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """A linear layer with orthogonal weights, and biases of 0."""
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def network(inputs: int, outputs: int, last_gain: float) -> nn.Sequential:
    """Two hidden layers of 64 with tanh."""
    hidden = [part for a, b in pairwise((inputs, 64, 64)) for part in (layer(a, b, 2**0.5), nn.Tanh())]
    return nn.Sequential(*hidden, layer(64, outputs, last_gain))


class Agent(nn.Module):
    """An actor and a critic, for Discrete and Box actions."""

    def __init__(self, envs: VectorEnv) -> None:
        super().__init__()
        inputs = int(np.prod(envs.single_observation_space.shape))
        space: Any = envs.single_action_space
        self.continuous = isinstance(space, Box)
        outputs = int(np.prod(space.shape)) if self.continuous else int(space.n)
        self.critic = network(inputs, 1, 1.0)
        self.actor = network(inputs, outputs, 0.01)
        self.log_std = nn.Parameter(torch.zeros(outputs if self.continuous else 0))

    def distribution(self, observation: Tensor) -> Distribution:
        output = self.actor(observation)
        if self.continuous:
            return Independent(Normal(output, self.log_std.exp()), 1)
        return Categorical(logits=output)

    def value(self, observation: Tensor) -> Tensor:
        return self.critic(observation).flatten()


def train(args: Args, envs: VectorEnv) -> tuple[Agent, list[float], float]:
    """The agent, the returns of the last 100 episodes, and the steps per second, without the first rollout's."""
    torch.manual_seed(args.seed)
    agent = Agent(envs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    shape, rows = (args.num_steps, args.num_envs), args.num_steps * args.num_envs
    actions_shape = envs.single_action_space.shape or ()
    action_dtype = torch.float32 if agent.continuous else torch.int64
    observations = torch.zeros(*shape, *(envs.single_observation_space.shape or ()))
    actions = torch.zeros(*shape, *actions_shape, dtype=action_dtype)
    log_probs, rewards, dones, values = (torch.zeros(shape) for _ in range(4))
    finished: deque[float] = deque(maxlen=100)
    iterations = max(args.total_timesteps // rows, 1)
    next_observation = torch.as_tensor(envs.reset(seed=args.seed)[0])
    began = time.perf_counter()

    for iteration in range(iterations):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - iteration / iterations)
        if iteration == 1:
            began = time.perf_counter()

        for step in range(args.num_steps):
            observations[step] = next_observation
            with torch.no_grad():
                distribution = agent.distribution(next_observation)
                actions[step] = action = distribution.sample()
                log_probs[step], values[step] = distribution.log_prob(action), agent.value(next_observation)
            observation, reward, terminated, truncated, infos = envs.step(action.numpy())
            rewards[step] = torch.as_tensor(reward, dtype=torch.float32)
            dones[step] = torch.as_tensor(terminated | truncated, dtype=torch.float32)
            next_observation = torch.as_tensor(observation)
            if "episode" in infos:
                finished.extend(infos["episode"]["r"][infos["_episode"]].tolist())
            if truncated.any():  # the return goes on after the time limit: add the value of the final observation
                places = np.flatnonzero(truncated & ~terminated)
                if len(places):
                    finals = torch.as_tensor(np.stack([infos["final_obs"][place] for place in places]))
                    with torch.no_grad():
                        rewards[step, places] += args.gamma * agent.value(finals)

        with torch.no_grad():
            following, advantage = agent.value(next_observation), torch.zeros(args.num_envs)
            advantages = torch.zeros(shape)
            for step in reversed(range(args.num_steps)):
                alive = 1 - dones[step]
                error = rewards[step] + args.gamma * following * alive - values[step]
                advantages[step] = advantage = error + args.gamma * args.gae_lambda * alive * advantage
                following = values[step]
            returns = advantages + values

        batch = [x.flatten(0, 1) for x in (observations, actions, log_probs, advantages, returns)]
        for _ in range(args.update_epochs):
            for chosen in torch.randperm(rows).chunk(args.num_minibatches):
                loss = ppo_loss(agent, args, *(x[chosen] for x in batch))
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()

        if iteration % max(iterations // 10, 1) == 0 and finished:
            print(f"{(iteration + 1) * rows:>9,} steps, return {np.mean(finished):.1f}")

    seconds = time.perf_counter() - began
    return agent, list(finished), max(iterations - 1, 1) * rows / seconds


def ppo_loss(
    agent: Agent,
    args: Args,
    observation: Tensor,
    action: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    returns: Tensor,
) -> Tensor:
    """The clipped objective. Schulman et al. 2017, arXiv:1707.06347, eq. 7 and 9."""
    distribution = agent.distribution(observation)
    ratio = (distribution.log_prob(action) - old_log_prob).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = torch.max(-advantage * ratio, -advantage * clipped).mean()
    value_loss = (agent.value(observation) - returns).square().mean()
    return policy_loss + args.vf_coef * value_loss - args.ent_coef * distribution.entropy().mean()


if __name__ == "__main__":
    args = tyro.cli(Args)
    torch.set_num_threads(1)
    envs = hr.make_vec(args.env_id, args.num_envs, autoreset_mode="SameStep", episode_statistics=True)
    # before: envs = RecordEpisodeStatistics(SyncVectorEnv([lambda: gymnasium.make(args.env_id)] * args.num_envs,
    #                                                      autoreset_mode="SameStep"))
    _, finished, rate = train(args, envs)
    print(f"return {np.mean(finished):.1f} over {len(finished)} episodes, {rate:,.0f} steps/s")
    envs.close()
