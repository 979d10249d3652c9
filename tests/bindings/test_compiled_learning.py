"""Learning from losses that are compiled: equal to plain PyTorch, whatever network and loss they are of."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from headrace.algorithms import a2c, ppo, pqn, reinforce, trpo
from headrace.algorithms.adam import Adam
from headrace.algorithms.on_policy import Targets
from headrace.bindings.compiled import compiled_learning
from headrace.core import fused
from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, Discrete, MultiDiscrete, action_column, env_columns
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.q_network import QNetwork

SEEN, TWO, BOX = Box(-3, 3, (5,)), Discrete(2, start=1), Box(-2, 2, (2,))
STEPS, ENVS = 16, 6
RAW = {"num_steps": STEPS, "hidden": (16,)}
SMALL = {**RAW, "minibatch_size": 30, "epochs": 3, "normalize_observation": False}


class Residual(ActorCritic):
    """A network of a user's."""

    def __init__(self, observation_space, action_space, seed=0, normalize_return=False):
        super().__init__(observation_space, action_space, hidden=(16,), seed=seed, normalize_return=normalize_return)
        torch.manual_seed(seed)
        self.norm, self.more = nn.LayerNorm(16), nn.Linear(16, 16)
        self.actor = Around(self.actor, self.norm, self.more)


class Around(nn.Module):
    def __init__(self, inner, norm, more):
        super().__init__()
        self.inner, self.norm, self.more = inner, norm, more

    def forward(self, x):
        x = self.inner(x)
        return x + nn.functional.silu(self.more(self.norm(x)))


class WithStatistics(ActorCritic):
    """A network that writes to buffers as it learns."""

    def __init__(self, observation_space, action_space, seed=0):
        super().__init__(observation_space, action_space, hidden=(16,), seed=seed)
        self.critic = nn.Sequential(self.critic, nn.BatchNorm1d(16))


class WithCounts(ActorCritic):
    """A network whose buffers are of other kinds than float32."""

    def __init__(self, observation_space, action_space, seed=0):
        super().__init__(observation_space, action_space, hidden=(16,), seed=seed)
        self.register_buffer("began", torch.tensor(False))
        self.register_buffer("long", torch.zeros(3, dtype=torch.int64))
        self.register_buffer("whole", torch.zeros(2, dtype=torch.int32))

    def forward(self, observation, *rest):
        scale = torch.where(self.began, 0.9, 1.1) + 0.001 * self.long.sum() - 0.002 * self.whole[1]
        self.began.fill_(True)
        self.long.add_(2)
        self.whole.add_(1)
        distribution, value = super().forward(observation, *rest)
        return distribution, value * scale


class OwnQ(QNetwork):
    """Another class than that whose kernel there is."""

    def values(self, observation):
        return super().values(observation) * 1.5


def with_penalty(policy, batch, config):
    """PPO's loss, and a term of a user's."""
    loss, metrics = ppo.ppo_loss(policy, batch, config)
    _, value = policy(batch["inputs"])
    penalty = value.square() @ batch["weight"]
    return loss + 0.01 * penalty, metrics | {"penalty": penalty}


@pytest.fixture(autouse=True)
def said(monkeypatch):
    monkeypatch.setattr(fused, "_said", set())


def made(kind, space=TWO, policy=None, envs=ENVS, valid=0.9, **settings):
    """An algorithm, a rollout for it, and targets."""
    config = dataclasses.replace(kind.config, **settings)
    algorithm = kind(policy or kind.make_policy(config, SEEN, space, 0), config)
    columns = env_columns(SEEN) | {"action": action_column(space)} | algorithm.columns()
    rollout, generator = Rollout(config.num_steps, envs, columns), torch.Generator().manual_seed(3)
    for column in (rollout.observation, rollout.reward):
        column.copy_(torch.randn(column.shape, generator=generator))
    rollout.valid.copy_(torch.rand(rollout.valid.shape, generator=generator) < valid)
    state = algorithm.policy.initial_state(envs)
    with torch.no_grad():
        for t in range(config.num_steps):
            if state is not None:
                rollout.rnn_state[t] = state
            random = torch.rand(envs, algorithm.policy.num_draws, generator=generator)
            rollout.action[t], log_prob, value, state = algorithm.policy.act(rollout.observation[t], state, random)
            if "log_prob" in rollout.columns:
                rollout.log_prob[t], rollout.value[t] = log_prob, value
    if "log_prob" in rollout.columns:
        rollout.log_prob += 0.2 * torch.randn(rollout.log_prob.shape, generator=generator)
    parts = torch.randn(2, config.num_steps, envs, generator=generator)
    return algorithm, rollout, Targets(*parts, rollout.valid[:-1])


def learned(algorithm, rollout, targets, plain=False):
    with fused.plain_only(plain):
        metrics = algorithm.learn(rollout, targets)
    algorithm.iteration += 1
    return metrics


def said_of_learning(capsys):
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith(("learning", "gradient"))]


CASES = {
    "ppo, residual": (ppo.PPO, TWO, Residual, SMALL),
    "ppo, units of return": (ppo.PPO, BOX, lambda *spaces: Residual(*spaces, normalize_return=True), SMALL),
    "ppo, stopped by KL": (ppo.PPO, BOX, Residual, SMALL | {"target_kl": 0.02, "learning_rate": 0.01, "epochs": 6}),
    "ppo, several choices": (ppo.PPO, MultiDiscrete([3, 2]), Residual, SMALL | {"value_clip": 0.2}),
    "ppo, gru": (ppo.PPO, TWO, None, SMALL | {"recurrent": "gru", "rnn_size": 16, "sequence_length": 4}),
    "ppo, lstm": (ppo.PPO, BOX, None, SMALL | {"recurrent": "lstm", "rnn_size": 16, "sequence_length": 8}),
    "ppo, writes to buffers": (ppo.PPO, TWO, WithStatistics, SMALL),
    "ppo, writes to buffers of whole numbers": (ppo.PPO, TWO, WithCounts, SMALL),
    "a2c": (a2c.A2C, TWO, Residual, RAW),
    "reinforce": (reinforce.Reinforce, BOX, Residual, RAW),
    "pqn": (pqn.PQN, TWO, lambda *spaces: OwnQ(*spaces, hidden=(16,), layer_norm=True), SMALL),
    "trpo": (trpo.TRPO, TWO, Residual, RAW | {"minibatch_size": 30, "normalize_observation": False}),
}


@pytest.mark.parametrize("name", CASES)
def test_three_updates_equal_the_plain_ones(name, capsys):
    kind, space, policy, settings = CASES[name]
    own, plain = (made(kind, space, policy and policy(SEEN, space), **settings) for _ in range(2))
    before = own[0].optimizer.flat.clone()
    for _ in range(3):
        found, expected = learned(*own), learned(*plain, plain=True)
        assert found.keys() == expected.keys()
        for key in found:
            torch.testing.assert_close(found[key], expected[key], rtol=2e-4, atol=2e-5, msg=key)
    assert own[0].optimizer.steps == plain[0].optimizer.steps > 0
    assert (own[0].optimizer.flat - before).abs().max() > 1e-3
    for mine, other in zip(own[0].policy.state_dict().values(), plain[0].policy.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=2e-5)
    assert not said_of_learning(capsys)


def test_a_loss_of_ones_own_is_what_is_learned(capsys):
    class Penalised(ppo.PPO):
        loss = staticmethod(with_penalty)

    own, plain = (made(Penalised, **SMALL) for _ in range(2))
    found, expected = learned(*own), learned(*plain, plain=True)
    assert float(found["penalty"]) == pytest.approx(float(expected["penalty"]), rel=1e-4)
    torch.testing.assert_close(own[0].optimizer.flat, plain[0].optimizer.flat, rtol=1e-4, atol=1e-6)
    without, *others = made(ppo.PPO, **SMALL)
    learned(without, *others)
    assert (without.optimizer.flat - own[0].optimizer.flat).abs().max() > 1e-5
    assert not said_of_learning(capsys)


def standardised(policy, batch, config):
    """A loss of a user's: it takes the deviation of the minibatch's numbers, whatever the number of sequences is."""
    distribution, value = policy(batch["inputs"])
    advantage = (batch["advantage"] - batch["advantage"].mean()) / (batch["advantage"].std() + 1e-8)
    gain = (distribution.log_prob(batch["action"]) * advantage) @ batch["weight"]
    return (value - batch["returns"]).square() @ batch["weight"] - gain, {"gain": gain}


@pytest.mark.parametrize("loss", [ppo.ppo_loss, standardised])
@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(("sequences", "envs"), [(1, 1), (1, 5), (2, 5), (7, 9)])
def test_minibatches_of_few_sequences_are_learned_as_in_plain_torch(loss, kind, sequences, envs, capsys):
    class Own(ppo.PPO):
        pass

    Own.loss = staticmethod(loss)
    settings = {"recurrent": kind, "rnn_size": 35, "hidden": (20,), "sequence_length": 8}
    settings = SMALL | settings | {"minibatch_size": 8 * sequences}
    own, plain = (made(Own, BOX, envs=envs, **settings) for _ in range(2))
    for _ in range(3):
        found, expected = learned(*own), learned(*plain, plain=True)
        for key in expected:
            torch.testing.assert_close(found[key], expected[key], rtol=1e-3, atol=5e-5, msg=key)
    assert own[0].optimizer.steps == plain[0].optimizer.steps > 0
    torch.testing.assert_close(own[0].optimizer.flat, plain[0].optimizer.flat, rtol=1e-3, atol=5e-5)
    assert not said_of_learning(capsys)


def test_a_loss_of_ones_own_is_what_trpos_critic_learns(capsys):
    def robust(policy, batch, config):
        errors = nn.functional.huber_loss(policy(batch["inputs"])[1], batch["returns"], reduction="none")
        loss = errors @ batch["weight"]
        return loss, {"value_loss": loss}

    class Robust(trpo.TRPO):
        loss = staticmethod(robust)

    settings = RAW | {"minibatch_size": 30, "normalize_observation": False}
    own, plain, usual = made(Robust, **settings), made(Robust, **settings), made(trpo.TRPO, **settings)
    found, expected, other = learned(*own), learned(*plain, plain=True), learned(*usual)
    assert float(found["value_loss"]) == pytest.approx(float(expected["value_loss"]), rel=1e-4)
    assert abs(float(found["value_loss"]) / float(other["value_loss"]) - 1) > 0.1
    torch.testing.assert_close(own[0].optimizer.flat, plain[0].optimizer.flat, rtol=1e-4, atol=1e-6)
    assert not said_of_learning(capsys)


def test_trpos_recurrent_critic_learns_as_the_plain_one(capsys):
    settings = RAW | {"minibatch_size": 24, "recurrent": "gru", "sequence_length": 4}
    found = []
    for plain in (False, True):
        algorithm, rollout, targets = made(trpo.TRPO, BOX, **settings)
        order = algorithm.permutation(rollout, 3)
        with fused.plain_only(plain):
            given = algorithm.policy, algorithm.optimizer, rollout, targets.returns, order, algorithm.config
            found.append((trpo.learn_critic(*given), algorithm.optimizer.flat))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=2e-5)
    assert not said_of_learning(capsys)


def test_trpos_critic_moves_no_layers_of_the_actor():
    for policy in (None, lambda *spaces: ActorCritic(*spaces, hidden=(16,), shared=True)):
        algorithm, rollout, targets = made(trpo.TRPO, TWO, policy and policy(SEEN, TWO), **RAW)
        shared = [*algorithm.policy.actor_parameters()]
        order = algorithm.permutation(rollout, 2)
        before = [p.detach().clone() for p in algorithm.policy.parameters()]
        trpo.learn_critic(algorithm.policy, algorithm.optimizer, rollout, targets.returns, order, algorithm.config)
        for parameter, was in zip(algorithm.policy.parameters(), before, strict=True):
            of_actor = any(parameter is own for own in shared)
            assert torch.equal(parameter, was) == of_actor and parameter.requires_grad


def test_settings_that_change_take_effect():
    own, plain = (made(ppo.PPO, policy=Residual(SEEN, TWO), **SMALL) for _ in range(2))
    for clip in (0.2, 0.05, 0.4):
        for algorithm, *_ in (own, plain):
            algorithm.config = dataclasses.replace(algorithm.config, clip=clip, entropy_coef=clip)
            algorithm.optimizer.learning_rate.fill_(clip / 10)
        found, expected = learned(*own), learned(*plain, plain=True)
        assert float(found["clip_fraction"]) == pytest.approx(float(expected["clip_fraction"]))
        torch.testing.assert_close(own[0].optimizer.flat, plain[0].optimizer.flat, rtol=1e-3, atol=1e-5)


def test_frozen_weights_stay():
    own, plain = (made(ppo.PPO, policy=Residual(SEEN, TWO), **SMALL) for _ in range(2))
    for algorithm, *_ in (own, plain):
        algorithm.policy.more.weight.requires_grad_(False)
    before = own[0].policy.more.weight.clone()
    learned(*own)
    learned(*plain, plain=True)
    assert torch.equal(own[0].policy.more.weight, before)
    torch.testing.assert_close(own[0].optimizer.flat, plain[0].optimizer.flat, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(own[0].optimizer.mean, plain[0].optimizer.mean, rtol=1e-3, atol=1e-6)


def test_bits_do_not_depend_on_threads(monkeypatch):
    monkeypatch.setattr("headrace.bindings.compiled.loss_program.WORTH_HELP", 0)
    found = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("HEADRACE_THREADS", threads)
        algorithm, *others = made(ppo.PPO, policy=Residual(SEEN, TWO), envs=40, **SMALL | {"minibatch_size": 300})
        learned(algorithm, *others)
        found.append(algorithm.optimizer.flat.clone())
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


class TwoLearners:
    """The sums of two learners that have the same rows."""

    size, columns, rank = 2, (ENVS, ENVS), 0

    def __call__(self, *tensors):
        for tensor in tensors:
            tensor.mul_(2)


def test_gradients_of_several_learners_are_added():
    own, plain = (made(ppo.PPO, policy=Residual(SEEN, TWO), **SMALL | {"target_kl": 0.05}) for _ in range(2))
    for algorithm, *_ in (own, plain):
        algorithm.reduce = TwoLearners()
    found, expected = learned(*own), learned(*plain, plain=True)
    assert float(found["approx_kl"]) == pytest.approx(float(expected["approx_kl"]), rel=1e-3)
    torch.testing.assert_close(own[0].optimizer.flat, plain[0].optimizer.flat, rtol=1e-3, atol=1e-5)
    assert own[0].optimizer.steps == plain[0].optimizer.steps


@pytest.mark.parametrize("reason", ["chooses by the data", "method", "metric", "not among the parameters"])
def test_what_cannot_be_compiled_runs_in_plain_pytorch_and_says_why(reason, capsys):
    policy, other = Residual(SEEN, TWO), nn.Linear(1, 1)

    def reads(policy, batch, config):
        loss, metrics = ppo.ppo_loss(policy, batch, config)
        return loss * (2.0 if loss.item() > 0 else 1.0), metrics

    def of_rows(policy, batch, config):
        loss, metrics = ppo.ppo_loss(policy, batch, config)
        return loss, metrics | {"all": batch["returns"] * 1.0}

    def of_another(policy, batch, config):
        loss, metrics = ppo.ppo_loss(policy, batch, config)
        return loss + other.weight.sum(), metrics

    class Penalised(ppo.PPO):
        def loss(self, policy, batch, config):
            return with_penalty(policy, batch, config)

    algorithm, *others = made(Penalised if reason == "method" else ppo.PPO, policy=policy, **SMALL)
    if reason != "method":
        algorithm.loss = {"chooses by the data": reads, "metric": of_rows}.get(reason, of_another)
    before = algorithm.optimizer.flat.clone()
    learned(algorithm, *others)
    said = said_of_learning(capsys)
    assert len(said) == 1 and said[0].startswith("learning runs in plain PyTorch: ") and reason in said[0]
    assert "test_compiled_learning.py" in said[0] or reason != "chooses by the data"
    assert (algorithm.optimizer.flat - before).abs().max() > 1e-4


def test_where_the_compiler_fails_plain_pytorch_runs(disk, monkeypatch, capsys):
    compiled_learning._compiled.cache_clear()  # how often a loss was traced counts in a process

    def fails(*_, **__):
        raise KeyError("no place")

    monkeypatch.setattr("headrace.kernels.rows.lowering.loss.lower", fails)
    own, plain = (made(ppo.PPO, policy=Residual(SEEN, TWO), **SMALL) for _ in range(2))
    learned(*own)
    learned(*plain, plain=True)
    assert torch.equal(own[0].optimizer.flat, plain[0].optimizer.flat)
    (said,) = said_of_learning(capsys)
    assert "KeyError: 'no place'" in said and "report" in said


def test_a_loss_that_changes_all_the_time_is_not_traced_for_ever(monkeypatch, capsys):
    monkeypatch.setattr("headrace.bindings.compiled.compiled_losses.TRIES", 2)
    policy = Residual(SEEN, TWO)

    def changing(policy, batch, config):
        return ppo.ppo_loss(policy, batch, config)

    algorithm, *others = made(ppo.PPO, policy=policy, **SMALL)
    algorithm.loss = changing
    for count in range(4):
        policy.count = count
        learned(algorithm, *others)
    (said,) = said_of_learning(capsys)
    assert "it is traced again at each call, because of policy.count" in said


def test_each_optimizer_takes_its_own_steps():
    """Two policies of one class, learned in turns, with Adams of other settings."""
    pairs = [(made(ppo.PPO, policy=Residual(SEEN, TWO, seed), **SMALL), seed) for seed in (0, 1, 0, 1)]
    for (algorithm, *_), seed in pairs:
        algorithm.optimizer.eps = 1e-3 if seed else 1e-6
        algorithm.optimizer.learning_rate.fill_(0.02 if seed else 0.003)
    for _ in range(2):
        for number, ((algorithm, *others), _) in enumerate(pairs):
            learned(algorithm, *others, plain=number > 1)
    for own, plain in zip(pairs[:2], pairs[2:], strict=True):
        torch.testing.assert_close(own[0][0].optimizer.flat, plain[0][0].optimizer.flat, rtol=1e-3, atol=2e-5)


def test_gradients_are_of_the_first_minibatch_in_float64():
    """One step of a rate of 0 leaves the gradient in Adam's mean: that of autograd in float64."""
    algorithm, rollout, targets = made(ppo.PPO, policy=Residual(SEEN, TWO), **SMALL | {"epochs": 1})
    policy, rows, config = algorithm.policy, STEPS * ENVS, dataclasses.replace(algorithm.config, minibatch_size=96)
    config = dataclasses.replace(config, normalize_advantage=False, max_grad_norm=np.inf)
    optimizer = Adam(policy.parameters(), 0.0)
    ppo.learn(policy, optimizer, rollout, targets, torch.arange(rows).unsqueeze(0), config)
    batch = {
        "inputs": rollout.observation[:-1].flatten(0, 1).double(),
        "action": rollout.action.flatten(),
        "log_prob": rollout.log_prob.flatten().double(),
        "value": rollout.value[:-1].flatten().double(),
        "advantage": targets.advantage.flatten().double(),
        "returns": targets.returns.flatten().double(),
        "weight": targets.valid.flatten().double() / targets.valid.sum(),
    }
    loss, _ = ppo.ppo_loss(policy.double(), batch, config)
    exact = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(policy.parameters()))])
    found = optimizer.mean / 0.1
    assert (found - exact).abs().max() < 2e-6 * exact.abs().max()
