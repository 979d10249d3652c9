"""Distributions over actions.

Parameters are feature-first, [P, N]: for a few choices torch's reductions over the first dimension are ten times as
fast as over the last. Actions, log_probs and draws are as in a rollout: [N, ...], [N], [N, num_draws].
Randomness is an argument: `random`, uniform draws in [0, 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from headrace.core.fused import kept

LOG_2PI = math.log(2 * math.pi)
EDGE = 1 - 1e-6  # largest |tanh| of a squashed action: its atanh is 7.25, which float32 still resolves
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0  # of SAC's actors, as in the authors' code
QUADRATURE = 16  # nodes in the entropy of a squashed Gaussian


class Distribution(Protocol):
    """N distributions over actions. entropy and log_prob are differentiable in the parameters."""

    def sample(self, random: Tensor) -> Tensor:
        """Actions [N, ...] drawn with `random` [N, num_draws]."""

    def mode(self) -> Tensor:
        """The most likely actions, [N, ...]."""

    def log_prob(self, action: Tensor) -> Tensor:
        """Log-likelihood (discrete) or log-density (Box) of actions, [N]."""

    def entropy(self) -> Tensor:
        """Entropy in nats, [N]."""


class Categorical:
    """One of K choices, counted from `start`: logits [K, N]. Actions are int32 [N]; one draw a sample."""

    def __init__(self, logits: Tensor, start: int = 0) -> None:
        self.log_probs = torch.log_softmax(logits, 0)
        self.start = start

    def sample(self, random: Tensor) -> Tensor:
        """Inverse transform sampling: the first choice whose cumulative probability is above `random` [N, 1]."""
        return self._choose(random[:, 0])

    def _choose(self, random: Tensor) -> Tensor:
        cumulated = self.log_probs.exp().cumsum(0)
        # multiplied by the last sum, which may differ from 1 by rounding: so a last choice of probability 0 is never
        # drawn
        passed = cumulated[:-1] <= random * cumulated[-1]
        return passed.sum(0, dtype=torch.int32) + self.start

    def mode(self) -> Tensor:
        return self.log_probs.argmax(0).to(torch.int32) + self.start

    def log_prob(self, action: Tensor) -> Tensor:
        index = action.long() if self.start == 0 else action.long() - self.start
        return self.log_probs.gather(0, index.unsqueeze(0)).flatten()

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(0)

    def kl(self, other: Categorical) -> Tensor:
        """KL(self || other) in nats, [N]."""
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(0)


class MultiCategorical:
    """Several independent choices: logits [sum(sizes), N]. Actions are int32 [N, len(sizes)]; one draw for each."""

    def __init__(self, logits: Tensor, sizes: Sequence[int], starts: Sequence[int]) -> None:
        self.parts = [Categorical(part, start) for part, start in zip(logits.split(list(sizes)), starts, strict=True)]

    def sample(self, random: Tensor) -> Tensor:
        return torch.stack([part._choose(random[:, i]) for i, part in enumerate(self.parts)]).t()

    def mode(self) -> Tensor:
        return torch.stack([part.mode() for part in self.parts]).t()

    def log_prob(self, action: Tensor) -> Tensor:
        return torch.stack([part.log_prob(action[:, i]) for i, part in enumerate(self.parts)]).sum(0)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self.parts]).sum(0)

    def kl(self, other: MultiCategorical) -> Tensor:
        """KL(self || other) in nats, [N]."""
        return torch.stack([mine.kl(theirs) for mine, theirs in zip(self.parts, other.parts, strict=True)]).sum(0)


class Bernoulli:
    """K independent Bernoulli variables: logits [K, N] of 1. Actions are int32 [N, K], 0 or 1; one draw for each."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    def sample(self, random: Tensor) -> Tensor:
        # draws are in [0, 1): probability 1 always gives 1, probability 0 never
        return (random.t() < self.logits.sigmoid()).to(torch.int32).t()

    def mode(self) -> Tensor:
        return (self.logits > 0).to(torch.int32).t()

    def log_prob(self, action: Tensor) -> Tensor:
        # log sigmoid(x) for 1, log sigmoid(-x) for 0
        return functional.logsigmoid(self.logits * (2 * action.t() - 1)).sum(0)

    def entropy(self) -> Tensor:
        return (functional.softplus(self.logits) - self.logits * self.logits.sigmoid()).sum(0)

    def kl(self, other: Bernoulli) -> Tensor:
        """KL(self || other) in nats, [N]."""
        on = self.logits.sigmoid()
        apart = on * (self.logits - other.logits) + functional.softplus(other.logits) - functional.softplus(self.logits)
        return apart.sum(0)


class Hybrid:
    """Independent distributions over parts of an action. Actions are float32 [N, sum(sizes)].

    parts: distributions with actions [N] or [N, size] each. sizes: number of entries of each. draws: number of draws
    for a sample of each.
    """

    def __init__(self, parts: list[Any], sizes: list[int], draws: list[int]) -> None:
        self.parts, self.sizes, self.draws = parts, sizes, draws

    def sample(self, random: Tensor) -> Tensor:
        own = zip(self.parts, random.split(self.draws, 1), strict=True)
        return self._join([part.sample(draws) for part, draws in own])

    def mode(self) -> Tensor:
        return self._join([part.mode() for part in self.parts])

    def log_prob(self, action: Tensor) -> Tensor:
        """The sum of the parts' log-likelihoods and log-densities, [N]."""
        of_one = [isinstance(part, Categorical) for part in self.parts]
        own = zip(self.parts, action.split(self.sizes, 1), of_one, strict=True)
        return torch.stack([part.log_prob(values[:, 0] if one else values) for part, values, one in own]).sum(0)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self.parts]).sum(0)

    def kl(self, other: Hybrid) -> Tensor:
        """KL(self || other) in nats, [N]."""
        return torch.stack([mine.kl(theirs) for mine, theirs in zip(self.parts, other.parts, strict=True)]).sum(0)

    def _join(self, values: list[Tensor]) -> Tensor:
        return torch.cat([(x if x.dim() > 1 else x.unsqueeze(1)).float() for x in values], 1)


class Gaussian:
    """Independent normals: mean [K, N], log_std [K, 1]. Actions are [N, K]; two draws for every two of K."""

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean, self.log_std = mean, log_std

    def sample(self, random: Tensor) -> Tensor:
        return torch.addcmul(self.mean, box_muller(random.t(), len(self.mean)), self.log_std.exp()).t()

    def mode(self) -> Tensor:
        return self.mean.t()

    def log_prob(self, action: Tensor) -> Tensor:
        distance = (action.t() - self.mean) * (-self.log_std).exp()
        constant = self.log_std.sum() + 0.5 * LOG_2PI * len(self.mean)
        return (distance * distance).sum(0) * -0.5 - constant

    def entropy(self) -> Tensor:
        return (self.log_std.sum() + 0.5 * (1 + LOG_2PI) * len(self.mean)).expand(self.mean.shape[1])

    def kl(self, other: Gaussian) -> Tensor:
        """KL(self || other) in nats, [N]."""
        variance = (2 * (self.log_std - other.log_std)).exp()
        distance = (self.mean - other.mean) * (-other.log_std).exp()
        return 0.5 * (variance + distance * distance - 1 - variance.log()).sum(0)


class SquashedGaussian:
    """Normals through tanh, scaled to the bounds: action = center + half * tanh(x). center, half: [K, 1].

    Haarnoja et al. 2018, arXiv:1812.05905, appendix C. Samples stay 1e-6 of half the range inside the bounds, and
    log_prob of an action at the bounds is that of the nearest sample: it is finite, and equal when computed again.
    """

    def __init__(self, mean: Tensor, log_std: Tensor, center: Tensor, half: Tensor) -> None:
        self.normal = Gaussian(mean, log_std)
        self.center, self.half = center, half

    def sample(self, random: Tensor) -> Tensor:
        return self._stretch(self.normal.sample(random).t())

    def mode(self) -> Tensor:
        """The mean of the normal, squashed: the median, since the mode of the density may lie at the bounds."""
        return self._stretch(self.normal.mean)

    def _stretch(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.center, x.tanh().clamp(-EDGE, EDGE), self.half).t()

    def log_prob(self, action: Tensor) -> Tensor:
        squashed = ((action.t() - self.center) / self.half).clamp(-EDGE, EDGE)
        slope = (1 - squashed) * (1 + squashed) * self.half  # of the action in x; 1 - squashed is exact near the edge
        return self.normal.log_prob(squashed.atanh().t()) - slope.log().sum(0)

    def entropy(self) -> Tensor:
        """Entropy of the normal plus the mean log-slope of the squashing, by Gauss-Hermite quadrature in 16 nodes.

        Within 0.005 nats per dimension for standard deviations up to 1.5, 0.06 up to 3. Unlike -log_prob of a given
        action, its gradient is that of the entropy.
        """
        mean, log_std = self.normal.mean, self.normal.log_std
        nodes, weights = _quadrature(mean.dtype, mean.device)
        x = mean + log_std.exp() * nodes
        log_slope = 2 * (math.log(2) - x - functional.softplus(-2 * x))
        return self.normal.entropy() + ((log_slope * weights).sum(0) + self.half.log()).sum(0)

    def kl(self, other: SquashedGaussian) -> Tensor:
        """KL(self || other) in nats, [N]: the same squashing of both does not change it."""
        return self.normal.kl(other.normal)


@kept
def _quadrature(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights for the mean over a standard normal, [16, 1, 1]; cached, since a copy to a GPU synchronises."""
    points, masses = np.polynomial.hermite_e.hermegauss(QUADRATURE)
    given = np.stack((points, masses / masses.sum())).tolist()
    nodes, weights = torch.tensor(given, dtype=dtype, device=device).view(2, -1, 1, 1)
    return nodes, weights


def box_muller(random: Tensor, count: int) -> Tensor:
    """Standard normals [count, N] from uniform draws [D, N], D = count rounded up to even. Box & Muller 1958."""
    pairs = len(random) // 2
    # 1 - draw lies in (0, 1]: its logarithm is finite
    radius = (-2 * torch.log1p(-random[:pairs])).sqrt()
    angle = random[pairs:] * (2 * math.pi)
    return torch.cat((radius * angle.cos(), radius * angle.sin()))[:count]


class Tanh(torch.autograd.Function):
    """tanh of an actor's output, with the slope computed as 1 / cosh(x)^2 from the input.

    For |x| of 9 or more, 1 - tanh(x)^2 from the output is only rounding: 0, or twice the true slope. Adam, which
    divides gradients by their size, would take full steps along it.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        ctx.save_for_backward(output)
        return output.tanh()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (output,) = ctx.saved_tensors
        return gradient * (1 / output.cosh()).square()


def _split(parameters: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log standard deviation, [K, B] each, of an actor's output [2 K, B]."""
    mean, log_std = parameters.chunk(2)
    return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


def sample_squashed(parameters: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
    """Actions in [-1, 1], [K, B], and their log-density [B], of an actor's output [2 K, B] and standard normal draws
    [K, B]. Haarnoja et al. 2018, arXiv:1812.05905, appendix C, eq. 21.

    The log of tanh's derivative is 2 (log 2 - x - softplus(-2 x)): exact where 1 - tanh(x)^2 is 0 in float32.
    """
    mean, log_std = _split(parameters)
    x = torch.addcmul(mean, log_std.exp(), normal)
    log_slope = 2 * (math.log(2) - x - functional.softplus(-2 * x))
    log_density = -0.5 * normal.square() - log_std - 0.5 * LOG_2PI
    action: Tensor = Tanh.apply(x)  # type: ignore[no-untyped-call]
    return action, (log_density - log_slope).sum(0)
