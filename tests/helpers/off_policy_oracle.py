"""Shared by the tests of DDPG, TD3, SAC, TQC and CrossQ: made-up batches, slow networks in float64, plainly written."""

from __future__ import annotations

import math

import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from headrace.algorithms.objectives import take_steps
from headrace.core.fused import plain_only
from headrace.data.replay import Batch
from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, action_column, env_columns

OBSERVATIONS = Box(-1, 1, (3,))
ACTIONS = Box(-2.0, 4.0, (3,))  # of an odd number, not around 0: draws come in pairs, units must be told apart
CENTER, HALF = 1.0, 3.0


def made_up(steps=3, rows=16, seed=0):
    """Random batches [steps, rows], a fifth of whose rows are dead and a fifth terminated."""
    source = torch.Generator().manual_seed(seed)

    def uniform(*shape):
        return torch.rand(steps, rows, *shape, generator=source)

    discount = 0.9 * (uniform() > 0.2)
    observation, following = uniform(3) * 2 - 1, uniform(3) * 2 - 1
    action = uniform(3) * 6 - 2
    weight = (uniform() > 0.2).float()
    return Batch(
        observation, action, uniform(), discount, following, weight, torch.zeros(steps, rows, dtype=torch.int64)
    )


def with_garbage(batches):
    """The same batches with other numbers in rows that do not count."""
    dead = batches.weight == 0
    return batches._replace(
        reward=torch.where(dead, 1e3, batches.reward),
        observation=torch.where(dead.unsqueeze(-1), 0.5, batches.observation),
        action=torch.where(dead.unsqueeze(-1), 3.0, batches.action),
    )


def collected(algorithm, steps=40, envs=2, seed=0):
    """A rollout of made-up steps for an algorithm, with one ending and its masked step."""
    columns = env_columns(OBSERVATIONS) | {"action": action_column(ACTIONS)} | algorithm.columns()
    rollout = Rollout(steps, envs, columns)
    source = torch.Generator().manual_seed(seed)
    rollout.observation.copy_(torch.rand(rollout.observation.shape, generator=source))
    rollout.action.copy_(torch.rand(rollout.action.shape, generator=source))
    rollout.reward.copy_(torch.rand(rollout.reward.shape, generator=source))
    rollout.valid.fill_(True)
    rollout.terminated[5, 0], rollout.valid[6, 0] = True, False
    return rollout


def actor_layers(policy):
    """(weight [outputs, inputs], bias) of each layer, float64 leaves."""
    return [_leaves(layer.weight, layer.bias) for layer in (*policy.actor.layers, policy.actor_out)]


def critic_layers(critics):
    """The same of each critic."""
    pairs = list(zip(critics.weights, critics.biases, strict=True))
    return [[_leaves(weight[c].t(), bias[c, 0]) for weight, bias in pairs] for c in range(critics.number)]


def _leaves(*tensors):
    return tuple(tensor.detach().double().clone().requires_grad_() for tensor in tensors)


def copied(layers):
    """Layers that go their own way from now on."""
    return [_leaves(*pair) for pair in layers]


def forward(layers, x):
    """A relu network, one layer after the other."""
    for weight, bias in layers[:-1]:
        x = torch.clamp(x @ weight.T + bias, min=0)
    weight, bias = layers[-1]
    return x @ weight.T + bias


def q(layers, observation, action):
    """The value of each row."""
    return forward(layers, torch.cat([observation, action], 1))[:, 0]


def normals(random):
    """Three standard normals from four uniform draws of each row, by Box and Muller, one number after the other."""
    return torch.tensor(
        [
            [
                math.sqrt(-2 * math.log(1 - row[0])) * math.cos(2 * math.pi * row[2]),
                math.sqrt(-2 * math.log(1 - row[1])) * math.cos(2 * math.pi * row[3]),
                math.sqrt(-2 * math.log(1 - row[0])) * math.sin(2 * math.pi * row[2]),
            ]
            for row in random.double().tolist()
        ],
        dtype=torch.float64,
    )


def squashed(output, random):
    """Actions and log-densities of torch's own squashed normal, of an actor's output."""
    mean_, log_std = output.chunk(2, dim=1)
    std = log_std.clamp(-20, 2).exp()
    x = mean_ + std * normals(random)
    distribution = TransformedDistribution(Normal(mean_, std), [TanhTransform(cache_size=1)])
    action = distribution.transforms[0](x)
    return action, distribution.log_prob(action).sum(1)


def mean(x, weight):
    """Mean over rows that count."""
    return sum(a * b for a, b in zip(x, weight.double(), strict=True)) / max(1, int((weight > 0).sum()))


def adam(*groups, rate):
    """torch's own optimizer of layers."""
    return torch.optim.Adam([tensor for layers in groups for pair in layers for tensor in pair], rate, eps=1e-8)


def follow(slow, fast, tau):
    """target = (1 - tau) target + tau network, one tensor after the other."""
    with torch.no_grad():
        for mine, theirs in zip(slow, fast, strict=True):
            for a, b in zip(mine, theirs, strict=True):
                a.copy_((1 - tau) * a + tau * b)


def climb(optimizer, output, value, invert):
    """One step of an actor up value(tanh(output)), with tanh's derivative written out. Returns the loss."""
    action = torch.tanh(output).detach().requires_grad_()
    loss = -value(action)
    (gradient,) = torch.autograd.grad(loss, action)
    slope = 1 - action.detach() ** 2
    if invert:  # not towards the middle: a step down this gradient
        slope = torch.where(gradient.sign() == action.detach().sign(), 1.0, slope)
    step(optimizer, (output * gradient * slope).sum())
    return loss


def step(optimizer, loss):
    """One step down a loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def same_layers(mine, theirs, tolerance=2e-6):
    """Raise where layers differ by more than float32 allows."""
    for a, b in zip(mine, theirs, strict=True):
        for x, y in zip(a, b, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=tolerance)


def take(algorithm, batches, random, since=0, tau=None):
    """Gradient steps of an algorithm on each of G batches in plain PyTorch: see take_steps().

    tau: [G], how far target networks move after each step; None for the config's.
    """
    objectives, networks = algorithm.objectives()
    if tau is not None:
        objectives = [each._replace(tau=tau) for each in objectives]
    with plain_only():
        return take_steps(objectives, networks, batches, random, algorithm.config, since)
