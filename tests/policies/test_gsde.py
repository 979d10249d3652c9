"""State-dependent exploration: its distribution, its matrices, and trainings with it."""

from itertools import pairwise

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.algorithms.a2c import A2C, A2CConfig
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.algorithms.sac import SAC, SACConfig
from headrace.core.fused import plain_only
from headrace.data.spaces import Box, Discrete
from headrace.deploy.exporter import export
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.actor_q import ActorQ
from headrace.policies.heads import normals

SEEN, FORCES = Box(-1, 1, (5,)), Box(np.array([-2.0, 0.0, -1.0], np.float32), np.array([2.0, 1.0, 1.0], np.float32))


def random_weights(policy, scale=0.5):
    generator = torch.Generator().manual_seed(1)
    for parameter in policy.parameters():
        parameter.data.copy_(scale * torch.randn(parameter.shape, generator=generator))
    return policy


def actor_critic(distribution="unit_gaussian", **settings):
    return random_weights(ActorCritic(SEEN, FORCES, (8,), distribution=distribution, use_sde=True, **settings))


def rows(number=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(number, size, generator=generator) for size in (5, 3)]


def gradients(of, parameters):
    return torch.autograd.grad(of, parameters, retain_graph=True, allow_unused=True)


@pytest.mark.parametrize("use_expln", [False, True])
@pytest.mark.parametrize("origin", ["torch", "stable_baselines3"])
def test_density_entropy_and_gradients_are_those_of_the_paper(origin, use_expln):
    """Eq. 9 and 10: a normal of variance sum (sigma z)^2, through which the features have no gradient."""
    policy, (seen, action) = actor_critic(use_expln=use_expln), rows()
    parameters = [policy.head.log_std, policy.actor_out.weight, policy.actor.layers[0].weight]
    features = policy.actor(seen)
    mean = policy.actor_out(features).t()
    if origin == "torch":
        log_std = policy.head.log_std
        deviation = torch.where(log_std > 0, log_std.relu().add(1e-6).log1p() + 1, log_std.exp())
        variance = features.detach() ** 2 @ (deviation if use_expln else log_std.exp()) ** 2
        normal = torch.distributions.Normal(mean, (variance + 1e-6).sqrt())
        wanted = normal.log_prob(action).sum(1), normal.entropy().sum(1)
    else:
        theirs = pytest.importorskip("stable_baselines3.common.distributions").StateDependentNoiseDistribution
        theirs = theirs(3, use_expln=use_expln)
        theirs.latent_sde_dim = 8
        theirs.proba_distribution(mean, policy.head.log_std, features)
        wanted = theirs.log_prob(action), theirs.entropy()
    found = policy.log_prob_entropy_value(seen, action)[:2]
    weights = torch.arange(16.0)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        for grad, theirs in zip(*(gradients(x @ weights, parameters) for x in (one, other)), strict=True):
            assert grad is theirs is None or torch.allclose(grad, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("distribution", ["gaussian", "squashed"])
def test_units_of_actions_are_those_of_the_distribution(distribution):
    policy, (seen, _) = actor_critic(distribution), rows()
    features = policy.actor(seen)
    deviation = (features**2 @ policy.head.log_std.exp() ** 2 + 1e-6).sqrt()
    normal = torch.distributions.Normal(policy.actor_out(features).t(), deviation)
    x = normal.mean + 0.7 * deviation
    low, high = torch.tensor(FORCES.low), torch.tensor(FORCES.high)
    center, half = (low + high) / 2, (high - low) / 2
    action = center + half * (x if distribution == "gaussian" else x.tanh())
    slope = half if distribution == "gaussian" else half * (1 - x.tanh() ** 2)
    wanted = (normal.log_prob(x) - slope.log()).sum(1)
    torch.testing.assert_close(policy.log_prob_entropy_value(seen, action)[0], wanted, rtol=1e-3, atol=1e-3)


def test_normals_are_independent_and_standard():
    seeds = torch.rand(4000, 2, generator=torch.Generator().manual_seed(0))
    drawn = normals(seeds, 5, 3)
    assert drawn.shape == (5, 3, 4000) and drawn.mean().abs() < 0.01 and abs(float(drawn.std()) - 1) < 0.01
    correlation = torch.corrcoef(drawn.flatten(0, 1))
    assert (correlation - torch.eye(15)).abs().max() < 0.08
    assert torch.equal(normals(seeds[7:8], 5, 3), drawn[..., 7:8])  # whatever the batch


@torch.no_grad()
def test_a_matrix_holds_for_its_steps_and_ends_with_the_episode():
    policy, (seen, _) = actor_critic(sde_sample_freq=3), rows(4)
    random = torch.rand(8, 4, policy.num_draws, generator=torch.Generator().manual_seed(2))
    state, actions = policy.initial_state(4), []
    for step in range(8):
        output = policy.act(seen, state, random[step])
        state = output.rnn_state.clone()
        if step == 3:
            state[1] = 0  # the episode of one environment ends, as in collector.mask_state()
        actions.append(output.action)
        torch.testing.assert_close(output.log_prob, policy.log_prob_entropy_value(seen, output.action)[0])
    begins = [[bool((a != b).any()) for a, b in zip(one, other, strict=True)] for one, other in pairwise(actions)]
    assert [row[0] for row in begins] == [False, False, True, False, False, True, False]
    assert [row[1] for row in begins] == [False, False, True, True, False, False, True]
    assert len({tuple(row.tolist()) for row in actions[0] - policy.distribution(seen).mode()}) == 4


@torch.no_grad()
@pytest.mark.parametrize("kind", [ActorCritic, ActorQ])
def test_noise_of_many_matrices_has_the_variance_that_is_learned(kind):
    number, seen = 6000, rows(1)[0]
    policy = actor_critic() if kind is ActorCritic else random_weights(ActorQ(SEEN, FORCES, (8,), use_sde=True), 0.3)
    (policy.head if kind is ActorCritic else policy.noise_matrix).log_std.sub_(1.5)
    random = torch.rand(number, policy.num_draws, generator=torch.Generator().manual_seed(3))
    action = policy.act(seen.expand(number, -1), policy.initial_state(number), random).action
    if kind is ActorCritic:
        distribution = policy.distribution(seen)
        mean, deviation = distribution.mean[:, 0], distribution.log_std[:, 0].exp()
    else:
        action = policy.normalize_action(action).atanh()
        mean, log_std = policy.actor_output(policy.encoder(seen))[:, 0].chunk(2)
        deviation = log_std.exp()
    assert ((action.mean(0) - mean).abs() < 0.06 * deviation).all()
    torch.testing.assert_close(action.std(0), deviation, rtol=0.05, atol=0.0)


def test_features_of_sac_have_a_gradient_through_the_variance():
    policy, (seen, _) = random_weights(ActorQ(SEEN, FORCES, (8,), use_sde=True)), rows()
    log_std = policy.actor_output(policy.encoder(seen))[3:]
    features = policy.actor(seen)
    wanted = 0.5 * (features**2 @ policy.noise_matrix.log_std.exp() ** 2 + 1e-6).log()
    torch.testing.assert_close(log_std.t(), wanted)
    weight = policy.actor.layers[0].weight
    torch.testing.assert_close(*(gradients(x.sum(), [weight])[0] for x in (log_std, wanted)))
    assert any(parameter is policy.noise_matrix.log_std for parameter in policy.actor_parameters())


@pytest.mark.parametrize(("algorithm", "config"), [(PPO, PPOConfig), (A2C, A2CConfig), (SAC, SACConfig)])
def test_settings_reach_the_policy(algorithm, config):
    policy = algorithm.build(config(use_sde=True, num_steps=6, initial_std=0.2), SEEN, FORCES, 0, "cpu").policy
    matrix = policy.noise_matrix if algorithm is SAC else policy.head
    assert matrix.sample_freq == 6 and matrix.log_std.exp().eq(torch.tensor(0.2).log().exp()).all()
    other = algorithm.build(config(use_sde=True, sde_sample_freq=4), SEEN, FORCES, 0, "cpu").policy
    matrix = other.noise_matrix if algorithm is SAC else other.head
    assert matrix.sample_freq == 4 and abs(matrix.log_std[0, 0].exp().item() - 0.05) < 1e-6
    plain = algorithm.build(config(initial_std=0.2), SEEN, FORCES, 0, "cpu").policy
    log_std = plain.actor_out.bias[3:] if algorithm is SAC else plain.head.log_std
    torch.testing.assert_close(log_std.exp(), torch.full_like(log_std, 0.2))
    again = type(policy).from_config(policy.config())
    again.load_state_dict(policy.state_dict())
    assert again.use_sde and again.state_width == 3


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValueError, match="use_sde is for actions of a Box"):
        PPO.build(PPOConfig(use_sde=True), SEEN, Discrete(2), 0, "cpu")
    with pytest.raises(ValueError, match="use_sde does not go with recurrent='gru'"):
        PPO.build(PPOConfig(use_sde=True, recurrent="gru"), SEEN, FORCES, 0, "cpu")
    with pytest.raises(ValueError, match="use_sde does not go with noise_autocorrelation"):
        SAC.build(SACConfig(use_sde=True, noise_autocorrelation=0.5), SEEN, FORCES, 0, "cpu")
    with pytest.raises(ValueError, match="sde_sample_freq must be 1 or more, or -1"):
        A2CConfig(sde_sample_freq=0)


@pytest.mark.parametrize("algorithm", ["a2c", "sac"])
def test_a_training_resumes_in_its_bits_and_exports(algorithm, tmp_path):
    own = {"learning_starts": 8, "batch_size": 16, "buffer_size": 200} if algorithm == "sac" else {}
    settings = {"num_envs": 2, "hidden": (8,), "num_steps": 4, "use_sde": True, "sde_sample_freq": 3, **own}
    with plain_only():
        first = hr.Trainer(algorithm, "Pendulum-v1", total_steps=200, seed=0, **settings)
        for _ in range(5):
            first.iterate()
        state = first.state_dict()
        second = hr.Trainer(algorithm, "Pendulum-v1", total_steps=200, seed=0, **settings)
        second.load_state_dict(state)
        for trainer in (first, second):
            for _ in range(3):
                trainer.iterate()
    tensors = [trainer.algorithm.policy.state_dict() for trainer in (first, second)]
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])
    policy = first.algorithm.policy
    seen = np.random.default_rng(0).uniform(-1, 1, (20, 3)).astype(np.float32)
    assert np.array_equal(policy.predict(seen)[0], policy.predict(seen)[0])
    assert not np.array_equal(policy.predict(seen, deterministic=False)[0], policy.predict(seen)[0])
    export(policy, "numpy", tmp_path / "policy.py")  # which compares its actions
    first.close()
    second.close()


def test_initial_weights_of_torch():
    policy = ActorCritic(SEEN, FORCES, (64,), ortho_init=False)
    weight, bias = policy.actor.layers[0].weight, policy.actor.layers[0].bias
    limit = 5**-0.5
    assert 0.9 * limit < weight.abs().max() <= limit and 0.8 * limit < bias.abs().max() <= limit
    assert policy.actor_out.weight.abs().max() <= 1 / 8 and policy.actor_out.weight.std() > 0.05
    assert not torch.equal(policy.actor.layers[0].weight, ActorCritic(SEEN, FORCES, (64,)).actor.layers[0].weight)
