"""PPO: its loss by hand, its updates against an independent one in float64, and that it learns."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from helpers.corridor import Corridor

import headrace as hr
from headrace.algorithms.adam import Adam
from headrace.algorithms.on_policy import Targets
from headrace.algorithms.ppo import METRICS, PPO, PPOConfig, learn, ppo_loss
from headrace.core import fused
from headrace.core.fused import plain_only
from headrace.data.minibatches import count
from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, Discrete, action_column, env_columns
from headrace.parallel.collector import InlineCollector
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import LogProbEntropyValue, Policy

RAW = {"normalize_observation": False, "normalize_return": False}
SMALL = PPOConfig(num_steps=8, epochs=2, minibatch_size=40, hidden=(8,), **RAW)


@pytest.fixture(autouse=True)
def plain():
    """Run the plain learning call, on one thread, which is faster. Kernels are compared with it elsewhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with fused.plain_only():
        yield
    torch.set_num_threads(threads)


def prepared(config, envs=16, action_space=Discrete(3), dead=True, seed=0):  # noqa: B008 (not changed)
    """PPO with a policy whose outputs vary, and a random rollout of it with endings and masked steps."""
    ppo = PPO.build(config, Box(-1, 1, (3,)), action_space, seed, "cpu")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        ppo.policy.actor_out.weight.mul_(100)
    columns = env_columns(ppo.policy.observation_space) | {"action": action_column(action_space)} | ppo.columns()
    rollout = Rollout(config.num_steps, envs, columns)
    rollout.observation.copy_(torch.randn(rollout.observation.shape, generator=generator))
    rollout.reward.copy_(torch.randn(rollout.reward.shape, generator=generator))
    rollout.valid.fill_(True)
    if dead:
        rollout.terminated[2, ::3], rollout.truncated[4, 1::3] = True, True
        rollout.valid[3, ::3] = rollout.valid[5, 1::3] = False
    with torch.no_grad():
        for t in range(config.num_steps):
            random = torch.rand(envs, ppo.policy.num_draws, generator=generator)
            decision = ppo.policy.act(rollout.observation[t], None, random)
            rollout.action[t], rollout.log_prob[t], rollout.value[t] = decision[:3]
        # as if collected by a policy a little different, so that ratios leave the clip's range
        rollout.log_prob += 0.3 * torch.randn(rollout.log_prob.shape, generator=generator)
        rollout.value += 0.3 * torch.randn(rollout.value.shape, generator=generator)
    return ppo, rollout


class Table(Policy):
    """log_prob, entropy and value straight from parameters: so that gradients can be worked out by hand."""

    def __init__(self, log_prob, entropy, value):
        super().__init__()
        self.table = torch.nn.ParameterList([torch.tensor(x) for x in (log_prob, entropy, value)])

    def log_prob_entropy_value(self, observation, action):
        return LogProbEntropyValue(*self.table)


def test_loss_and_gradient_by_hand():
    # ratios 2, 2, 0.5, 1; advantages 1, -1, 1, 3; the last row is dead. clip 0.2
    policy = Table(np.log([2.0, 2.0, 0.5, 1.0]).astype(np.float32), [0.6, 0.3, 0.9, 5.0], [1.0, 2.0, 3.0, 4.0])
    advantage = torch.tensor([1.0, -1.0, 1.0, 3.0])
    batch = {
        "inputs": None,
        "action": None,
        "log_prob": torch.zeros(4),
        "value": torch.zeros(4),
        "advantage": advantage,
        "returns": torch.tensor([0.0, 0.0, 5.0, 0.0]),
        "weight": torch.tensor([1.0, 1.0, 1.0, 0.0]) / 3,
    }
    config = PPOConfig(clip=0.2, value_coef=0.5, entropy_coef=0.1)
    loss, metrics = ppo_loss(policy, batch, config)
    policy_loss, value_loss, entropy_loss, same, clip_fraction, kl = (metrics[name] for name in METRICS)
    # min(2, 1.2) = 1.2; min(-2, -1.2) = -2; min(0.5, 0.8) = 0.5: minus their mean is 0.1
    assert policy_loss.item() == pytest.approx(0.1)
    assert value_loss.item() == pytest.approx((1 + 4 + 4) / 3)
    assert entropy_loss.item() == pytest.approx(-0.6)
    assert loss.item() == pytest.approx(0.1 + 0.5 * 3 + 0.1 * -0.6)
    assert same.item() == loss.item() and clip_fraction.item() == 1  # of ratios 2, 2, 0.5
    assert kl.item() == pytest.approx((2 * (2 - 1 - np.log(2)) + 0.5 - 1 + np.log(2)) / 3)
    loss.backward()
    log_prob, entropy, value = (p.grad.tolist() for p in policy.table)
    # d(-ratio * advantage)/d log_prob = -ratio * advantage where the clip does not hold it, divided by 3 rows
    assert log_prob == pytest.approx([0.0, 2 / 3, -0.5 / 3, 0.0])
    assert entropy == pytest.approx([-0.1 / 3] * 3 + [0.0])
    assert value == pytest.approx([0.5 * 2 * 1 / 3, 0.5 * 2 * 2 / 3, 0.5 * 2 * -2 / 3, 0.0])


@pytest.mark.parametrize("log_ratio", [60.0, 88.5, 89.0, 100.0, 1e4])
def test_a_ratio_beyond_float32_is_clipped_without_gradient(log_ratio):
    # the first and the last row have such a ratio and a positive advantage, the last is dead; the second has ratio 1
    policy = Table([log_ratio, 0.0, log_ratio], [0.0] * 3, [0.0] * 3)
    zeros, advantage = torch.zeros(3), torch.tensor([2.0, 3.0, 4.0])
    batch = {"inputs": None, "action": None, "log_prob": zeros, "value": zeros, "returns": zeros}
    batch |= {"advantage": advantage, "weight": torch.tensor([0.5, 0.5, 0.0])}
    loss, metrics = ppo_loss(policy, batch, PPOConfig(clip=0.2))
    assert metrics["policy_gradient_loss"].item() == pytest.approx(-(1.2 * 2 + 3) / 2)
    loss.backward()
    assert policy.table[0].grad.tolist() == [0.0, -1.5, 0.0]


def test_clipped_value_loss_by_hand():
    # values 1, 2, 3 moved from 0, 1.9, 2; value_clip 0.5 lets the first go to 0.5, the last to 2.5; returns 2, 2, 2
    policy = Table([0.0] * 3, [0.0] * 3, [1.0, 2.0, 3.0])
    zeros = torch.zeros(3)
    batch = {"inputs": None, "action": None, "log_prob": zeros, "advantage": zeros}
    batch |= {"value": torch.tensor([0.0, 1.9, 2.0]), "returns": torch.full((3,), 2.0)}
    batch["weight"] = torch.full((3,), 1 / 3)
    loss, metrics = ppo_loss(policy, batch, PPOConfig(value_clip=0.5))
    # max(1, 1.5^2), max(0, 0), max(1, 0.5^2)
    assert metrics["value_loss"].item() == pytest.approx((2.25 + 0 + 1) / 3)
    loss.backward()
    # the first is held by the clip; 0.5 * 2 * (3 - 2) / 3 for the last
    assert policy.table[2].grad.tolist() == pytest.approx([0, 0, 1 / 3])


def reference_update(weights, moments, step, rows, order, number, config, rate):
    """One PPO update in float64, after the paper, with its own forward, log-softmax and Adam."""
    observation, action, old_log_prob, old_value, advantage, returns, valid = rows
    if config.normalize_advantage:
        kept = advantage[valid]
        advantage = (advantage - kept.mean()) / (kept.std(correction=0) + 1e-8)
    size = order.shape[1] // number
    for epoch in order:
        for start in range(0, number * size, size):
            index = epoch[start : start + size]
            index = index[valid[index]]  # masked steps are not there at all
            w = [x.requires_grad_() for x in weights]
            hidden = torch.tanh(observation[index] @ w[0].T + w[1])
            logits = hidden @ w[4].T + w[5]
            value = (torch.tanh(observation[index] @ w[2].T + w[3]) @ w[6].T + w[7])[:, 0]
            log_probs = logits - logits.exp().sum(1, keepdim=True).log()
            ratio = torch.exp(log_probs[torch.arange(len(index)), action[index]] - old_log_prob[index])
            clipped = torch.clamp(ratio, 1 - config.clip, 1 + config.clip)
            surrogate = torch.min(ratio * advantage[index], clipped * advantage[index]).mean()
            value_loss = (value - returns[index]) ** 2
            if config.value_clip:
                near = old_value[index] + (value - old_value[index]).clamp(-config.value_clip, config.value_clip)
                value_loss = torch.max(value_loss, (near - returns[index]) ** 2)
            entropy = -(log_probs.exp() * log_probs).sum(1).mean()
            loss = -surrogate + config.value_coef * value_loss.mean() - config.entropy_coef * entropy
            gradients = torch.autograd.grad(loss, w)
            norm = sum((g**2).sum() for g in gradients) ** 0.5
            step += 1
            with torch.no_grad():
                for x, g, (m, v) in zip(w, gradients, moments, strict=True):
                    g = g * min(1.0, config.max_grad_norm / norm)
                    m.mul_(0.9).add_(0.1 * g)
                    v.mul_(0.999).add_(0.001 * g * g)
                    x -= rate * (m / (1 - 0.9**step)) / ((v / (1 - 0.999**step)).sqrt() + 1e-5)
            for x in w:
                x.requires_grad_(False)
    return step


def advantage_by_loop(rollout, config):
    """GAE in float64, one step and one env at a time."""
    reward, value = rollout.reward.double(), rollout.value.double()
    advantage = torch.zeros_like(reward)
    for n in range(rollout.num_envs):
        following = 0.0
        for t in reversed(range(rollout.num_steps)):
            ended = rollout.terminated[t, n] or rollout.truncated[t, n]
            future = 0.0 if rollout.terminated[t, n] else value[t + 1, n]
            delta = reward[t, n] + config.gamma * future - value[t, n]
            following = delta + (0.0 if ended else config.gamma * config.gae_lambda * following)
            advantage[t, n] = following
    return advantage


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"value_clip": 0.2, "entropy_coef": 0.05},
        {"max_grad_norm": 1e-3, "normalize_advantage": False},
        {"max_grad_norm": 100.0, "entropy_coef": 0.01, "schedule": "linear"},
        {"minibatch_size": 1000},
    ],
)
def test_ten_updates_equal_ten_in_float64(changes):
    config = dataclasses.replace(SMALL, learning_rate=3e-3, **changes)
    ppo, rollout = prepared(config)
    names = [name for name, _ in ppo.policy.named_parameters()]
    assert names == [
        f"{part}.{kind}"
        for part in ("actor.layers.0", "critic.layers.0", "actor_out", "critic_out")
        for kind in ("weight", "bias")
    ]
    weights = [p.detach().double().clone() for p in ppo.policy.parameters()]
    moments = [(torch.zeros_like(w), torch.zeros_like(w)) for w in weights]
    number, step = count(8 * 16, config.minibatch_size), 0
    for iteration in range(10):
        advantage = advantage_by_loop(rollout, config)
        rows = [
            rollout.observation[:-1].reshape(-1, 3).double(),
            rollout.action.reshape(-1).long(),
            rollout.log_prob.reshape(-1).double(),
            rollout.value[:-1].reshape(-1).double(),
            advantage.reshape(-1),
            (advantage + rollout.value[:-1].double()).reshape(-1),
            rollout.valid[:-1].reshape(-1),
        ]
        progress = iteration / 10
        rate = config.learning_rate * (1 - progress if config.schedule == "linear" else 1)
        step = reference_update(
            weights, moments, step, rows, ppo.permutation(rollout, ppo.config.epochs), number, config, rate
        )
        ppo.update(rollout, progress)
    assert step == 10 * config.epochs * number == ppo.optimizer.steps
    for name, ours, theirs in zip(names, ppo.policy.parameters(), weights, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=2e-4, atol=2e-5, msg=lambda m, name=name: f"{name}: {m}")


def test_dead_rows_weigh_nothing():
    ppo, rollout = prepared(SMALL)
    other = copy.deepcopy(rollout)
    dead = ~other.valid[:-1]
    other.observation[:-1][dead] = 50.0
    other.action[dead] = 0
    other.log_prob[dead] = 3.0
    twin, _ = prepared(SMALL)
    ours, theirs = ppo.update(rollout, 0.0), twin.update(other, 0.0)
    assert torch.equal(ppo.optimizer.flat, twin.optimizer.flat)
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name])


def test_metrics_are_stable_baselines_names_and_plausible():
    ppo, rollout = prepared(SMALL)
    metrics = ppo.update(rollout, 0.0)
    assert set(metrics) == {
        "policy_gradient_loss",
        "value_loss",
        "entropy_loss",
        "loss",
        "clip_fraction",
        "approx_kl",
        "explained_variance",
        "learning_rate",
    }
    assert all(x.shape == () and x.isfinite() for x in metrics.values())
    assert 0 < metrics["clip_fraction"] < 1 and metrics["approx_kl"] > 0
    assert metrics["learning_rate"] == torch.tensor(SMALL.learning_rate)
    assert -np.log(3) <= metrics["entropy_loss"] < 0


def test_learning_rate_falls_linearly():
    ppo, rollout = prepared(dataclasses.replace(SMALL, schedule="linear", learning_rate=0.01))
    assert ppo.update(rollout, 0.75)["learning_rate"] == pytest.approx(0.0025)


def test_kl_stop_ends_an_update():
    config = dataclasses.replace(SMALL, epochs=4, learning_rate=1e-2)
    free, rollout = prepared(config)
    free.update(rollout, 0.0)
    # the rollout's log_probs are off by 0.3, a KL of about 0.05, from the first minibatch on
    held, _ = prepared(dataclasses.replace(config, target_kl=1e-3))
    before = held.optimizer.flat.clone()
    held.update(rollout, 0.0)
    assert held.optimizer.steps == 0 and torch.equal(held.optimizer.flat, before)
    loose, _ = prepared(dataclasses.replace(config, target_kl=10.0))
    loose.update(rollout, 0.0)
    assert torch.equal(loose.optimizer.flat, free.optimizer.flat)


@pytest.mark.parametrize("action_space", [Discrete(3), Box(-2, 2, (2,))])
def test_going_on_from_a_state_is_bit_equal(action_space):
    config = dataclasses.replace(SMALL, normalize_observation=True, normalize_return=True)
    ppo, rollout = prepared(config, action_space=action_space)
    for _ in range(2):
        ppo.update(rollout, 0.1)
    state = copy.deepcopy(ppo.state_dict())
    saved = {name: x.clone() for name, x in ppo.state_dict()["policy"].items()}
    other = PPO.build(config, ppo.policy.observation_space, action_space, 0, "cpu")
    other.load_state_dict(state)
    ppo.update(rollout, 0.2)
    other.update(rollout, 0.2)
    for name, tensor in ppo.policy.state_dict().items():
        assert torch.equal(tensor, other.policy.state_dict()[name]), name
    assert all(torch.equal(saved[name], x) for name, x in state["policy"].items())
    assert torch.equal(ppo.optimizer.mean, other.optimizer.mean) and ppo.iteration == other.iteration == 3


def test_a_state_of_another_policy_is_refused():
    ppo, _ = prepared(SMALL)
    with pytest.raises(ValueError, match="the state has 5 parameters"):
        ppo.optimizer.load_state_dict({"mean": torch.zeros(5), "square": torch.zeros(5), "steps": torch.zeros(())})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs must be 1 or more, got 0"),
        ({"gamma": 1.5}, r"gamma must lie in \[0, 1\], got 1.5"),
        ({"clip": 0.0}, "clip must be above 0"),
        ({"target_kl": -1.0}, "target_kl must be 0"),
        ({"schedule": "falling"}, "is 'falling': give constant, linear, cosine"),
    ],
)
def test_settings_out_of_range_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        PPOConfig(**changes)


@pytest.mark.parametrize(
    "changes", [{}, {"shared": True, "normalize_observation": True, "normalize_return": True, "value_clip": 0.2}]
)
def test_ppo_learns_to_walk_the_corridor(changes):
    config = PPOConfig(num_steps=32, minibatch_size=512, learning_rate=1e-3, hidden=(32, 32), **changes)
    env = Corridor(64)
    ppo = PPO.build(config, env.observation_space, env.action_space, 1, "cpu")
    collector = InlineCollector(env, ppo.policy, config.num_steps, ppo.columns(), seed=1)
    for iteration in range(20):
        rollout = collector.collect()
        ppo.update(rollout, iteration / 20)
    ended = ~rollout.valid[:-1]
    # straight to the end: four steps at -0.1, then 1
    assert rollout.episode_return[ended].mean() > 0.5
    places = np.stack([np.linspace(-1, 0.6, 5), np.ones(5)], 1)
    assert ppo.policy.predict(places)[0].tolist() == [1] * 5


def test_learning_takes_any_policy():
    class Doubled(ActorCritic):
        """Another policy class than the usual one."""

    ppo = PPO(Doubled(Box(-1, 1, (3,)), Discrete(3), (8,)), SMALL)
    assert isinstance(ppo.optimizer, Adam)
    _, rollout = prepared(SMALL)
    before = ppo.optimizer.flat.clone()
    permutation = ppo.permutation(rollout, ppo.config.epochs)
    learn(
        ppo.policy,
        ppo.optimizer,
        rollout,
        Targets(rollout.reward, rollout.reward, rollout.valid[:-1]),
        permutation,
        SMALL,
    )
    assert not torch.equal(ppo.optimizer.flat, before)
    assert torch.equal(permutation, ppo.permutation(rollout, ppo.config.epochs))
    assert permutation.sort(1).values.equal(torch.arange(8 * 16).expand(2, -1))


def test_actions_of_a_box_begin_as_far_apart_as_the_config_says():
    spaces = Box(-1, 1, (3,)), Box(-2, 2, (2,))
    policy = PPO.build(PPOConfig(initial_std=0.5), *spaces, seed=0, device="cpu").policy
    assert policy.head.log_std.exp().tolist() == pytest.approx([0.5, 0.5])
    assert PPO.build(PPOConfig(), *spaces, seed=0, device="cpu").policy.head.log_std.tolist() == [0, 0]
    PPO.build(PPOConfig(initial_std=0.5), spaces[0], Discrete(2), seed=0, device="cpu")
    with pytest.raises(ValueError, match="initial_std must be above 0"):
        PPOConfig(initial_std=0.0)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "trpo"])
def test_a_critic_may_have_hidden_layers_of_its_own_sizes(algorithm, tmp_path):
    sizes = {"hidden": (8,), "critic_hidden": (16, 12), "num_envs": 8, "num_steps": 8}
    settings = {"total_steps": 10_000, "registered": False, "progress": "none"}
    ends = []
    for plain in (False, True):
        with plain_only(plain):
            trainer = hr.Trainer(algorithm, "CartPole-v1", **sizes, **settings)
            for _ in range(3):
                trainer.iterate()
            ends.append(trainer.algorithm.optimizer.flat.clone())
            trainer.close()
    assert torch.allclose(*ends, atol=1e-4)
    assert [len(layer.bias) for layer in trainer.policy.critic.layers] == [16, 12]
    hr.export(trainer.policy, to="numpy", output=tmp_path / "policy.py", value=True)
    with pytest.raises(ValueError, match=r"critic_hidden is \(9,\), and shared layers are the actor's"):
        hr.ActorCritic(trainer.env.observation_space, trainer.env.action_space, shared=True, critic_hidden=(9,))
    with pytest.raises(ValueError, match="critic_hidden is for policies that are not recurrent"):
        hr.Trainer(algorithm, "CartPole-v1", recurrent="gru", **sizes, **settings)
