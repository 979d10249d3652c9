"""Discrete SAC: its losses against the paper's equations in float64, action masks, steps against torch's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.algorithms.discrete.discrete_sac import DiscreteSAC, DiscreteSACConfig, actor_loss, critic_loss
from headrace.algorithms.objectives import Learned
from headrace.bindings.compiled.compiled_objectives import why_not
from headrace.core import fused
from headrace.data.rollout import Group
from headrace.data.spaces import Box, Dict, Discrete
from headrace.policies.discrete.discrete_actor_q import DiscreteActorQ

ACTIONS, START, ROWS, TEMPERATURE = 3, 2, 10, 0.3
SPACES = Box(-np.inf, np.inf, (4,)), Discrete(ACTIONS, start=START)
MASKED = Dict({"seen": SPACES[0], "action_mask": Box(0, 1, (ACTIONS,), np.int8)}), SPACES[1]


def networks(spaces=SPACES):
    policy, target = (DiscreteActorQ(*spaces, hidden=(8,), critic_hidden=(7, 6), seed=seed) for seed in (1, 2))
    with torch.no_grad():
        policy.actor_out.weight.mul_(200)  # so that actions are not equally likely
    return Learned(policy, target, torch.nn.Parameter(torch.tensor([math.log(TEMPERATURE)])))


def batch():
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(ROWS, *shape, generator=generator)

    action = torch.randint(START, START + ACTIONS, (ROWS,), generator=generator).int()
    columns = {"observation": normal(4), "next_observation": normal(4), "action": action, "reward": 3 * normal()}
    return columns | {"discount": normal().abs().clamp(max=0.99), "weight": normal().abs() / ROWS}


def dense(x, weight, bias):
    return x @ weight.detach().double().numpy() + bias.detach().double().numpy()


def in_numpy(policy, observation, mask):
    """Probabilities [B, A], and the lower critic's and all critics' values [B, A], [2, B, A], in float64."""
    seen = observation.double().numpy()
    hidden = np.maximum(dense(seen, policy.actor.layers[0].weight.t(), policy.actor.layers[0].bias), 0)
    weights = np.exp(dense(hidden, policy.actor_out.weight.t(), policy.actor_out.bias)) * mask
    found = []
    for critic in range(2):
        x = seen
        for number, (weight, bias) in enumerate(zip(policy.critics.weights, policy.critics.biases, strict=True)):
            x = dense(x, weight[critic], bias[critic])
            x = x if number == 2 else np.maximum(x, 0)
        found.append(x)
    return weights / weights.sum(1, keepdims=True), np.min(found, 0), np.array(found)


@pytest.mark.parametrize("masked", [False, True])
def test_the_losses_are_those_of_the_paper(masked):
    given, config = batch(), DiscreteSACConfig(target_entropy=0.7)
    found = networks(MASKED if masked else SPACES)
    policy, target, _ = found
    mask, next_mask = np.ones((ROWS, ACTIONS)), np.ones((ROWS, ACTIONS))
    rows = given
    if masked:
        mask[::2, 1], next_mask[1::2, 0], mask[0] = 0, 0, [0, 0, 1]
        given["action"] = torch.full((ROWS,), START + 2, dtype=torch.int32)
        masks = {"observation": mask, "next_observation": next_mask}
        rows = given | {
            name: Group({"seen": given[name], "action_mask": torch.tensor(m, dtype=torch.int8)})
            for name, m in masks.items()
        }
    of_critics, metrics = critic_loss(found, rows, config)
    of_actor, of_both = actor_loss(found, rows | metrics, config)
    p, lower, values = in_numpy(policy, given["observation"], mask)
    p_next, _, _ = in_numpy(policy, given["next_observation"], next_mask)
    _, lower_next, _ = in_numpy(target, given["next_observation"], next_mask)
    critics, actor, temperature = 0.0, 0.0, 0.0
    for b in range(ROWS):
        weight, allowed = float(given["weight"][b]), [a for a in range(ACTIONS) if mask[b, a]]
        following = sum(
            p_next[b, a] * (lower_next[b, a] - TEMPERATURE * math.log(p_next[b, a]))
            for a in range(ACTIONS)
            if next_mask[b, a]
        )
        y = float(given["reward"][b]) + float(given["discount"][b]) * following
        critics += sum(0.5 * (values[c, b, int(given["action"][b]) - START] - y) ** 2 * weight for c in range(2))
        actor += weight * sum(p[b, a] * (TEMPERATURE * math.log(p[b, a]) - lower[b, a]) for a in allowed)
        entropy = -sum(p[b, a] * math.log(p[b, a]) for a in allowed)
        temperature += weight * math.log(TEMPERATURE) * (entropy - 0.7 * math.log(len(allowed)))
    assert of_critics.item() == pytest.approx(critics, rel=1e-4)
    assert of_both["actor_loss"].item() == pytest.approx(actor, rel=1e-4)
    assert of_both["ent_coef_loss"].item() == pytest.approx(temperature, rel=1e-4)
    assert of_actor.item() == pytest.approx(actor + temperature, rel=1e-4)
    of_actor.backward()
    assert all(x.grad is None for x in policy.critic_parameters())  # the actor's loss trains no critic
    assert all(x.grad.isfinite().all() and x.grad.any() for x in policy.actor_parameters())


def test_acting_follows_the_distribution_and_the_mask():
    policy = networks(MASKED).policy
    seen, mask = torch.zeros(4_000, 4), torch.ones(4_000, ACTIONS, dtype=torch.int8)
    mask[2_000:, 0] = 0
    observation = Group({"seen": seen, "action_mask": mask})
    random = torch.rand(4_000, 2, generator=torch.Generator().manual_seed(0))
    probability = policy.distribution(observation).log_probs.exp()[:, [0, -1]].t()
    for exploration, expected in ((0.0, probability), (1.0, torch.tensor([[1 / 3] * 3, [0, 0.5, 0.5]]))):
        policy.exploration.fill_(exploration)
        for act in (policy.act, policy.act_without_exploration):
            action = act(observation, None, random).action - START
            wanted = expected if act == policy.act else probability
            for half, part in zip(action.split(2_000), wanted, strict=True):
                found = torch.bincount(half.long(), minlength=ACTIONS) / len(half)
                assert torch.allclose(found, part, atol=0.04)


OPTIONS = {"num_envs": 4, "hidden": (8,), "batch_size": 32, "learning_starts": 40, "total_steps": 300}
OPTIONS |= {"progress": "none", "registered": False}


def test_learning_is_compiled_and_equals_plain_torch():
    ends = []
    for plain in (False, True):
        with fused.plain_only(plain):
            trainer = hr.Trainer("discrete_sac", "CartPole-v1", **OPTIONS)
            while trainer.algorithm.updates < 4:
                trainer.iterate()
            algorithm = trainer.algorithm
            assert (
                why_not(algorithm.objectives()[0], 32, 1, algorithm.config) is None
                and algorithm.policy.exploration.item() == 0
            )
            flat = [algorithm.optimizers[name].flat for name in ("actor", "critics", "temperature")]
            ends.append(torch.cat((*flat, algorithm.buffers["target"])))
            trainer.close()
    assert torch.allclose(*ends, atol=1e-4) and not torch.equal(*ends)


def test_it_resumes_bit_for_bit_and_exports(tmp_path):
    run = hr.train("discrete_sac", "CartPole-v1", **OPTIONS, save_freq=100, log_folder=str(tmp_path))
    again = hr.train(resume=next(run.path.glob("step_1*")), progress="none")
    assert all(map(torch.equal, run.policy.state_dict().values(), again.policy.state_dict().values()))
    hr.export(run, to="numpy", output=tmp_path / "policy.py")  # which compares their outputs


def test_other_actions_are_refused():
    with pytest.raises(TypeError, match="a logit for each of a Discrete space's actions, got Box"):
        DiscreteSAC.build(DiscreteSACConfig(), SPACES[0], Box(-1, 1, (2,)), 0, "cpu")
