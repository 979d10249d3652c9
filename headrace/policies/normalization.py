"""Running mean and variance, and what policies normalise with them: observations and returns.

Statistics move only in update(), once per iteration, after learning: until then every replay sees what was collected.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RunningStatistics(nn.Module):
    """Mean and variance of all rows seen, in float64. Chan, Golub & LeVeque 1983, the parallel update.

    keep: weight left to earlier rows at each update; 1 forgets nothing.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor  # sum of squared distances from the mean

    def __init__(self, size: int, keep: float = 1.0) -> None:
        super().__init__()
        self.keep = keep
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(size, dtype=torch.float64))

    def update(self, rows: Tensor, valid: Tensor) -> None:
        """Take in the valid ones of rows [R, F]; valid: bool [R]."""
        weight = valid.to(torch.float64)
        rows = rows.to(torch.float64).t()  # feature-first, as they lie in memory
        added = weight.sum()
        mean = rows @ weight / added.clamp(min=1)
        squares = (rows - mean.unsqueeze(1)).square() @ weight
        before = self.count * self.keep
        total = before + added
        share = added / total.clamp(min=1)
        shift = mean - self.mean
        self.mean += shift * share
        self.squares.mul_(self.keep).add_(squares + shift.square() * (before * share))
        self.count.copy_(total)

    def variance(self) -> Tensor:
        """Variance of the rows seen, float64 [F]; 1 before there are two."""
        return torch.where(self.count > 1, self.squares / self.count.clamp(min=1), 1.0)


class ObservationNormalizer(nn.Module):
    """(observation - mean) / sqrt(variance + 1e-8), clipped to +-limit standard deviations. The identity at first."""

    center: Tensor
    scale: Tensor

    def __init__(self, size: int, limit: float = 10.0) -> None:
        super().__init__()
        self.limit = limit
        self.statistics = RunningStatistics(size)
        self.register_buffer("center", torch.zeros(size))
        self.register_buffer("scale", torch.ones(size))

    def forward(self, observation: Tensor) -> Tensor:
        """Normalised observations, float32 [N, F]."""
        return (observation - self.center).mul_(self.scale).clamp_(-self.limit, self.limit)

    @torch.no_grad()
    def update(self, observation: Tensor, valid: Tensor) -> None:
        """Move the statistics by the valid ones of observations [R, F]."""
        self.statistics.update(observation, valid)
        self.center.copy_(self.statistics.mean)
        self.scale.copy_((self.statistics.variance() + 1e-8).rsqrt())


class ReturnNormalizer(nn.Module):
    """PopArt: the critic's last layer predicts (return - center) / scale. van Hasselt et al. 2016, arXiv:1602.07714.

    Returns grow as a policy improves, so earlier ones are forgotten: each iteration keeps 0.9 of their weight.
    """

    center: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.statistics = RunningStatistics(1, keep=0.9)
        self.register_buffer("center", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, value: Tensor) -> Tensor:
        """Values in units of return from the critic's normalised ones."""
        return torch.addcmul(self.center, value, self.scale)

    @torch.no_grad()
    def update(self, returns: Tensor, valid: Tensor, weight: Tensor, bias: Tensor) -> None:
        """Move the statistics by valid returns [R], and rescale the last layer so that its values stay what they were.

        weight [1, H] and bias [1] of the last layer are changed in place. van Hasselt et al. 2016, eq. 8 and 9.
        """
        center, scale = self.center.clone(), self.scale.clone()
        self.statistics.update(returns.unsqueeze(1), valid)
        self.center.copy_(self.statistics.mean[0])
        self.scale.copy_(self.statistics.variance()[0].sqrt().clamp(1e-4, 1e6))
        weight.mul_(scale / self.scale)
        bias.copy_((bias * scale + center - self.center) / self.scale)
