"""Losses and gradient steps of TD3+BC, IQL and behaviour cloning against independent calculations in float64."""

from __future__ import annotations

import math
from copy import deepcopy

import numpy as np
import pytest
import torch
from torch.nn import functional

import headrace as hr
from headrace.algorithms.objectives import Learned, mean_weights
from headrace.algorithms.offline import bc, iql, td3_bc
from headrace.core import fused
from headrace.data.replay import Batch
from headrace.data.spaces import Box, Discrete, MultiDiscrete

ROWS, GAMMA = 12, 0.9
SEEN = Box(-np.inf, np.inf, (4,))
LOW, HIGH = np.array([-2.0, 0.0], np.float32), np.array([2.0, 6.0], np.float32)
ACTS = Box(LOW, HIGH)
CENTER, HALF = (LOW + HIGH) / 2, (HIGH - LOW) / 2
SMALL = {"hidden": (8,), "critic_hidden": (7, 6)}
CHOICES = Discrete(3, start=2)


def batches(number: int = 1, space=ACTS, rows: int = ROWS) -> Batch:
    """Batches [G, B], in which one row does not count."""
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(number, rows, *shape, generator=generator)

    if isinstance(space, Box):
        action = torch.rand(number, rows, 2, generator=generator) * torch.tensor(HIGH - LOW) + torch.tensor(LOW)
    else:
        action = torch.randint(2, 5, (number, rows), generator=generator).int()
    weight, discount = torch.ones(number, rows), torch.full((number, rows), GAMMA)
    weight[:, 3], discount[:, 5] = 0, 0
    return Batch(normal(4), action, 2 * normal(), discount, normal(4), weight, torch.zeros(number, rows))


def rows_of(found: Batch, g: int = 0) -> dict[str, torch.Tensor]:
    rows = {name: x[g] for name, x in found._asdict().items()}
    return rows | {"weight": mean_weights(rows["weight"])}


def counted(values: list[float]) -> float:
    """The mean over the rows that count."""
    return float(np.mean([x for row, x in enumerate(values) if row != 3]))


def as_lists(*tensors: torch.Tensor) -> list[list]:
    return [x.detach().double().tolist() for x in tensors]


def of_td3_bc(alpha: float = 2.5) -> td3_bc.TD3BC:
    config = td3_bc.TD3BCConfig(alpha=alpha, gamma=GAMMA, **SMALL)
    algorithm = td3_bc.TD3BC.build(config, SEEN, ACTS, 1, "cpu")
    with torch.no_grad():
        algorithm.policy.actor_out.weight.mul_(100)
    return algorithm


@pytest.mark.parametrize("alpha", [2.5, 0.0])
def test_the_actor_of_td3_bc_has_the_loss_of_the_paper(alpha):
    algorithm, rows = of_td3_bc(alpha), rows_of(batches())
    policy = algorithm.policy
    loss, metrics = td3_bc.actor_loss(Learned(policy, policy), rows, algorithm.config)
    action = policy.best_action(rows["observation"])
    values, actions = as_lists(policy.critic_values(rows["observation"], action)[0], action)
    size, recorded = counted([abs(x) for x in values]), ((rows["action"].numpy() - CENTER) / HALF).tolist()
    distance = [
        sum((x - y) ** 2 for x, y in zip(*pair, strict=True)) / 2 for pair in zip(actions, recorded, strict=True)
    ]
    wanted = counted([d - alpha / size * q for d, q in zip(distance, values, strict=True)])  # eq. 5, negated
    assert loss.item() == pytest.approx(wanted, rel=1e-4)
    assert metrics["bc_loss"].item() == pytest.approx(counted(distance), rel=1e-4)
    loss.backward()
    found = torch.cat([p.grad.flatten() for p in policy.actor_parameters()])
    with_fixed_size = (
        (action - torch.tensor(recorded)).square().mean(1)
        - alpha / size * policy.critic_values(rows["observation"], action)[0]
    ) @ rows["weight"]
    wanted = torch.autograd.grad(with_fixed_size, policy.actor_parameters())
    torch.testing.assert_close(found, torch.cat([x.flatten() for x in wanted]), rtol=1e-3, atol=1e-6)


def test_critics_of_td3_bc_are_those_of_td3():
    ours, theirs = of_td3_bc(), hr.TD3.build(hr.TD3Config(gamma=GAMMA, **SMALL), SEEN, ACTS, 1, "cpu")
    (of_critics, of_actor), _ = ours.objectives()
    (wanted, actor), _ = theirs.objectives()
    assert of_critics.loss is wanted.loss and of_actor.loss is not actor.loss
    assert (of_actor.every, of_actor.tau) == (actor.every, actor.tau) == (2, 0.005)


class Reference:
    """IQL by torch's own optimizers and distributions, in the order of the authors' code."""

    def __init__(self, algorithm: iql.IQL) -> None:
        self.policy, self.critics = deepcopy(algorithm.policy).double(), deepcopy(algorithm.networks.critics).double()
        self.target, self.config = deepcopy(algorithm.networks.target).double(), algorithm.config
        of_actor = [
            *self.policy.head.parameters(),
            *self.policy.actor.parameters(),
            *self.policy.actor_out.parameters(),
        ]
        of_value = [*self.policy.critic.parameters(), *self.policy.critic_out.parameters()]
        of_all = (of_value, of_actor, list(self.critics.critics.parameters()))
        self.optimizers = [torch.optim.Adam(p, algorithm.config.learning_rate, eps=1e-8) for p in of_all]

    def value(self, observation):
        return self.policy.critic_out(self.policy.critic(observation)).flatten()

    def q(self, networks, observation, action):
        """Both critics' values, by loops over their layers."""
        if isinstance(self.policy.action_space, Box):
            given = (action - torch.tensor(CENTER)) / torch.tensor(HALF)
        else:
            given = functional.one_hot(action.long() - 2, 3).double()
        found = []
        for c in range(2):
            x = torch.cat((observation, given), 1)
            layers = list(zip(networks.critics.weights, networks.critics.biases, strict=True))
            for number, (weight, bias) in enumerate(layers):
                x = x @ weight[c] + bias[c]
                x = x if number + 1 == len(layers) else x.relu()
            found.append(x.flatten())
        return found

    def log_prob(self, observation, action):
        output = self.policy.actor_out(self.policy.actor(observation))
        if not isinstance(self.policy.action_space, Box):
            return torch.distributions.Categorical(logits=output.t()).log_prob(action.long() - 2)
        mean = torch.tensor(CENTER) + output.t() * torch.tensor(HALF)
        normal = torch.distributions.Normal(mean, self.policy.head.log_std.exp() * torch.tensor(HALF))
        return normal.log_prob(action).sum(1)

    def step(self, rows):
        config, counts = self.config, rows["weight"] > 0
        rows = {name: (x.double() if x.dtype == torch.float32 else x)[counts] for name, x in rows.items()}
        seen, action = rows["observation"], rows["action"]
        q = torch.minimum(*self.q(self.target, seen, action)).detach()
        u = q - self.value(seen)
        losses = [((config.expectile - (u < 0).double()).abs() * u**2).mean()]  # eq. 5
        self._descend(0, losses[0])
        advantage = (q - self.value(seen)).detach()
        weights = (config.beta * advantage).exp().clamp(max=config.max_weight)
        losses.append(-(weights * self.log_prob(seen, action)).mean())  # eq. 7
        self._descend(1, losses[1])
        wanted = rows["reward"] + rows["discount"] * self.value(rows["next_observation"]).detach()
        losses.append(sum(((x - wanted) ** 2).mean() for x in self.q(self.critics, seen, action)))  # eq. 6
        self._descend(2, losses[2])
        with torch.no_grad():
            pairs = zip(self.target.critics.parameters(), self.critics.critics.parameters(), strict=True)
            for target, own in pairs:
                target.mul_(1 - config.tau).add_(config.tau * own)
        return dict(zip(("value_loss", "actor_loss", "critic_loss"), (x.item() for x in losses), strict=True))

    def _descend(self, number, loss):
        self.optimizers[number].zero_grad()
        loss.backward()
        self.optimizers[number].step()


@pytest.mark.parametrize("space", [ACTS, CHOICES])
@pytest.mark.parametrize("settings", [{}, {"expectile": 0.9, "beta": 20.0, "max_weight": 1.5, "tau": 0.3}])
def test_steps_of_iql_are_those_of_torch(space, settings):
    config = iql.IQLConfig(learning_rate=0.01, gamma=GAMMA, **SMALL, **settings)
    algorithm = iql.IQL.build(config, SEEN, space, 1, "cpu")
    reference, given = Reference(algorithm), batches(4, space)
    with fused.plain_only():
        metrics = algorithm.learn(given, torch.zeros(4, ROWS, 0))
    wanted = [reference.step(rows_of(given, g)) for g in range(4)]
    for name in wanted[0]:
        assert metrics[name].item() == pytest.approx(np.mean([each[name] for each in wanted]), rel=1e-4)
    of_both = ((algorithm.policy, reference.policy), (algorithm.networks.target.critics, reference.target.critics))
    for own, other in of_both:
        for (name, x), y in zip(own.named_parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(x.double(), y, rtol=2e-3, atol=2e-5, msg=name)


def test_the_value_of_iql_is_an_expectile():
    """V is the expectile of returns 0 and 1 that were recorded equally often: there the loss has no slope."""
    settings = {"expectile": 0.8, "beta": 2.0, "learning_rate": 0.01, "tau": 0.1, "hidden": (8,)}
    algorithm = iql.IQL.build(iql.IQLConfig(**settings), SEEN, CHOICES, 0, "cpu")
    steps, rows = 700, 8
    action = torch.arange(rows).remainder(2).int().expand(steps, -1) + 2
    none, ones = torch.zeros(steps, rows, 4), torch.ones(steps, rows)
    found = Batch(none, action, (action == 3).float(), 0 * ones, none, ones, 0 * ones)
    with fused.plain_only():
        algorithm.learn(found, torch.zeros(steps, rows, 0))
    assert algorithm.policy.value(torch.zeros(1, 4)).item() == pytest.approx(0.8, abs=0.02)  # 0.8 (1 - v) = 0.2 v
    assert algorithm.networks.target(none[0, :2], action[0, :2]).mean(0).tolist() == pytest.approx([0, 1], abs=0.02)
    prob = algorithm.policy.distribution(torch.zeros(1, 4)).log_probs.exp().flatten().tolist()
    assert prob[1] / prob[0] == pytest.approx(math.exp(2), rel=0.1) and prob[2] < 0.03


@pytest.mark.parametrize("space", [ACTS, CHOICES, MultiDiscrete([2, 3])])
def test_behaviour_cloning_has_the_likelihood_of_the_actions(space):
    algorithm = bc.BC.build(bc.BCConfig(hidden=(8,)), SEEN, space, 1, "cpu")
    rows = rows_of(batches(space=CHOICES if isinstance(space, Discrete) else ACTS))
    if isinstance(space, MultiDiscrete):
        rows["action"] = (rows["action"].abs() % 2).int()
    policy = algorithm.policy
    (objective,), networks = algorithm.objectives()
    loss, _ = objective.loss(networks, rows, algorithm.config)
    output = policy.actor_out(policy.actor(rows["observation"])).double()
    if isinstance(space, Box):
        std = policy.head.log_std.exp().double() * torch.tensor(HALF)
        each = torch.distributions.Normal(torch.tensor(CENTER) + output.t() * torch.tensor(HALF), std)
        wanted = each.log_prob(rows["action"]).sum(1)
    elif isinstance(space, Discrete):
        wanted = output.log_softmax(0).t()[range(ROWS), rows["action"].long() - 2]
    else:
        parts = [part.log_softmax(0).t() for part in output.split([2, 3])]
        wanted = sum(part[range(ROWS), rows["action"][:, i].long()] for i, part in enumerate(parts))
    assert loss.item() == pytest.approx(-counted(wanted.tolist()), rel=1e-4)
    loss.backward()
    assert all(p.grad is not None and p.grad.any() for p in policy.actor_parameters())
    assert not any(p.grad is not None and p.grad.any() for p in policy.critic.parameters())


def test_a_deterministic_policy_clones_by_squared_error():
    config = bc.BCConfig(hidden=(8,), deterministic=True)
    algorithm, rows = bc.BC.build(config, SEEN, ACTS, 1, "cpu"), rows_of(batches())
    (objective,), networks = algorithm.objectives()
    loss, _ = objective.loss(networks, rows, config)
    output = algorithm.policy.actor_out(algorithm.policy.actor(rows["observation"]))
    (acted,) = as_lists(output.tanh().t())
    recorded = ((rows["action"].numpy() - CENTER) / HALF).tolist()
    wanted = [sum((x - y) ** 2 for x, y in zip(*pair, strict=True)) / 2 for pair in zip(acted, recorded, strict=True)]
    assert loss.item() == pytest.approx(counted(wanted), rel=1e-4)
    assert not algorithm.policy.samples


def test_policies_that_do_not_fit_are_refused():
    actor_q = hr.ActorQ(SEEN, ACTS, hidden=(8,), deterministic=True)
    with pytest.raises(ValueError, match="IQL learns an ActorCritic without shared layers, got ActorQ"):
        iql.IQL(actor_q)
    with pytest.raises(ValueError, match="without shared layers"):
        iql.IQL(hr.ActorCritic(SEEN, ACTS, hidden=(8,), shared=True))
    with pytest.raises(ValueError, match=r"deterministic=False needs a policy with distribution\(\), which ActorQ has"):
        bc.BC(actor_q)
    with pytest.raises(ValueError, match=r"BC learns from single rows, and this policy is recurrent \(lstm\)"):
        bc.BC(hr.RecurrentActorCritic(SEEN, ACTS, hidden=(8,), recurrent="lstm"))
    of_both = bc.BC(hr.DiscreteActorQ(SEEN, CHOICES, hidden=(8,)))
    of_both.learn(batches(space=CHOICES), torch.zeros(1, ROWS, 0))


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        (iql.IQLConfig, {"expectile": 1.0}, r"expectile must lie in \(0, 1\), got 1.0"),
        (iql.IQLConfig, {"beta": -1.0}, "beta must be 0 or more"),
        (iql.IQLConfig, {"max_weight": 0.0}, "max_weight must be above 0"),
        (td3_bc.TD3BCConfig, {"alpha": -0.5}, "alpha must be 0 or more"),
        (bc.BCConfig, {"gradient_steps": 0}, "gradient_steps must be 1 or more, got 0"),
    ],
)
def test_settings_out_of_range_are_refused(kind, settings, words):
    with pytest.raises(ValueError, match=words):
        kind(**settings)
