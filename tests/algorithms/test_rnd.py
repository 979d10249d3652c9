"""Random network distillation: bonus, returns and losses against loops in float64, what is refused, and that it finds a
sparse reward."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers.on_policy_oracle import rehearsed
from torch.nn import functional

import headrace as hr
from headrace.algorithms.a2c import A2C
from headrace.algorithms.intrinsic.rnd import METRICS, rnd_loss
from headrace.algorithms.intrinsic.rnd_network import RNDNetwork
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.algorithms.reinforce import Reinforce
from headrace.algorithms.trpo import TRPO
from headrace.algorithms.vtrace.appo import APPO
from headrace.algorithms.vtrace.impala import IMPALA
from headrace.core import fused
from headrace.data.spaces import Box, Dict, Discrete, MultiDiscrete

CONFIG = PPOConfig(num_steps=8, hidden=(8,), intrinsic="rnd", intrinsic_hidden=(8,), intrinsic_features=5)


def forward(network, x):
    """A network's output in float64: of each layer but the last its ReLU."""
    weights = [p.detach().double() for p in network.parameters()]
    pairs = list(zip(weights[::2], weights[1::2], strict=True))
    for weight, bias in pairs[:-1]:
        x = functional.relu(x @ weight.t() + bias)
    return x @ pairs[-1][0].t() + pairs[-1][1]


def normalized_by_loop(observation, seen):
    rows = torch.stack(seen)
    return ((observation - rows.mean(0)) / (rows.var(0, correction=0) + 1e-8).sqrt()).clamp(-5, 5)


def test_bonus_and_returns_are_those_of_loops_in_float64():
    ppo, rollout = rehearsed(PPO, CONFIG)
    rollout.observation[5, 2] = 100.0  # clipped
    rnd, steps, envs, gamma = ppo.intrinsic, rollout.num_steps, rollout.num_envs, CONFIG.intrinsic_gamma
    seen, returns, running = [], [], torch.zeros(envs, dtype=torch.float64)
    for iteration in range(3):
        advantage, columns, metrics = rnd.targets(rollout, CONFIG, iteration)
        observation = rollout.observation.double()
        seen += [observation[t + 1, n] for t in range(steps) for n in range(envs) if rollout.valid[t, n]]
        x = normalized_by_loop(observation, seen)
        error = (forward(rnd.network.predictor, x) - forward(rnd.network.target, x)).square().mean(2)
        bonus = torch.where(rollout.valid[:-1], error[1:], 0)
        for t in range(steps):
            running = gamma * running + bonus[t]
            returns += running.tolist()
        bonus = bonus / torch.tensor(returns, dtype=torch.float64).std(correction=0)
        value = forward(rnd.network.critic, x)[..., 0]
        wanted, following = torch.zeros_like(bonus), torch.zeros(envs, dtype=torch.float64)
        for t in reversed(range(steps)):  # on over the ends of episodes
            delta = bonus[t] + gamma * value[t + 1] - value[t]
            following = delta + gamma * CONFIG.gae_lambda * following
            wanted[t] = following
        torch.testing.assert_close(advantage.double(), wanted, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(columns["returns"].double(), (wanted + value[:-1]).flatten(), rtol=1e-3, atol=1e-4)
        assert metrics["intrinsic_reward"] == pytest.approx((bonus.sum() / rollout.valid[:-1].sum()).item(), rel=1e-3)
    assert (x.abs() == 5).any()


def test_loss_is_that_of_float64_and_its_gradient_leaves_the_fixed_network():
    network = RNDNetwork(Box(-1, 1, (3,)), (8, 6), 5, 0)
    generator = torch.Generator().manual_seed(0)
    before, after = torch.randn(2, 40, 3, generator=generator)
    share = 4.0 * (torch.rand(40, generator=generator) < 0.25)
    returns, wanted = torch.randn(40, generator=generator), network.target(after).t()
    batch = {"inputs": before, "next": after, "wanted": wanted, "share": share, "returns": returns}
    loss, metrics = rnd_loss(network, batch | {"weight": torch.full((40,), 1 / 40)}, None)
    error = (forward(network.predictor, after.double()) - forward(network.target, after.double())).square().mean(1)
    prediction = (error * share).mean()
    value = (forward(network.critic, before.double())[:, 0] - returns).square().mean()
    assert [metrics[name].item() for name in METRICS] == pytest.approx([prediction.item(), value.item()], rel=1e-5)
    assert loss.item() == pytest.approx((prediction + value).item(), rel=1e-5)
    loss.backward()
    assert all(p.grad.abs().sum() > 0 for p in network.learned())
    assert all(p.grad is None for p in network.target.parameters())
    assert len(network.predictor[0].layers) == len(network.target[0].layers) + 2


@pytest.mark.parametrize(("share", "envs", "expected"), [(0.0, 12, 1.0), (0.0, 64, 0.5), (0.25, 12, 0.25)])
def test_the_predictor_learns_from_the_share_of_rows(share, envs, expected):
    ppo, rollout = rehearsed(PPO, dataclasses.replace(CONFIG, num_steps=64, intrinsic_share=share), envs=envs)
    drawn = [ppo.intrinsic.targets(rollout, ppo.config, i)[1]["share"] for i in (0, 1)]
    valid = rollout.valid[:-1].flatten()
    for chosen in drawn:
        assert not chosen[~valid].any() and chosen.unique().tolist()[-1] == pytest.approx(1 / expected)
        assert (chosen[valid] > 0).float().mean().item() == pytest.approx(expected, abs=0.06)
    assert expected == 1 or not torch.equal(*drawn)


@pytest.mark.parametrize("kind", [PPO, APPO, A2C, IMPALA, Reinforce, TRPO])
def test_the_policy_learns_from_the_weighted_sum_of_advantages(kind):
    small = {name: getattr(CONFIG, name) for name in ("num_steps", "hidden", "intrinsic", "intrinsic_hidden")}
    config = dataclasses.replace(kind.config, **small, intrinsic_coef=0.5, extrinsic_coef=3.0)
    ppo, rollout = rehearsed(kind, config)
    other, _ = rehearsed(kind, config)
    learned, before = [], [p.clone() for p in ppo.intrinsic.network.learned()]
    ppo.learn = lambda rollout, targets: learned.append(targets) or {}
    ppo.update(rollout, 0.0)
    assert all(not torch.equal(p, was) for p, was in zip(ppo.intrinsic.network.learned(), before, strict=True))
    advantage, _, _ = other.intrinsic.targets(rollout, config, 0)
    plain = other.process(rollout)
    torch.testing.assert_close(learned[0].advantage, 3.0 * plain.advantage + 0.5 * advantage)
    assert torch.equal(learned[0].returns, plain.returns)


def test_compiled_updates_are_the_plain_ones():
    config = dataclasses.replace(CONFIG, num_steps=16, minibatch_size=64, epochs=2)
    (ppo, rollout), (plain, same) = (rehearsed(PPO, config, envs=16) for _ in range(2))
    for _ in range(3):
        mine = ppo.update(rollout, 0.0)
        with fused.plain_only():
            theirs = plain.update(same, 0.0)
        for name in (*METRICS, "intrinsic_reward", "value_loss", "policy_gradient_loss"):
            assert mine[name].item() == pytest.approx(theirs[name].item(), rel=2e-3, abs=1e-5), name
    for p, q in zip(ppo.intrinsic.network.parameters(), plain.intrinsic.network.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


def test_an_intrinsic_network_that_is_changed_is_followed_or_refused():
    ppo, rollout = rehearsed(PPO, CONFIG)
    network = ppo.intrinsic.network
    network.critic[1] = type(network.critic[1])(8, 1, 1.0, torch.Generator().manual_seed(5))
    before = network.critic[1].weight.clone()
    ppo.update(rollout, 0.0)
    assert not torch.equal(before, network.critic[1].weight)
    frozen = network.predictor[0].layers[0].weight.requires_grad_(False).clone()
    ppo.update(rollout, 0.0)
    assert torch.equal(frozen, network.predictor[0].layers[0].weight)
    network.critic[1] = type(network.critic[1])(8, 2, 1.0, torch.Generator())
    with pytest.raises(ValueError, match="other sizes now"):
        ppo.update(rollout, 0.0)


@pytest.mark.parametrize(
    "space", [Discrete(5), MultiDiscrete([2, 3]), Dict({"a": Box(-1, 1, (2, 2)), "b": Discrete(2)})]
)
def test_observations_of_other_spaces(space):
    network = RNDNetwork(space, (4,), 3, 1)
    assert network.critic[0].layers[0].weight.shape == (4, network.encoder.size)


@pytest.mark.parametrize("shape", [(20, 10), (20, 10, 3), (3, 20, 10), (1, 42, 42)])
def test_images_are_normalised_by_pixel_and_go_through_convolutions(shape):
    image = Box(0, 255, shape, np.uint8)
    network = RNDNetwork(image, (8,), 5, 1)
    generator = torch.Generator().manual_seed(0)
    seen = torch.randint(0, 256, (30, *shape), generator=generator, dtype=torch.uint8)
    pixels = network.encoder(seen)
    network.normalizer.update(pixels, torch.ones(30, dtype=torch.bool))
    first = seen.double() if len(shape) == 2 or shape[0] in (1, 3) else seen.double().movedim(-1, 1)
    mean, deviation = first.mean(0), first.std(0, correction=0)
    wanted = ((first - mean) / (deviation.square() + 1e-8).sqrt()).clamp(-5, 5)
    normalized = network.normalizer(pixels)
    torch.testing.assert_close(normalized.double(), wanted.flatten(1), rtol=1e-4, atol=1e-4)
    wanted_shape = wanted.unsqueeze(1) if len(shape) == 2 else wanted
    front = network.target[0].convolutions
    x = wanted_shape.float()
    for layer in front.convolutions:  # whose first one divides by 255
        first_layer = layer is front.convolutions[0]
        x = functional.conv2d(x, layer.weight, layer.bias, layer.stride) if first_layer else layer(x)
    features = torch.relu(front.out(x.flatten(1)))
    torch.testing.assert_close(network.target(normalized), network.target[1](features), rtol=1e-3, atol=1e-4)
    assert network.predictor(normalized).shape == network.target(normalized).shape
    assert network.value(normalized).shape == (30,)


def test_images_among_other_members_are_refused():
    with pytest.raises(ValueError, match="not for images among other members"):
        RNDNetwork(Dict({"a": Box(0, 255, (1, 20, 10), np.uint8), "b": Discrete(2)}), (4,), 3, 1)


IMAGES = [("ppo", {"num_steps": 16, "minibatch_size": 64}), ("dqn", {"batch_size": 16, "n_steps": 1})]


@pytest.mark.parametrize(("algorithm", "options"), IMAGES)
def test_the_bonus_of_images_falls_as_they_are_seen_again(algorithm, options):
    settings = {"intrinsic": "rnd", "intrinsic_hidden": (16,), "num_envs": 4, "learning_rate": 1e-3} | options
    with hr.Training(algorithm, "PixelCatch", total_steps=2500, seed=0, progress="none", **settings) as run:
        found = [result.metrics["prediction_loss"] for result in run if "prediction_loss" in result.metrics]
    assert found[-1] < 0.5 * max(found[:3])


REFUSED = [
    ({"collection": "async", "workers": 2}, "collection='async'"),
    ({"learners": 2}, "learners=2"),
    ({"shards": 2}, "shards=2"),
    ({"actors": 2, "advantages": "actor"}, "advantages='actor'"),
    ({"algorithm": "a2c", "actors": 2, "exchange": "gradients"}, "exchange='gradients'"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_what_it_does_not_go_with_is_refused(options, words):
    with pytest.raises(ValueError, match=f"intrinsic='rnd' does not go with {words}"):
        hr.Trainer(**{"algorithm": "ppo", "env": "CartPole-v1", "num_envs": 8, "intrinsic": "rnd"} | options)


@pytest.mark.parametrize(
    "wrong",
    [{"intrinsic_coef": -1.0}, {"intrinsic_share": 2.0}, {"intrinsic_hidden": ()}, {"intrinsic_features": 0}],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        PPOConfig(intrinsic="rnd", **wrong)


def test_settings_without_effect_are_named(capfd):
    hr.Trainer("ppo", "CartPole-v1", num_envs=8, progress="none", intrinsic_coef=0.5).close()
    assert "intrinsic_coef=0.5 is without effect, since intrinsic is 'none'" in capfd.readouterr().err


def state_of(run):
    with hr.Training(resume=run.path, total_steps=10_000, progress="none") as training:
        return training.trainer.algorithm.state_dict()


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("ppo", {"minibatch_size": 64}),
        ("ppo", {"minibatch_size": 64, "recurrent": "gru", "rnn_size": 8}),
        ("a2c", {}),
        ("trpo", {"critic_epochs": 2}),
    ],
)
def test_resumed_bits_are_those_of_a_straight_run(algorithm, options):
    settings = {"num_envs": 8, "num_steps": 16, "hidden": (8,), "intrinsic": "rnd"}
    settings |= {"intrinsic_hidden": (8,), "progress": "none"} | options
    straight = hr.train(algorithm, "Switchback", total_steps=1024, **settings)
    short = hr.train(algorithm, "Switchback", total_steps=512, **settings)
    longer = hr.train(resume=short.path, total_steps=1024, progress="none")
    mine, theirs = (state_of(run) for run in (straight, longer))
    assert mine["intrinsic"]["discounted"].abs().sum() > 0
    for part in ("network", "statistics", "optimizer"):
        for name, value in mine["intrinsic"][part].items():
            assert torch.equal(value, theirs["intrinsic"][part][name]), name
    assert torch.equal(mine["intrinsic"]["discounted"], theirs["intrinsic"]["discounted"])


def test_other_numbers_of_environments_resume():
    settings = {"num_steps": 16, "hidden": (8,), "intrinsic_hidden": (8,), "progress": "none"}
    run = hr.train("ppo", "Switchback", total_steps=512, num_envs=8, **settings)
    assert hr.train(resume=run.path, num_envs=4, total_steps=1024, progress="none").steps >= 1024


def test_it_finds_the_end_of_the_switchback_and_ppo_does_not():
    found = {}
    for intrinsic in ("rnd", "none"):
        with hr.Training("ppo", "Switchback", intrinsic=intrinsic, total_steps=250_000, seed=3, progress="none") as run:
            for result in run:
                found[intrinsic] = result.mean_return or 0.0
    assert found["rnd"] > 0.9 and found["none"] == 0.0
