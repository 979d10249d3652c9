"""CrossQ: gradient steps against an independent calculation in float64, batch renormalisation, resuming, refusals."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers.off_policy_oracle import (
    ACTIONS,
    CENTER,
    HALF,
    OBSERVATIONS,
    actor_layers,
    collected,
    critic_layers,
    made_up,
    mean,
    same_layers,
    squashed,
    step,
    with_garbage,
)

import headrace as hr
from headrace.algorithms.crossq import CrossQ, CrossQConfig
from headrace.algorithms.objectives import take_steps
from headrace.policies.normalization import BatchRenorm

SMALL = CrossQConfig(
    hidden=(16, 16), critic_hidden=(12,), batch_size=16, learning_starts=32, buffer_size=1000, temperature=0.3,
    policy_delay=2, renorm_warm_up=1,
)  # fmt: skip


pytestmark = pytest.mark.usefixtures("one_thread")


def build(config=SMALL, seed=0):
    crossq = CrossQ.build(config, OBSERVATIONS, ACTIONS, seed, "cpu")
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():  # an actor whose outputs vary, and scales and shifts that matter
        crossq.policy.actor_out.weight.mul_(50)
        for norm in norms_of(crossq.policy.actor) + norms_of(crossq.policy.critics):
            for parameter in (norm.weight, norm.bias):
                parameter += 0.3 * torch.rand(parameter.shape, generator=generator)
    return crossq


def norms_of(module):
    return [norm for norm in module.modules() if isinstance(norm, BatchRenorm)]


def steps(crossq, batches, random, since=0):
    objectives, networks = crossq.objectives()
    return take_steps(objectives, networks, batches, random, crossq.config, since)[0]


class Norm:
    """Algorithm 1 of Ioffe 2017 for the features of one network, in float64."""

    def __init__(self, module, network=None):
        values = (module.weight, module.bias, module.mean, module.std)
        own = [(x if network is None else x[network, 0]).detach().double().clone() for x in values]
        self.gamma, self.beta, self.mean, self.std = own
        self.gamma.requires_grad_(), self.beta.requires_grad_()
        self.batches, self.warm_up = int(module.batches), module.warm_up

    def __call__(self, x, counted=None):
        if counted is None:
            return (x - self.mean) / self.std * self.gamma + self.beta
        rows = x[counted]
        mean_, std = rows.mean(0), (rows.var(0, unbiased=False) + 1e-3).sqrt()
        r, d = 1, 0
        if self.batches >= self.warm_up:
            r = (std / self.std).detach().clamp(1 / 3, 3)
            d = ((mean_ - self.mean) / self.std).detach().clamp(-5, 5)
        self.mean = 0.99 * self.mean + 0.01 * mean_.detach()
        self.std = 0.99 * self.std + 0.01 * std.detach()
        self.batches += 1
        return ((x - mean_) / std * r + d) * self.gamma + self.beta


class Network:
    """One actor or critic: a normalised input, then layers of relu and normalisation, and a last layer."""

    def __init__(self, layers, norms):
        self.layers, self.norms = layers, norms

    def __call__(self, x, counted=None):
        x = self.norms[0](x, counted)
        for (weight, bias), norm in zip(self.layers[:-1], self.norms[1:], strict=True):
            x = norm(torch.clamp(x @ weight.T + bias, min=0), counted)
        weight, bias = self.layers[-1]
        return x @ weight.T + bias

    def parameters(self):
        return [x for pair in self.layers for x in pair] + [x for n in self.norms for x in (n.gamma, n.beta)]


def networks_of(policy):
    actor = Network(actor_layers(policy), [Norm(norm) for norm in norms_of(policy.actor)])
    norms = norms_of(policy.critics)
    critics = [Network(x, [Norm(norm, c) for norm in norms]) for c, x in enumerate(critic_layers(policy.critics))]
    return actor, critics


def reference(crossq, batches, random):
    """All of learn(), one network and one equation at a time."""
    config, delayed, rows = crossq.config, [], []
    actor, critics = networks_of(crossq.policy)
    log_alpha = torch.tensor(float(crossq.log_temperature.detach()), dtype=torch.float64, requires_grad=True)

    def adam(*networks):
        parameters = [x for network in networks for x in network.parameters()]
        return torch.optim.Adam(parameters, config.learning_rate, betas=(0.5, 0.999), eps=1e-8)

    of_actor, of_critics, of_alpha = adam(actor), adam(*critics), torch.optim.Adam([log_alpha], config.learning_rate)
    for g in range(len(random)):
        weight, counted = batches.weight[g], batches.weight[g] > 0
        seen, next_seen = batches.observation[g].double(), batches.next_observation[g].double()
        alpha = log_alpha.detach().exp()
        with torch.no_grad():
            next_action, next_log_prob = squashed(actor(next_seen), random[g, :, :4])
        taken = (batches.action[g].double() - CENTER) / HALF
        both = torch.cat([torch.cat([seen, taken], 1), torch.cat([next_seen, next_action], 1)])
        values = [critic(both, torch.cat([counted, counted]))[:, 0] for critic in critics]
        lowest = torch.minimum(*values)[16:].detach()
        aim = batches.reward[g].double() + batches.discount[g].double() * (lowest - alpha * next_log_prob)
        critic_loss = sum(0.5 * mean((value[:16] - aim) ** 2, weight) for value in values)
        step(of_critics, critic_loss)
        if (g + 1) % config.policy_delay == 0:
            action, log_prob = squashed(actor(seen, counted), random[g, :, 4:])
            found = [critic(torch.cat([seen, action], 1))[:, 0] for critic in critics]
            actor_loss = mean(alpha * log_prob - torch.minimum(*found), weight)
            step(of_actor, actor_loss)
            alpha_loss = -log_alpha * mean(log_prob.detach() - 3, weight)
            step(of_alpha, alpha_loss)
            delayed.append([actor_loss.item(), alpha_loss.item()])
        rows.append([critic_loss.item(), alpha.item()])
    return actor, critics, log_alpha, torch.cat([torch.tensor(x).mean(0) for x in (delayed, rows)])


def same_networks(mine, theirs):
    same_layers(mine.layers, theirs.layers)
    for a, b in zip(mine.norms, theirs.norms, strict=True):
        for name in ("gamma", "beta", "mean", "std"):
            torch.testing.assert_close(getattr(a, name), getattr(b, name), rtol=0, atol=2e-6)


def test_gradient_steps_equal_an_independent_calculation():
    """The first batch of each network is normalised alone, the following ones by batch renormalisation."""
    crossq, batches = build(), made_up(5)
    random = torch.rand(5, 16, 8, generator=torch.Generator().manual_seed(1))
    actor, critics, log_alpha, metrics = reference(crossq, batches, random)
    before = networks_of(crossq.policy)[1]
    got = steps(crossq, batches, random)
    mine, my_critics = networks_of(crossq.policy)
    same_networks(mine, actor)
    for a, b in zip(my_critics, critics, strict=True):
        same_networks(a, b)
    assert (mine.norms[0].batches, my_critics[0].norms[0].batches) == (2, 5)
    assert float(crossq.log_temperature.detach()) == pytest.approx(log_alpha.item(), abs=1e-6)
    names = ("actor_loss", "ent_coef_loss", "critic_loss", "ent_coef")
    torch.testing.assert_close(torch.stack([got[name] for name in names]), metrics, rtol=1e-4, atol=1e-5)
    with pytest.raises(AssertionError):  # the tolerance can tell
        same_networks(before[0], critics[0])


def test_masked_rows_weigh_nothing_in_moments_and_losses():
    random = torch.rand(4, 16, 8, generator=torch.Generator().manual_seed(1))
    batches = made_up(4)
    dead = (batches.weight == 0).unsqueeze(-1)
    other = with_garbage(batches)._replace(next_observation=torch.where(dead, 9.0, batches.next_observation))
    first, second = build(), build()
    steps(first, batches, random)
    steps(second, other, random)
    for a, b in zip(networks_of(first.policy)[1], networks_of(second.policy)[1], strict=True):
        same_networks(a, b)


def test_the_actors_steps_are_counted_across_calls():
    random = torch.rand(6, 16, 8, generator=torch.Generator().manual_seed(1))
    whole, parts = build(), build()
    steps(whole, made_up(6), random)
    for g in range(6):
        batch = type(made_up(6))(*(column[g : g + 1] for column in made_up(6)))
        steps(parts, batch, random[g : g + 1], since=g % 2)
    assert torch.equal(whole.optimizers["actor"].flat, parts.optimizers["actor"].flat)
    assert float(parts.optimizers["actor"].steps) == float(parts.optimizers["temperature"].steps) == 3


def test_warming_up_leaves_no_trace_and_a_saved_state_goes_on_bit_for_bit():
    crossq, other = build(), build(seed=1)
    other.seed = crossq.seed  # other weights, the same draws
    rollout = collected(crossq)
    before = {name: x.clone() for name, x in crossq.policy.state_dict().items()}
    crossq.warm_up(rollout)
    assert all(torch.equal(x, before[name]) for name, x in crossq.policy.state_dict().items())
    for algorithm in (crossq, other):
        algorithm.prepare(rollout)
    crossq.update(rollout, 0.0)
    other.load_state_dict(crossq.state_dict())
    ends = [algorithm.update(collected(crossq, seed=2), 0.0) for algorithm in (crossq, other)]
    assert ends[0] == ends[1]
    states = crossq.policy.state_dict(), other.policy.state_dict()
    assert all(torch.equal(x, states[1][name]) for name, x in states[0].items())


def test_acting_uses_the_running_moments_and_changes_nothing():
    policy = build().policy
    observation = torch.rand(5, 3, generator=torch.Generator().manual_seed(2))
    alone = torch.cat([policy.act(row.unsqueeze(0), None, None).action for row in observation])
    assert torch.equal(policy.act(observation, None, None).action, alone)
    assert all(norm.batches == 0 and not norm.mean.any() for norm in norms_of(policy))


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValueError, match=r"critics of this policy have batch renormalisation, and .* one output each"):
        hr.SAC(build().policy)
    with pytest.raises(ValueError, match="crossq normalises each batch as a whole, which 2 learners or shards"):
        hr.Trainer("crossq", "Pendulum-v1", shards=2)
    with pytest.raises(TypeError, match="tau"):
        CrossQConfig(tau=0.1)
    with pytest.raises(ValueError, match="renorm_warm_up must be 0 or more, got -1"):
        CrossQConfig(renorm_warm_up=-1)
    with pytest.raises(ValueError, match="quantiles=3 does not go with batch_renorm=0"):
        type(build().policy)(OBSERVATIONS, ACTIONS, quantiles=3, batch_renorm=0)


def test_a_saved_policy_acts_alike_without_its_environment(tmp_path):
    run = hr.train(
        "crossq", "Pendulum-v1", num_envs=2, total_steps=200, learning_starts=100, hidden=(16,), critic_hidden=(8, 8),
        utd_ratio=0.2, log_folder=str(tmp_path), progress="none",
    )  # fmt: skip
    observation = hr.Box(-1, 1, (3,), seed=0).sample()
    policy = hr.load(run.path)
    assert policy.predict(observation)[0] == pytest.approx(run.policy.predict(observation)[0], abs=1e-6)
    assert all(torch.equal(x, run.policy.state_dict()[name]) for name, x in policy.state_dict().items())
    assert norms_of(policy)[0].batches > 0 and torch.isfinite(policy.value(torch.zeros(5, 3))).all()


def test_settings_reach_the_policy():
    config = dataclasses.replace(SMALL, recurrent="gru", rnn_size=4, sequence_length=4, burn_in=0)
    policy = CrossQ.build(config, OBSERVATIONS, ACTIONS, 0, "cpu").policy
    assert policy.config()["batch_renorm"] == 1 and policy.recurrent == "gru"
    assert [weight.shape[2] for weight in policy.critics.weights] == [12, 1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_swings_the_pendulum_up(tmp_path, seed):
    run = hr.train("crossq", "Pendulum-v1", seed=seed, log_folder=str(tmp_path), progress="none")
    assert hr.evaluate(run.policy, "Pendulum-v1").mean >= -200
