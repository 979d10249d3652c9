"""Random rollouts of a fresh on-policy algorithm, and what its equations give in float64 by obvious loops."""

import torch

from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, Discrete, action_column, env_columns


def rehearsed(kind, config, action_space=Discrete(3), envs=12, seed=0):  # noqa: B008 (not changed)
    """An algorithm with a policy whose outputs vary, and a rollout of it with endings and masked steps."""
    algorithm = kind.build(config, Box(-1, 1, (3,)), action_space, seed, "cpu")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        algorithm.policy.actor_out.weight.mul_(100)
    columns = env_columns(Box(-1, 1, (3,))) | {"action": action_column(action_space)} | algorithm.columns()
    rollout = Rollout(config.num_steps, envs, columns)
    rollout.observation.copy_(torch.randn(rollout.observation.shape, generator=generator))
    rollout.reward.copy_(torch.randn(rollout.reward.shape, generator=generator))
    rollout.valid.fill_(True)
    rollout.terminated[2, ::3], rollout.truncated[4, 1::3] = True, True
    rollout.valid[3, ::3] = rollout.valid[5, 1::3] = False
    rollout.reward[~rollout.valid[:-1]] = 0
    with torch.no_grad():
        for t in range(config.num_steps):
            random = torch.rand(envs, algorithm.policy.num_draws, generator=generator)
            decision = algorithm.policy.act(rollout.observation[t], None, random)
            rollout.action[t], rollout.log_prob[t], rollout.value[t] = decision[:3]
        rollout.value[-1] = algorithm.policy.value(rollout.observation[-1])
    return algorithm, rollout


def returns_by_loop(rollout, gamma, gae_lambda):
    """Advantages and returns in float64, [T, N] each, one step and one env at a time."""
    reward, value = rollout.reward.double(), rollout.value.double()
    advantage = torch.zeros_like(reward)
    for n in range(rollout.num_envs):
        following = 0.0
        for t in reversed(range(rollout.num_steps)):
            ended = rollout.terminated[t, n] or rollout.truncated[t, n]
            future = 0.0 if rollout.terminated[t, n] else value[t + 1, n]
            delta = reward[t, n] + gamma * future - value[t, n]
            following = delta + (0.0 if ended else gamma * gae_lambda * following)
            advantage[t, n] = following
    return advantage, advantage + value[:-1]


def vtrace_by_loop(rollout, ratio, value, config):
    """V-trace's advantages and targets in float64, [T, N] each, one step and one env at a time: eq. 1 of the paper in
    the recursive form of its remark 1. ratio [T, N], value [T + 1, N]: of the policy as it is now."""
    reward, target = rollout.reward.double(), value.clone()
    advantage = torch.zeros_like(reward)
    for n in range(rollout.num_envs):
        for t in reversed(range(rollout.num_steps)):
            rho = min(config.clip_rho, ratio[t, n])
            c = config.gae_lambda * min(config.clip_c, ratio[t, n])
            future = 0.0 if rollout.terminated[t, n] else value[t + 1, n]
            delta = rho * (reward[t, n] + config.gamma * future - value[t, n])
            beyond = target[t + 1, n] - value[t + 1, n]
            if rollout.terminated[t, n] or rollout.truncated[t, n]:
                beyond = 0.0
            target[t, n] = value[t, n] + delta + config.gamma * c * beyond
            advantage[t, n] = delta + rho * config.gamma * config.gae_lambda * beyond
    return advantage, target[:-1]


def rows_of(rollout):
    """Observations, actions and which count, one row for each step and env."""
    observation = rollout.observation[:-1].reshape(-1, 3).double()
    return observation, rollout.action.reshape(-1).long(), rollout.valid[:-1].reshape(-1)


def doubles(policy):
    """The policy's parameters in float64, by name."""
    return {name: p.detach().double().clone() for name, p in policy.named_parameters()}


def log_probs(weights, observation):
    """log-probabilities [R, K] of a tanh actor with one hidden layer."""
    hidden = torch.tanh(observation @ weights["actor.layers.0.weight"].T + weights["actor.layers.0.bias"])
    logits = hidden @ weights["actor_out.weight"].T + weights["actor_out.bias"]
    return logits - logits.exp().sum(1, keepdim=True).log()


def values(weights, observation):
    """Values [R] of a tanh critic with one hidden layer."""
    hidden = torch.tanh(observation @ weights["critic.layers.0.weight"].T + weights["critic.layers.0.bias"])
    return (hidden @ weights["critic_out.weight"].T + weights["critic_out.bias"])[:, 0]


class SlowAdam:
    """Adam by its paper's algorithm 1, in float64, with clipping of the gradient's norm."""

    def __init__(self, weights, rate, max_norm):
        self.weights, self.rate, self.max_norm, self.steps = weights, rate, max_norm, 0
        self.moments = {name: (torch.zeros_like(w), torch.zeros_like(w)) for name, w in weights.items()}

    def step(self, gradients):
        norm = sum((g**2).sum() for g in gradients.values()) ** 0.5
        self.steps += 1
        for name, g in gradients.items():
            g = g * min(1.0, self.max_norm / norm)
            m, v = self.moments[name]
            m.mul_(0.9).add_(0.1 * g)
            v.mul_(0.999).add_(0.001 * g * g)
            mean, square = m / (1 - 0.9**self.steps), v / (1 - 0.999**self.steps)
            self.weights[name] -= self.rate * mean / (square.sqrt() + 1e-5)


def gradients_of(loss, weights):
    """Gradient of a scalar in each of the weights; zeros where it does not depend on one."""
    found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    return {name: torch.zeros_like(w) if g is None else g for (name, w), g in zip(weights.items(), found, strict=True)}
