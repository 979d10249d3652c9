"""Hybrid SAC: its losses against the paper's equations in float64, action masks, learning against plain torch."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.algorithms.discrete.hybrid_sac import HybridSAC, HybridSACConfig, actor_loss, critic_loss
from headrace.algorithms.objectives import Learned
from headrace.bindings.compiled.compiled_objectives import why_not
from headrace.core import fused
from headrace.data.flat_action import flat_action
from headrace.data.rollout import Group
from headrace.data.spaces import Box, Dict, Discrete, Tuple
from headrace.policies.discrete.hybrid_actor_q import HybridActorQ
from tests.envs.hybrid import Hit, Mover

CHOICES, START, SIZE, ROWS, TEMPERATURES = 3, 2, 2, 10, (0.3, 0.2)
LOW, HIGH = np.float32([-1, 0]), np.float32([3, 1])
SEEN = Box(-np.inf, np.inf, (4,))
ACTIONS = {  # the choice is first, last, or between two Boxes
    "first": Tuple((Discrete(CHOICES, start=START), Box(LOW, HIGH))),
    "last": Dict({"far": Box(LOW, HIGH), "mode": Discrete(CHOICES, start=START)}),
    "between": Tuple((Box(LOW[:1], HIGH[:1]), Discrete(CHOICES, start=START), Box(LOW[1:], HIGH[1:]))),
}
MASKED = Dict({"seen": SEEN, "action_mask": Box(0, 1, (CHOICES,), np.int8)})


def networks(place, seen=SEEN):
    space = flat_action(ACTIONS[place])
    policy, target = (HybridActorQ(seen, space, hidden=(8,), critic_hidden=(7, 6), seed=seed) for seed in (1, 2))
    with torch.no_grad():
        policy.actor_out.weight.mul_(40)  # so that choices are not equally likely
    return Learned(policy, target, torch.nn.Parameter(torch.tensor(TEMPERATURES).log()))


def batch(place):
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(ROWS, *shape, generator=generator)

    choice = torch.randint(START, START + CHOICES, (ROWS, 1), generator=generator).float()
    vector = torch.rand(ROWS, SIZE, generator=generator) * torch.tensor(HIGH - LOW) + torch.tensor(LOW)
    at = {"first": 0, "last": 2, "between": 1}[place]
    columns = {"observation": normal(4), "next_observation": normal(4), "reward": 3 * normal()}
    columns |= {
        "action": torch.cat((vector[:, :at], choice, vector[:, at:]), 1),
        "random": torch.rand(ROWS, 4, generator=generator),
    }
    columns |= {"discount": normal().abs().clamp(max=0.99), "weight": normal().abs() / ROWS}
    return columns, choice[:, 0].long().numpy() - START, (2 * (vector.double().numpy() - LOW) / (HIGH - LOW) - 1)


def dense(x, weight, bias):
    return x @ weight.detach().double().numpy() + bias.detach().double().numpy()


def actor(policy, seen, mask, random):
    """Probabilities [B, D], vectors [B, D, K] and log-densities [B, D] of one observation after the other."""
    hidden = np.maximum(dense(seen, policy.actor.layers[0].weight.t(), policy.actor.layers[0].bias), 0)
    output = dense(hidden, policy.actor_out.weight.t(), policy.actor_out.bias)
    weights = np.exp(output[:, :CHOICES]) * mask
    vectors, densities = np.zeros((ROWS, CHOICES, SIZE)), np.zeros((ROWS, CHOICES))
    for b in range(ROWS):
        radius = math.sqrt(-2 * math.log(1 - random[b, 0]))
        normal = [radius * math.cos(2 * math.pi * random[b, 1]), radius * math.sin(2 * math.pi * random[b, 1])]
        for d in range(CHOICES):
            own = output[b, CHOICES + 2 * SIZE * d :][: 2 * SIZE]
            for k in range(SIZE):
                x = own[k] + math.exp(own[SIZE + k]) * normal[k]
                vectors[b, d, k] = math.tanh(x)
                density = -(normal[k] ** 2) / 2 - own[SIZE + k] - 0.5 * math.log(2 * math.pi)
                densities[b, d] += density - math.log(1 - math.tanh(x) ** 2)
    return weights / weights.sum(1, keepdims=True), vectors, densities


def critics(policy, seen, vector):
    """Values of all choices by both critics, [2, B, D], with one vector [B, K]."""
    found = []
    for critic in range(2):
        x = np.concatenate((seen, vector), 1)
        for number, (weight, bias) in enumerate(zip(policy.critics.weights, policy.critics.biases, strict=True)):
            x = dense(x, weight[critic], bias[critic])
            x = x if number == 2 else np.maximum(x, 0)
        found.append(x)
    return np.array(found)


def lower(policy, seen, vectors):
    """The lower critic's value of each choice with its own vector, [B, D]."""
    each = [critics(policy, seen, vectors[:, d]).min(0)[:, d] for d in range(CHOICES)]
    return np.stack(each, 1)


@pytest.mark.parametrize("place", list(ACTIONS))
@pytest.mark.parametrize("masked", [False, True])
def test_the_losses_are_those_of_the_paper(place, masked):
    (given, choice, vector), config = batch(place), HybridSACConfig(target_choice_entropy=0.7, target_entropy=-1.5)
    found = networks(place, MASKED if masked else SEEN)
    policy, target, _ = found
    masks = {name: np.ones((ROWS, CHOICES)) for name in ("observation", "next_observation")}
    rows = given
    if masked:
        masks["observation"][::2, 1], masks["next_observation"][1::2, 0] = 0, 0
        of_both = {
            name: {"seen": given[name], "action_mask": torch.tensor(m).to(torch.int8)} for name, m in masks.items()
        }
        rows = given | {name: Group(members) for name, members in of_both.items()}
    of_critics, metrics = critic_loss(found, rows, config)
    of_actor, of_both = actor_loss(found, rows | metrics, config)
    seen, following = (given[name].double().numpy() for name in masks)
    random = given["random"].double().numpy()
    p, vectors, density = actor(policy, seen, masks["observation"], random[:, 2:])
    p_next, next_vectors, next_density = actor(policy, following, masks["next_observation"], random[:, :2])
    next_values, values = lower(target, following, next_vectors), lower(policy, seen, vectors)
    taken, (a_choice, a_vector) = critics(policy, seen, vector), TEMPERATURES
    of_choice, of_both_critics, of_both_temperatures = 0.0, 0.0, 0.0
    for b in range(ROWS):
        weight, allowed = float(given["weight"][b]), [d for d in range(CHOICES) if masks["observation"][b, d]]
        soft = sum(
            p_next[b, d] * (next_values[b, d] - a_choice * math.log(p_next[b, d]) - a_vector * next_density[b, d])
            for d in range(CHOICES)
            if masks["next_observation"][b, d]
        )
        y = float(given["reward"][b]) + float(given["discount"][b]) * soft
        of_both_critics += sum(0.5 * (taken[c, b, choice[b]] - y) ** 2 * weight for c in range(2))
        logs = {d: math.log(p[b, d]) for d in allowed}
        of_choice += weight * sum(
            p[b, d] * (a_choice * logs[d] + a_vector * density[b, d] - values[b, d]) for d in allowed
        )
        entropies = -sum(p[b, d] * logs[d] for d in allowed), -sum(p[b, d] * density[b, d] for d in allowed)
        of_both_temperatures += weight * math.log(a_choice) * (entropies[0] - 0.7 * math.log(len(allowed)))
        of_both_temperatures += weight * math.log(a_vector) * (entropies[1] + 1.5)
    assert of_critics.item() == pytest.approx(of_both_critics, rel=1e-4)
    assert of_both["actor_loss"].item() == pytest.approx(of_choice, rel=1e-4)
    assert of_both["ent_coef_loss"].item() == pytest.approx(of_both_temperatures, rel=1e-4)
    assert of_actor.item() == pytest.approx(of_choice + of_both_temperatures, rel=1e-4)
    of_actor.backward()
    assert all(x.grad.isfinite().all() and x.grad.any() for x in policy.actor_parameters())


@torch.no_grad()
@pytest.mark.parametrize("place", list(ACTIONS))
def test_acting_follows_the_distribution_and_the_mask(place):
    policy = networks(place, MASKED).policy
    rows, space = 4_000, ACTIONS[place]
    mask = torch.ones(rows, CHOICES, dtype=torch.int8)
    mask[rows // 2 :, 0] = 0
    observation = Group({"seen": torch.full((rows, 4), 0.3), "action_mask": mask})
    random = torch.rand(rows, policy.num_draws, generator=torch.Generator().manual_seed(0))
    choices, normals = policy.actor_output(policy.encoder(observation), observation)
    probability, uniform = choices.log_probs.exp()[:, [0, -1]].t(), torch.tensor([[1 / 3] * 3, [0, 0.5, 0.5]])
    for explored, expected in ((0.0, probability), (1.0, uniform)):
        policy.random.fill_(explored)
        for act in (policy.act, policy.act_without_exploration):
            action = act(observation, None, random).action
            assert all(space.contains(one) for one in policy.action_space.each(action.numpy()[:20]))
            choice, vector = policy.split_action(action)
            own = expected if act == policy.act else probability
            for half, part in zip(choice.split(rows // 2), own, strict=True):
                assert torch.allclose(torch.bincount(half, minlength=CHOICES) / len(half), part, atol=0.04)
            if act == policy.act and explored:
                assert torch.allclose(vector.abs().mean(0), torch.full((SIZE,), 0.5), atol=0.03)
                continue
            for d in range(1, CHOICES):  # the vector of each choice is of its own normal
                x = vector[choice == d].clamp(-0.999999, 0.999999).atanh()
                mean, log_std = normals[d, :, 0].split(SIZE)
                assert torch.allclose(x.mean(0), mean, atol=0.15) and torch.allclose(x.std(0).log(), log_std, atol=0.1)
    best = policy.act(observation, None, None).action
    choice, vector = policy.split_action(best)
    assert torch.equal(choice, choices.log_probs.argmax(0))
    assert torch.allclose(vector[0], normals[choice[0], :SIZE, 0].tanh(), atol=1e-5)


OPTIONS = {"num_envs": 4, "hidden": (8,), "batch_size": 32, "learning_starts": 40, "total_steps": 300}
OPTIONS |= {"progress": "none", "registered": False, "num_steps": 2}


def test_learning_is_compiled_and_equals_plain_torch():
    ends = []
    for plain in (False, True):
        with fused.plain_only(plain):
            trainer = hr.Trainer("hybrid_sac", Mover, **OPTIONS)
            while trainer.algorithm.updates < 16:
                trainer.iterate()
            algorithm = trainer.algorithm
            assert (
                why_not(algorithm.objectives()[0], 32, 1, algorithm.config) is None
                and algorithm.policy.random.item() == 0
            )
            flat = [algorithm.optimizers[name].flat for name in ("actor", "critics", "temperature")]
            ends.append(torch.cat((*flat, algorithm.buffers["target"])))
            trainer.close()
    assert torch.allclose(*ends, atol=1e-4) and not torch.equal(*ends)


def test_it_resumes_bit_for_bit_and_its_policy_takes_whole_actions(tmp_path):
    run = hr.train("hybrid_sac", Mover, **OPTIONS, save_freq=100, log_folder=str(tmp_path))
    again = hr.train(resume=next(run.path.glob("step_1*")), env=Mover, progress="none")
    assert all(map(torch.equal, run.policy.state_dict().values(), again.policy.state_dict().values()))
    action, _ = hr.load(run.path).predict(np.zeros(2, np.float32))
    assert Mover.action_space.contains(action)
    with pytest.raises(TypeError, match="its actions are of several kinds, Dict"):
        hr.export(run, "onnx", tmp_path / "policy.onnx")


@pytest.mark.parametrize("settings", [{"recurrent": "gru", "sequence_length": 4}, {"intrinsic": "rnd"}, {"n_steps": 3}])
def test_what_other_algorithms_with_a_replay_buffer_have(settings):
    trainer = hr.Trainer("hybrid_sac", Mover, **OPTIONS, **settings)
    while not trainer.algorithm.updates:
        result = trainer.iterate()
    assert all(math.isfinite(x) for x in result.metrics.values())
    trainer.close()


def test_other_actions_are_refused():
    for space in (Box(-1, 1, (2,)), flat_action(Hit.action_space), flat_action(Tuple((Discrete(2), Discrete(3))))):
        with pytest.raises(TypeError, match="a Dict or Tuple of one Discrete space and Boxes, got"):
            HybridSAC.build(HybridSACConfig(), SEEN, space, 0, "cpu")
    with pytest.raises(TypeError, match="every dimension of an action needs bounds"):
        HybridSAC.build(HybridSACConfig(), SEEN, flat_action(Tuple((Discrete(2), Box(-1, np.inf, (1,))))), 0, "cpu")
