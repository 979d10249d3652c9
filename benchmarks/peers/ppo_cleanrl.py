"""PPO in plain torch in a single file, in the style of CleanRL: one loop that shows all there is.

Written for this benchmark. Its choices are those of CleanRL's ppo.py: Gymnasium's SyncVectorEnv with an episode
recorder on each environment, orthogonal weights, Adam with an epsilon of 1e-5, advantages normalised in each minibatch,
truncation taken as termination. The value loss is not clipped, as it is not in the others.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

from benchmarks.peers import ENV, After, Work, facts

torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # the first one loads modules, which is importing


class Agent(nn.Module):
    def __init__(self, observations: int, actions: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.critic = network((observations, *hidden, 1), last_gain=1.0)
        self.actor = network((observations, *hidden, actions), last_gain=0.01)

    def act(self, observation: torch.Tensor, action: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        choice = Categorical(logits=self.actor(observation))
        if action is None:
            action = choice.sample()
        return action, choice.log_prob(action), choice.entropy(), self.critic(observation).flatten()


def network(sizes: tuple[int, ...], last_gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes[:-1]):
        layers += [orthogonal(nn.Linear(inputs, outputs), 2**0.5), nn.Tanh()]
    return nn.Sequential(*layers, orthogonal(nn.Linear(*sizes[-2:]), last_gain))


def orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def make_env() -> gymnasium.Env:
    return gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(ENV))


def advantages_of(
    work: Work, rewards: torch.Tensor, values: torch.Tensor, dones: torch.Tensor, following: torch.Tensor
) -> torch.Tensor:
    """GAE of a rollout, [T, N]. dones: [T + 1, N], whether the episode had ended before a step. following: the values
    after the last step."""
    advantages, advantage = torch.zeros_like(rewards), torch.zeros_like(following)
    for step in reversed(range(work.num_steps)):
        alive = 1 - dones[step + 1]
        error = rewards[step] + work.gamma * following * alive - values[step]
        advantage = error + work.gamma * work.gae_lambda * alive * advantage
        advantages[step], following = advantage, values[step]
    return advantages


def loss_of(agent: Agent, work: Work, clip: float | torch.Tensor, batch: list[torch.Tensor]) -> torch.Tensor:
    """PPO's loss of a minibatch."""
    b_observation, b_action, b_log_prob, b_advantage, b_return = batch
    _, log_prob, entropy, value = agent.act(b_observation, b_action)
    ratio = (log_prob - b_log_prob).exp()
    b_advantage = (b_advantage - b_advantage.mean()) / (b_advantage.std() + 1e-8)
    policy_loss = torch.max(-b_advantage * ratio, -b_advantage * ratio.clamp(1 - clip, 1 + clip)).mean()
    value_loss = 0.5 * ((value - b_return) ** 2).mean()
    return policy_loss + work.value_coef * value_loss - work.entropy_coef * entropy.mean()


def train(
    work: Work, seed: int, every: int, after: After, compiled: Callable[..., Any] = lambda function: function
) -> dict[str, Any]:
    """See peers. compiled: what is done to the functions that torch may compile."""
    np.random.seed(seed)
    torch.manual_seed(seed)
    envs = gymnasium.vector.SyncVectorEnv(
        [make_env] * work.num_envs, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP
    )
    agent = Agent(envs.single_observation_space.shape[0], envs.single_action_space.n, work.hidden)
    optimizer = torch.optim.Adam(agent.parameters(), lr=work.learning_rate, eps=1e-5)
    act_of, gae, loss = compiled(agent.act), compiled(advantages_of), compiled(loss_of)
    shape, rows = (work.num_steps, work.num_envs), work.num_steps * work.num_envs
    observations = torch.zeros(*shape, *envs.single_observation_space.shape)
    actions, log_probs, rewards, dones, values = (torch.zeros(shape) for _ in range(5))
    next_observation = torch.tensor(envs.reset(seed=seed)[0])
    next_done = torch.zeros(work.num_envs)
    steps, clip = 0, work.clip

    def act(observation: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return agent.actor(torch.as_tensor(observation)).argmax(1).numpy()

    while True:
        if work.falling_over:
            left = max(0.0, 1 - steps / work.falling_over)
            optimizer.param_groups[0]["lr"], clip = left * work.learning_rate, left * work.clip

        for step in range(work.num_steps):
            observations[step], dones[step] = next_observation, next_done
            with torch.no_grad():
                action, log_probs[step], _, values[step] = act_of(next_observation)
            actions[step] = action
            observation, reward, terminated, truncated, _ = envs.step(action.numpy())
            rewards[step] = torch.tensor(reward)
            next_observation = torch.tensor(observation)
            next_done = torch.tensor(np.logical_or(terminated, truncated), dtype=torch.float32)
        steps += rows

        with torch.no_grad():
            next_value = agent.critic(next_observation).flatten()
            advantages = gae(work, rewards, values, torch.cat((dones, next_done.unsqueeze(0))), next_value)
            returns = advantages + values

        batch = [x.reshape(rows, *x.shape[2:]) for x in (observations, actions, log_probs, advantages, returns)]
        order = np.arange(rows)
        for _ in range(work.epochs):
            np.random.shuffle(order)
            for start in range(0, rows, work.minibatch_size):
                chosen = order[start : start + work.minibatch_size]
                of_batch = loss(agent, work, clip, [x[chosen] for x in batch])
                optimizer.zero_grad()
                of_batch.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), work.max_grad_norm)
                optimizer.step()

        if after(steps, act) or (work.falling_over and steps >= work.falling_over):
            break
    envs.close()
    parameters = sum(parameter.numel() for parameter in agent.parameters())
    return facts(*work[:4], (work.gamma, work.gae_lambda), parameters)
