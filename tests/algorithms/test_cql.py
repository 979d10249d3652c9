"""CQL: its losses against the paper's equations in float64, the estimate of all actions' values against an integral."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from headrace.algorithms.objectives import Learned, mean_weights
from headrace.algorithms.offline import cql, discrete_cql
from headrace.bindings.compiled.compiled_objectives import why_not
from headrace.core import fused
from headrace.data.replay import Batch
from headrace.data.rollout import Group
from headrace.data.spaces import Box, Dict, Discrete
from headrace.policies.actor_q import ActorQ
from headrace.policies.q_network import QNetwork

ROWS, GAMMA, SAMPLES, START = 12, 0.9, 3, 2
SEEN = Box(-np.inf, np.inf, (4,))
LOW, HIGH = np.array([-2.0, 0.0], np.float32), np.array([2.0, 6.0], np.float32)
ACTS, CHOICES = Box(LOW, HIGH), Discrete(3, start=START)


def batches(number=1, space=ACTS, draws=0):
    """Batches [G, B], in which one row does not count, and uniform draws."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(number, ROWS, *shape, generator=generator)

    if isinstance(space, Box):
        action = torch.rand(number, ROWS, 2, generator=generator) * torch.tensor(HIGH - LOW) + torch.tensor(LOW)
    else:
        action = torch.randint(START, START + 3, (number, ROWS), generator=generator).int()
    weight, discount = torch.ones(number, ROWS), torch.full((number, ROWS), GAMMA)
    weight[:, 3], discount[:, 5] = 0, 0
    found = Batch(normal(4), action, 2 * normal(), discount, normal(4), weight, torch.zeros(number, ROWS))
    return found, torch.rand(number, ROWS, draws, generator=generator)


def rows_of(found, random):
    rows = {name: x[0] for name, x in found._asdict().items()}
    return rows | {"weight": mean_weights(rows["weight"]), "random": random[0]}


def counted(values):
    """The mean over the rows that count."""
    return float(np.mean([x for row, x in enumerate(values) if row != 3]))


def dense(x, weight, bias):
    return x @ weight.detach().double().numpy() + bias.detach().double().numpy()


def sampled(policy, seen, random):
    """An action in half ranges and its log-density, of one observation."""
    hidden = np.maximum(dense(seen, policy.actor.layers[0].weight.t(), policy.actor.layers[0].bias), 0)
    output = dense(hidden, policy.actor_out.weight.t(), policy.actor_out.bias)
    radius, angle = math.sqrt(-2 * math.log(1 - random[0])), 2 * math.pi * random[1]
    action, density = [], 0.0
    for k, normal in enumerate((radius * math.cos(angle), radius * math.sin(angle))):
        action.append(math.tanh(output[k] + math.exp(output[2 + k]) * normal))
        density += -(normal**2) / 2 - output[2 + k] - 0.5 * math.log(2 * math.pi) - math.log(1 - action[-1] ** 2)
    return action, density


def q_values(policy, seen, action):
    """Both critics' values of one observation and action."""
    found = []
    for critic in range(2):
        x = np.concatenate((seen, action))
        for number, (weight, bias) in enumerate(zip(policy.critics.weights, policy.critics.biases, strict=True)):
            x = dense(x, weight[critic], bias[critic][0])
            x = x if number == 2 else np.maximum(x, 0)
        found.append(float(x[0]))
    return found


def of_cql(**settings):
    config = cql.CQLConfig(hidden=(8,), critic_hidden=(7, 6), gamma=GAMMA, num_samples=SAMPLES, **settings)
    return cql.CQL.build(config, SEEN, ACTS, 1, "cpu")


def test_the_critics_have_the_loss_of_the_paper():
    algorithm = of_cql(alpha=2.0)
    target = ActorQ(SEEN, ACTS, hidden=(8,), critic_hidden=(7, 6), seed=5)
    policy, rows = algorithm.policy, rows_of(*batches(draws=algorithm.num_draws()))
    networks = Learned(policy, target, algorithm.log_temperature)
    loss, metrics = cql.critic_loss(networks, rows, algorithm.config)
    random, seen, following, action = (
        rows[name].double().numpy() for name in ("random", "observation", "next_observation", "action")
    )
    assert random.shape == (ROWS, 2 * 2 + SAMPLES * (2 + 2))
    recorded = (action - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2)
    td_losses, gaps = [], []
    for b in range(ROWS):
        next_action, _ = sampled(policy, following[b], random[b, :2])
        y = float(rows["reward"][b]) + float(rows["discount"][b]) * min(q_values(target, following[b], next_action))
        own, sums = q_values(policy, seen[b], recorded[b]), np.zeros(2)
        for k in range(SAMPLES):
            drawn, density = sampled(policy, seen[b], random[b, 4 + 2 * k :][:2])
            uniform = 2 * random[b, 4 + 2 * SAMPLES + 2 * k :][:2] - 1
            sums += np.exp(q_values(policy, seen[b], drawn)) / math.exp(density)
            sums += np.exp(q_values(policy, seen[b], uniform)) / 0.25
        td_losses.append(sum(0.5 * (q - y) ** 2 for q in own))
        gaps.append(sum(np.log(sums / (2 * SAMPLES)) - own))
    assert metrics["td_loss"].item() == pytest.approx(counted(td_losses), rel=1e-4)
    assert metrics["conservative_loss"].item() == pytest.approx(counted(gaps), rel=1e-4)
    assert loss.item() == pytest.approx(counted(td_losses) + 2 * counted(gaps), rel=1e-4)
    loss.backward()
    assert all(x.grad is None or not x.grad.any() for x in policy.actor_parameters())  # no gradient by the samples
    assert all(x.grad.any() for x in policy.critic_parameters())


@torch.no_grad()
def test_the_values_of_all_actions_are_estimated_without_bias():
    policy, number = of_cql().policy, 4_000
    seen = torch.randn(2, 4, generator=torch.Generator().manual_seed(3))
    random = torch.rand(2, number * 4, generator=torch.Generator().manual_seed(4))
    found = cql.log_sum_exp(policy, policy.encoder(seen), random, number)
    grid = torch.linspace(-1, 1, 201)[:-1] + 0.005
    points = torch.cartesian_prod(grid, grid)
    for b in range(2):
        values = policy.critics(policy.encoder(seen[b : b + 1]).expand(len(points), -1), points)
        wanted = values.logsumexp(1) + math.log(4 / len(points))
        assert torch.allclose(found[:, b], wanted, atol=0.03)


def test_the_actor_and_the_temperature_have_sacs_losses():
    algorithm = of_cql(target_entropy=-1.5)
    given, random = batches(draws=algorithm.num_draws())
    (_, of_actor), networks = algorithm.objectives()
    rows = rows_of(given, random)
    _, metrics = of_actor.loss(networks, rows, algorithm.config)
    wanted, entropies = [], []
    for b in range(ROWS):
        seen = rows["observation"][b].double().numpy()
        action, density = sampled(algorithm.policy, seen, rows["random"][b, 2:4].double().numpy())
        wanted.append(density - min(q_values(algorithm.policy, seen, action)))
        entropies.append(density - 1.5)
    assert metrics["actor_loss"].item() == pytest.approx(counted(wanted), rel=1e-4)
    assert metrics["ent_coef_loss"].item() == pytest.approx(-0.0 * counted(entropies), abs=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_values_of_discrete_actions_have_the_loss_of_the_paper(masked):
    space = Dict({"seen": SEEN, "action_mask": Box(0, 1, (3,), np.int8)}) if masked else SEEN
    policy, target = (QNetwork(space, CHOICES, hidden=(8,), seed=seed) for seed in (1, 2))
    rows = rows_of(*batches(space=CHOICES))
    masks = np.ones((2, ROWS, 3))
    given = dict(rows)
    if masked:
        masks[0, ::2, 0], masks[1, 1::2, 2] = 0, 0
        rows["action"] = torch.full((ROWS,), START + 1, dtype=torch.int32)
        given = dict(rows)
        for name, mask in zip(("observation", "next_observation"), masks, strict=True):
            given[name] = Group({"seen": rows[name], "action_mask": torch.tensor(mask).to(torch.int8)})
    config = discrete_cql.DiscreteCQLConfig(alpha=0.7)
    loss, metrics = discrete_cql.cql_loss(Learned(policy, target), given, config)

    def values(network, seen):
        hidden = np.maximum(dense(seen, network.trunk.layers[0].weight.t(), network.trunk.layers[0].bias), 0)
        return dense(hidden, network.out.weight.t(), network.out.bias)

    td_losses, gaps = [], []
    for b in range(ROWS):
        seen, following = (rows[name][b].double().numpy() for name in ("observation", "next_observation"))
        own, ahead = values(policy, seen), np.where(masks[1, b] > 0, values(policy, following), -np.inf)
        y = float(rows["reward"][b]) + float(rows["discount"][b]) * values(target, following)[ahead.argmax()]
        value = own[int(rows["action"][b]) - START]
        td_losses.append(0.5 * (value - y) ** 2)
        gaps.append(math.log(sum(math.exp(x) for x, allowed in zip(own, masks[0, b], strict=True) if allowed)) - value)
    assert metrics["conservative_loss"].item() == pytest.approx(counted(gaps), rel=1e-4)
    assert loss.item() == pytest.approx(counted(td_losses) + 0.7 * counted(gaps), rel=1e-4)


@pytest.mark.parametrize("kind", ["box", "discrete"])
def test_learning_is_compiled_and_equals_plain_torch(kind):
    ends = []
    for plain in (False, True):
        if kind == "box":
            algorithm = of_cql(learning_rate=0.01)
        else:
            config = discrete_cql.DiscreteCQLConfig(hidden=(8,), learning_rate=0.01)
            algorithm = discrete_cql.DiscreteCQL.build(config, SEEN, CHOICES, 1, "cpu")
        given = batches(4, ACTS if kind == "box" else CHOICES, algorithm.num_draws())
        with fused.plain_only(plain):
            algorithm.learn(*given)
        assert why_not(algorithm.objectives()[0], ROWS, 1, algorithm.config) is None
        ends.append(torch.cat([x.flatten() for x in (*algorithm.policy.parameters(), *algorithm.buffers.values())]))
    assert torch.allclose(*ends, atol=1e-4) and not torch.equal(*ends)


def test_settings_and_actions_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="num_samples must be 1 or more, got 0"):
        cql.CQLConfig(num_samples=0)
    with pytest.raises(ValueError, match="alpha must be 0 or more"):
        discrete_cql.DiscreteCQLConfig(alpha=-1.0)
    with pytest.raises(TypeError, match="actions must be of a Box"):
        cql.CQL.build(cql.CQLConfig(), SEEN, CHOICES, 0, "cpu")
