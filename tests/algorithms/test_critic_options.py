"""Atoms, normalisation, weight decay and the noise of each episode of TD3's and SAC's networks, and the preset that
has them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.off_policy_oracle import ACTIONS, CENTER, HALF, OBSERVATIONS, made_up, normals, squashed
from torch.nn import functional

import headrace as hr
from headrace.algorithms import sac, td3
from headrace.algorithms.crossq import CrossQConfig
from headrace.algorithms.objectives import Learned, mean_weights, split_batches
from headrace.core import fused
from headrace.policies.actor_q import ActorQ
from headrace.training.config import read_toml

V_MIN, V_MAX, ATOMS = -2.0, 3.0, 6
SUPPORT = np.linspace(V_MIN, V_MAX, ATOMS)
OF_ATOMS = {"num_atoms": ATOMS, "v_min": V_MIN, "v_max": V_MAX}
OPTIONS = {"num_envs": 4, "hidden": (16,), "critic_hidden": (16, 8), "batch_size": 32, "learning_starts": 40}
OPTIONS |= {"total_steps": 300, "progress": "none", "registered": False}
NEW = [OF_ATOMS, {"norm": "layer"}, {"norm": "rms"}, {"weight_decay": 10.0}]
OF_TD3 = {"exploration": 0.01, "exploration_max": 0.4, "noise_autocorrelation": 0.5}


pytestmark = pytest.mark.usefixtures("one_thread")


def learner(kind, config):
    """An algorithm whose critics' distributions are far from uniform, and whose target is not the policy."""
    algorithm = kind.build(replace(config, hidden=(8,), **OF_ATOMS), OBSERVATIONS, ACTIONS, 0, "cpu")
    with torch.no_grad():
        algorithm.policy.actor_out.weight.mul_(50)
        algorithm.networks.critic_optimizer.flat.mul_(3)
        algorithm.networks.target_critics.copy_(2 - algorithm.networks.critic_optimizer.flat)
    return algorithm


def distributions(policy, observation, action):
    """[B, ATOMS] of each critic, in float64."""
    found = []
    for c in range(2):
        x = torch.cat([observation, action], 1).double()
        *hidden, (weight, bias) = zip(policy.critics.weights, policy.critics.biases, strict=True)
        for inner, offset in hidden:
            x = (x @ inner[c].double() + offset[c].double()).clamp(min=0)
        found.append((x @ weight[c].double() + bias[c].double()).softmax(1).detach().numpy())
    return found


def cross_entropy(algorithm, batch, next_action, log_prob, temperature=0.0):
    """Atom by atom: of each row the critic with the lower value is the target of both."""
    taken = (batch["action"] - CENTER) / HALF
    own = distributions(algorithm.policy, batch["observation"], taken)
    following = distributions(algorithm.networks.target, batch["next_observation"], next_action)
    values, total, lower = [p @ SUPPORT for p in following], 0.0, []
    for b in range(len(taken)):
        lower.append(int(values[1][b] < values[0][b]))
        wanted = np.zeros(ATOMS)
        for p, z in zip(following[lower[-1]][b], SUPPORT, strict=True):
            entropic = z - temperature * log_prob[b].item()
            moved = float(batch["reward"][b]) + float(batch["discount"][b]) * entropic
            place = min(max(moved, V_MIN), V_MAX) - V_MIN  # atoms are 1 apart
            wanted[math.floor(place)] += p * (math.floor(place) + 1 - place)
            wanted[min(math.floor(place) + 1, ATOMS - 1)] += p * (place - math.floor(place))
        total -= sum((wanted * np.log(p[b])).sum() for p in own) * float(batch["weight"][b])
    assert 0 < sum(lower) < len(lower), "both critics are the lower one somewhere"
    return total


def minibatch(draws):
    batches = made_up(1)
    (batch,) = split_batches(batches)
    random = torch.rand(16, draws, generator=torch.Generator().manual_seed(1))
    return batch._asdict() | {"weight": mean_weights(batch.weight), "random": random}


def test_td3s_critics_learn_the_projected_distribution_of_the_lower_one():
    algorithm, batch = learner(td3.TD3, td3.TD3Config(target_noise=0.6)), minibatch(4)
    policy, target = algorithm.policy, algorithm.networks.target
    smoothing = (0.6 * normals(batch["random"])).clamp(-0.5, 0.5)
    next_action = (target.best_action(batch["next_observation"]) + smoothing).clamp(-1, 1).float()
    networks = Learned(policy, target)
    loss, _ = td3.critic_loss(networks, batch, algorithm.config)
    assert loss.item() == pytest.approx(cross_entropy(algorithm, batch, next_action, torch.zeros(16)), rel=1e-5)
    climbed, _ = td3.actor_loss(networks, batch, algorithm.config)
    action = policy.best_action(batch["observation"])
    lowest = np.minimum(*(p @ SUPPORT for p in distributions(policy, batch["observation"], action)))
    assert climbed.item() == pytest.approx(-(lowest @ batch["weight"].double().numpy()), rel=1e-5)


def test_sacs_critics_learn_it_with_the_entropy():
    algorithm, batch = learner(sac.SAC, sac.SACConfig(temperature=0.3)), minibatch(8)
    policy = algorithm.policy
    output = policy.actor_output(batch["next_observation"]).t().double()
    next_action, log_prob = squashed(output, batch["random"][:, :4])
    networks = Learned(policy, algorithm.networks.target, algorithm.log_temperature)
    loss, _ = sac.critic_loss(networks, batch, algorithm.config)
    wanted = cross_entropy(algorithm, batch, next_action.float(), log_prob, 0.3)
    assert loss.item() == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_normalisation_is_torchs(norm):
    policy = ActorQ(OBSERVATIONS, ACTIONS, hidden=(6, 5), norm=norm)
    for parameter in policy.critics.parameters():  # gains and shifts, too
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(parameter.numel()))
    seen, action = torch.randn(7, 3), torch.rand(7, 3)
    for c, own in enumerate(policy.critics(seen, action)):
        x = torch.cat([seen, action], 1)
        for i, (weight, bias) in enumerate(zip(policy.critics.weights, policy.critics.biases, strict=True)):
            x = x @ weight[c] + bias[c]
            if i < 2:
                gain, size = policy.critics.gains[i][c, 0], x.shape[1:]
                shift = policy.critics.shifts[i][c, 0] if norm == "layer" else None
                x = (
                    functional.rms_norm(x, size, gain, 1e-5)
                    if shift is None
                    else functional.layer_norm(x, size, gain, shift)
                )
                x = x.relu()
        torch.testing.assert_close(own, x[:, 0])
    kinds = {type(module) for module in policy.actor.norms}
    assert kinds == {{"layer": torch.nn.LayerNorm, "rms": torch.nn.RMSNorm}[norm]} and len(policy.actor.norms) == 2


@pytest.mark.parametrize(("name", "options"), [(n, o) for n in ("td3", "sac") for o in NEW] + [("td3", OF_TD3)])
def test_learning_is_compiled_and_equals_plain_torch(name, options, monkeypatch):
    ends = []
    for plain in (False, True):
        with fused.plain_only(plain):
            trainer = hr.Trainer(name, "Pendulum-v1", **OPTIONS, **options)
            if not plain:
                monkeypatch.setattr("headrace.algorithms.objectives.backward", None)  # plain torch would call it
            while trainer.algorithm.updates < 4:
                trainer.iterate()
            monkeypatch.undo()
            found = trainer.algorithm.networks
            ends.append(torch.cat((found.actor_optimizer.flat, found.critic_optimizer.flat, found.target_critics)))
            trainer.close()
    assert torch.allclose(*ends, atol=1e-4)


@pytest.mark.parametrize("options", [OF_ATOMS | OF_TD3 | {"weight_decay": 0.1}, {"norm": "layer"}, {"norm": "rms"}])
def test_it_resumes_bit_for_bit_and_exports(tmp_path, options):
    run = hr.train("td3", "Pendulum-v1", **OPTIONS, **options, save_freq=100, log_folder=str(tmp_path))
    again = hr.train(resume=next(run.path.glob("step_1*")), progress="none")
    assert all(map(torch.equal, run.policy.state_dict().values(), again.policy.state_dict().values()))
    hr.export(run, to="numpy", output=tmp_path / "policy.py")  # which compares their outputs


def test_each_episode_has_a_deviation_of_its_own():
    config = td3.TD3Config(hidden=(8,), exploration=0.1, exploration_max=0.5)
    policy = td3.TD3.build(config, OBSERVATIONS, ACTIONS, 0, "cpu").policy
    policy.random.zero_()
    envs, steps = 40, 600
    state, seen = policy.initial_state(envs), torch.zeros(envs, 3)
    best, found = policy.act(seen, None, None).action, []
    generator = torch.Generator().manual_seed(0)
    drawn = set()
    for t in range(steps):
        random = torch.rand(envs, policy.num_draws, generator=generator)
        action, _, _, state = policy.act(seen, state, random)
        drawn.add(tuple(state[:, 0].tolist()))
        found.append((action - best) / HALF)
        if t == steps // 2 - 1:
            before, state = torch.stack(found).std((0, 2)), state * 0  # as episodes begin
            found.clear()
    assert len(drawn) == 2 and policy.num_draws == 6
    after = torch.stack(found).std((0, 2))
    for deviations in (before, after):
        assert 0.09 < deviations.min() < 0.14 and 0.43 < deviations.max() < 0.52
    assert torch.corrcoef(torch.stack((before, after)))[0, 1].abs() < 0.5
    torch.testing.assert_close(after, 0.1 + 0.4 * state[:, 0], atol=0.03, rtol=0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: td3.TD3Config(num_atoms=0), "num_atoms must be 1 or more, got 0"),
        (lambda: sac.SACConfig(num_atoms=5, v_min=1, v_max=1), "v_min must be below v_max, got 1 and 1"),
        (lambda: td3.TD3Config(weight_decay=-1), "weight_decay must be 0 or more"),
        (lambda: td3.TD3Config(norm="batch"), "norm must be"),
        (lambda: td3.TD3Config(exploration=0.3, exploration_max=0.3), "exploration_max must be above exploration, 0.3"),
        (lambda: CrossQConfig(norm="layer"), "batch renormalisation: leave norm='layer' out"),
        (lambda: ActorQ(OBSERVATIONS, ACTIONS, norm="batch"), "unknown norm 'batch'"),
        (lambda: ActorQ(OBSERVATIONS, ACTIONS, exploration_per_episode=True), "is for deterministic=True"),
        (
            lambda: td3.TD3(ActorQ(OBSERVATIONS, ACTIONS, deterministic=True), td3.TD3Config(exploration_max=1.0)),
            "make it with exploration_per_episode=True",
        ),
        (
            lambda: td3.TD3(ActorQ(OBSERVATIONS, ACTIONS, deterministic=True), td3.TD3Config(**OF_ATOMS)),
            "critics of this policy have one output each, and the algorithm learns critics with 6",
        ),
        (
            lambda: td3.TD3(
                ActorQ(OBSERVATIONS, ACTIONS, deterministic=True, quantiles=6, support=(0, 1)),
                td3.TD3Config(**OF_ATOMS),
            ),
            r"make the policy with support=\(-2.0, 3.0\)",
        ),
    ],
)
def test_what_does_not_go_together_is_named(make, said):
    with pytest.raises((ValueError, TypeError), match=said):
        make()


def test_the_preset_trains_from_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"env": "Pendulum-v1", "total_steps": 4_000, "gradient_steps": 1, "progress": "none"}
    run = hr.train("td3", **given, config="fasttd3", log_folder=str(tmp_path))
    settings = read_toml(run.path / "config.toml")
    assert (settings["num_atoms"], settings["exploration_max"], settings["gradient_steps"]) == (21, 0.4, 1)
    assert run.metrics["critic_loss"] > 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert read_toml("fasttd3")["batch_size"] == 32_768 and "gpu" not in read_toml("fasttd3")
    with pytest.raises(FileNotFoundError, match=r"no file slowtd3 of settings, nor a preset \(fasttd3\)"):
        hr.Trainer("td3", "Pendulum-v1", config="slowtd3")
    with pytest.raises(ValueError, match="closest is td3 with config=fasttd3"):
        hr.Trainer("fasttd3", "Pendulum-v1")
