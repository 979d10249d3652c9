"""Distributions against torch.distributions in float64, and their samples against what they claim."""

import math

import pytest
import torch
from torch import distributions as torch_distributions

from headrace.policies.distributions import (
    EDGE,
    Bernoulli,
    Categorical,
    Gaussian,
    MultiCategorical,
    SquashedGaussian,
    box_muller,
)

DRAWS = 200_000


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(5)


def normal(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_categorical_equals_torch(generator):
    logits, other = normal(generator, 5, 30) * 3, normal(generator, 5, 30)
    ours, theirs = Categorical(logits, start=2), torch_distributions.Categorical(logits=logits.t())
    action = torch.randint(0, 5, (30,), generator=generator)
    torch.testing.assert_close(ours.log_prob((action + 2).int()), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    kl = torch_distributions.kl_divergence(theirs, torch_distributions.Categorical(logits=other.t()))
    torch.testing.assert_close(ours.kl(Categorical(other)), kl)
    assert torch.equal(ours.mode(), (logits.argmax(0) + 2).int())


def test_categorical_draws_each_choice_as_often_as_it_should(generator):
    probs = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05])
    action = Categorical(probs.log().unsqueeze(1).expand(5, DRAWS), start=-1).sample(
        torch.rand(DRAWS, 1, generator=generator)
    )
    counts = torch.bincount(action + 1, minlength=5)
    assert action.dtype == torch.int32 and counts[1] == 0
    seen, expected = counts[probs > 0], probs[probs > 0] * DRAWS
    assert ((seen - expected).square() / expected).sum() < 16.3  # chi-square of 3 degrees at p = 0.001


def test_categorical_at_the_ends_of_the_draws():
    logits = torch.tensor([-math.inf, 0.0, 0.0, -math.inf]).unsqueeze(1).expand(4, 3)
    random = torch.tensor([[0.0], [0.5], [1 - 2.0**-24]])
    assert Categorical(logits).sample(random).tolist() == [1, 2, 2]


def test_multi_categorical_is_independent_choices(generator):
    logits, sizes, starts = normal(generator, 5, 30), [2, 3], [0, 4]
    ours = MultiCategorical(logits, sizes, starts)
    parts = [torch_distributions.Categorical(logits=part.t()) for part in logits.split(sizes)]
    action = torch.stack([part.sample() for part in parts], 1)
    expected = sum(part.log_prob(action[:, i]) for i, part in enumerate(parts))
    torch.testing.assert_close(ours.log_prob(action + torch.tensor(starts)), expected)
    torch.testing.assert_close(ours.entropy(), parts[0].entropy() + parts[1].entropy())
    assert torch.equal(ours.mode(), torch.stack([p.logits.argmax(1) for p in parts], 1) + torch.tensor(starts))
    assert ours.kl(ours).abs().max() == 0


def test_multi_categorical_draws(generator):
    logits = torch.tensor([0.7, 0.3, 0.2, 0.5, 0.3]).log().unsqueeze(1).expand(5, DRAWS)
    action = MultiCategorical(logits, [2, 3], [0, 0]).sample(torch.rand(DRAWS, 2, generator=generator))
    joint = torch.bincount(action[:, 0] * 3 + action[:, 1], minlength=6) / DRAWS
    expected = torch.tensor([0.7, 0.3]).outer(torch.tensor([0.2, 0.5, 0.3])).flatten()
    torch.testing.assert_close(joint, expected, atol=0.005, rtol=0)


def test_bernoulli_equals_torch(generator):
    logits, other = normal(generator, 4, 30) * 3, normal(generator, 4, 30)
    ours = Bernoulli(logits)
    theirs = torch_distributions.Independent(torch_distributions.Bernoulli(logits=logits.t()), 1)
    action = torch.randint(0, 2, (30, 4), generator=generator).int()
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action.double()))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    apart = torch_distributions.Independent(torch_distributions.Bernoulli(logits=other.t()), 1)
    torch.testing.assert_close(ours.kl(Bernoulli(other)), torch_distributions.kl_divergence(theirs, apart))
    assert torch.equal(ours.mode(), (logits.t() > 0).int())


def test_bernoulli_gradients_are_finite_where_a_switch_is_certain():
    logits = torch.tensor([[90.0], [-90.0]], requires_grad=True)
    (Bernoulli(logits).log_prob(torch.tensor([[0, 1]])) + Bernoulli(logits).entropy()).sum().backward()
    assert logits.grad.isfinite().all()


def test_bernoulli_draws_each_switch_as_often_as_it_should(generator):
    probs = torch.tensor([0.0, 0.2, 0.9, 1.0])
    action = Bernoulli(probs.logit().unsqueeze(1).expand(4, DRAWS)).sample(torch.rand(DRAWS, 4, generator=generator))
    assert action.dtype == torch.int32
    torch.testing.assert_close(action.float().mean(0), probs, atol=0.004, rtol=0)
    assert not action[:, 0].any() and action[:, 3].all()
    torch.testing.assert_close(torch.cov(action[:, 1:3].float().t())[0, 1], torch.tensor(0.0), atol=0.002, rtol=0)


def test_gaussian_equals_torch(generator):
    mean, log_std = normal(generator, 3, 20), normal(generator, 3, 1)
    ours = Gaussian(mean, log_std)
    theirs = torch_distributions.Independent(torch_distributions.Normal(mean.t(), log_std.t().exp()), 1)
    action = normal(generator, 20, 3)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action))
    torch.testing.assert_close(ours.entropy(), theirs.entropy())
    other_mean, other_std = normal(generator, 3, 20), normal(generator, 3, 1)
    other = torch_distributions.Independent(torch_distributions.Normal(other_mean.t(), other_std.t().exp()), 1)
    kl = torch_distributions.kl_divergence(theirs, other)
    torch.testing.assert_close(ours.kl(Gaussian(other_mean, other_std)), kl)
    assert torch.equal(ours.mode(), mean.t())


def test_box_muller_draws_are_normal_and_independent(generator):
    x = box_muller(torch.rand(4, DRAWS, generator=generator, dtype=torch.float64), 3)
    assert x.shape == (3, DRAWS)
    torch.testing.assert_close(torch.cov(x), torch.eye(3, dtype=torch.float64), atol=0.015, rtol=0)
    assert x.mean(1).abs().max() < 0.01
    assert (x**4).mean(1).sub(3).abs().max() < 0.1
    below = (x.abs() < 1).double().mean(1)
    assert (below - 0.6827).abs().max() < 0.005


def test_box_muller_is_finite_at_the_ends_of_the_draws():
    ends = torch.tensor([[0.0, 0.0, 1 - 2.0**-24, 1 - 2.0**-24], [0.0, 1 - 2.0**-24, 0.0, 1 - 2.0**-24]])
    assert box_muller(ends, 2).abs().max() < 6


def squashed(mean, log_std):
    center, half = torch.tensor([[1.0], [0.0]]).to(mean), torch.tensor([[2.0], [0.5]]).to(mean)
    return SquashedGaussian(mean, log_std, center, half)


def test_squashed_gaussian_equals_torch(generator):
    mean, log_std = normal(generator, 2, 50), normal(generator, 2, 1) * 0.3
    ours = squashed(mean, log_std)
    transforms = [
        torch_distributions.TanhTransform(),
        torch_distributions.AffineTransform(ours.center.t(), ours.half.t()),
    ]
    normals = torch_distributions.Normal(mean.t(), log_std.t().exp())
    theirs = torch_distributions.TransformedDistribution(normals, transforms)
    action = ours.sample(torch.rand(50, 2, generator=generator, dtype=torch.float64))
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action).sum(1))


def test_squashed_gaussian_is_finite_at_its_bounds():
    mean = torch.tensor([[0.0, 50.0, -50.0], [0.0, 50.0, -50.0]], requires_grad=True)
    ours = squashed(mean, torch.zeros(2, 1))
    mode = ours.mode()
    assert mode[:, 0].min() >= -1 and mode[:, 0].max() <= 3 and mode[:, 1].abs().max() <= 0.5
    bounds = torch.tensor([[3.0, 0.5], [3.0, 0.5], [-1.0, -0.5]])
    log_prob = ours.log_prob(bounds)
    log_prob.sum().backward()
    assert log_prob.isfinite().all() and mean.grad.isfinite().all()
    inside = ours.center + ours.half * torch.tensor([[EDGE, EDGE, -EDGE]])
    torch.testing.assert_close(log_prob, ours.log_prob(inside.t()), rtol=1e-3, atol=1e-3)


def test_squashed_samples_have_the_density_claimed(generator):
    ours = squashed(torch.zeros(2, DRAWS) + 0.4, torch.zeros(2, 1) - 0.3)
    random = torch.rand(DRAWS, 2, generator=generator)
    action = ours.sample(random)
    # E[1 / density] over samples is the volume of where they fall, here nearly all of 4 x 1
    narrow = (action[:, 0] > 0) & (action[:, 0] < 2) & (action[:, 1].abs() < 0.3)
    volume = ((-ours.log_prob(action)).exp() * narrow).mean()
    torch.testing.assert_close(volume, torch.tensor(2 * 0.6), rtol=0.02, atol=0)


@pytest.mark.parametrize(("std", "tolerance"), [(0.3, 0.01), (1.5, 0.01), (3.0, 0.12)])
def test_squashed_entropy_is_the_mean_of_minus_log_prob(generator, std, tolerance):
    ours = squashed(torch.full((2, DRAWS), 0.5), torch.full((2, 1), math.log(std)))
    sampled = -ours.log_prob(ours.sample(torch.rand(DRAWS, 2, generator=generator))).mean()
    assert abs(ours.entropy()[0] - sampled) < tolerance + 0.01  # the sample's own error


def test_entropies_have_their_gradients(generator):
    mean = normal(generator, 2, 3).requires_grad_()
    log_std = torch.zeros(2, 1, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda m, s: squashed(m, s).entropy(), (mean, log_std))
    assert torch.autograd.gradcheck(lambda m: Categorical(m).entropy(), mean)
