"""Running mean and variance, and the normalisation of observations, returns and layers with them.

Statistics of observations and returns change only in update(), once per iteration, after learning. So a rollout is
evaluated with the statistics that it was collected with. Statistics of layers change with each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations (M2) of a set of rows; those of two sets can be merged."""

    count: Tensor  # float64 []
    mean: Tensor  # float64 [F]
    squares: Tensor  # float64 [F]: the sum of squared deviations from the mean

    @classmethod
    def of(cls, rows: Tensor, valid: Tensor) -> Moments:
        """Moments of the valid rows of [R, F]; valid: bool [R]."""
        weight = valid.to(torch.float64)
        rows = rows.to(torch.float64).t()  # feature-first, as they lie in memory
        count = weight.sum()
        mean = rows @ weight / count.clamp(min=1)
        return cls(count, mean, (rows - mean.unsqueeze(1)).square() @ weight)

    def merge(self, other: Moments) -> Moments:
        """Moments of the rows of both sets. Chan, Golub & LeVeque 1983."""
        count = self.count + other.count
        fraction = other.count / count.clamp(min=1)
        shift = other.mean - self.mean
        squares = self.squares + (other.squares + shift.square() * (self.count * fraction))
        return Moments(count, self.mean + shift * fraction, squares)


def own_rows(moments: Moments) -> Moments:
    """The moments that update() of a normaliser merges: those of its rows, or with several learners of all rows."""
    return moments


class RunningStatistics(nn.Module):
    """Mean and variance of all rows whose moments were given to merge(), in float64.

    keep: factor on the weight of earlier rows at each merge; 1 weighs all rows alike.
    """

    count: Tensor
    mean: Tensor
    squares: Tensor

    def __init__(self, size: int, keep: float = 1.0) -> None:
        super().__init__()
        self.keep = keep
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(size, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(size, dtype=torch.float64))

    def moments(self) -> Moments:
        """The present statistics: views of the buffers."""
        return Moments(self.count, self.mean, self.squares)

    def merge(self, new: Moments) -> None:
        """Add rows by their moments, so that parts of a batch can be counted in different processes."""
        merged = Moments(self.count * self.keep, self.mean, self.squares * self.keep).merge(new)
        self.count.copy_(merged.count)
        self.mean.copy_(merged.mean)
        self.squares.copy_(merged.squares)

    def variance(self) -> Tensor:
        """Variance of the rows seen, float64 [F]; 1 before there are two."""
        return torch.where(self.count > 1, self.squares / self.count.clamp(min=1), 1.0)


class ObservationNormalizer(nn.Module):
    """(observation - mean) / sqrt(variance + 1e-8), clipped to +-limit standard deviations. The identity at first."""

    center: Tensor
    scale: Tensor
    merged: Callable[[Moments], Moments] = staticmethod(own_rows)

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
        """Update the statistics with the valid rows of observations [R, F]."""
        self.merge(self.merged(Moments.of(observation, valid)))

    @torch.no_grad()
    def merge(self, new: Moments) -> None:
        """Update the statistics with observations by their moments."""
        self.statistics.merge(new)
        self.center.copy_(self.statistics.mean)
        self.scale.copy_((self.statistics.variance() + 1e-8).rsqrt())


class ReturnNormalizer(nn.Module):
    """PopArt: the critic's last layer predicts (return - center) / scale. van Hasselt et al. 2016, arXiv:1602.07714.

    Returns grow as a policy improves, so the weight of earlier returns is multiplied by 0.9 at each update.
    """

    center: Tensor
    scale: Tensor
    merged: Callable[[Moments], Moments] = staticmethod(own_rows)

    def __init__(self) -> None:
        super().__init__()
        self.statistics = RunningStatistics(1, keep=0.9)
        self.register_buffer("center", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, value: Tensor) -> Tensor:
        """Values in units of return, from the critic's normalised output."""
        return torch.addcmul(self.center, value, self.scale)

    @torch.no_grad()
    def update(self, returns: Tensor, valid: Tensor, weight: Tensor, bias: Tensor) -> None:
        """Update the statistics with the valid returns of [R], and rescale the last layer so that values do not change.

        weight [1, H] and bias [1] of the last layer are changed in place. van Hasselt et al. 2016, eq. 8 and 9.
        """
        self.merge(self.merged(Moments.of(returns.unsqueeze(1), valid)), weight, bias)

    @torch.no_grad()
    def merge(self, new: Moments, weight: Tensor, bias: Tensor) -> None:
        """update() with returns by their moments."""
        center, scale = self.center.clone(), self.scale.clone()
        self.statistics.merge(new)
        self.center.copy_(self.statistics.mean[0])
        self.scale.copy_(self.statistics.variance()[0].sqrt().clamp(1e-4, 1e6))
        weight.mul_(scale / self.scale)
        bias.copy_((bias * scale + center - self.center) / self.scale)


def normalizers(policy: nn.Module) -> list[ObservationNormalizer | ReturnNormalizer]:
    """The normalisers of a policy, in the order of its modules."""
    return [module for module in policy.modules() if isinstance(module, ObservationNormalizer | ReturnNormalizer)]


def statistics_of(encoder: Any) -> Callable[[Any, Tensor], object] | None:
    """The method of an encoder that updates its statistics; None for an encoder without statistics.

    For a Sequential it is the first module's, which receives the observations. Raises TypeError for an encoder that
    contains an ObservationNormalizer but has no method to update it.
    """
    first = encoder
    while isinstance(first, nn.Sequential) and len(first) and not hasattr(first, "update_statistics"):
        first = first[0]
    update = getattr(first, "update_statistics", None)
    reached = [] if update is None else [*map(id, first.modules())]
    for name, part in encoder.named_modules():
        if isinstance(part, ObservationNormalizer) and id(part) not in reached:
            raise TypeError(
                f"the encoder is a {type(encoder).__name__}, in which nothing updates the statistics of {name}: write "
                "its update_statistics(self, observation, valid), which gives them the observations [R, ...]"
            )
    return update  # type: ignore[no-any-return]


def update_encoder(encoder: Any, observation: Any, valid: Tensor) -> None:
    """Update the statistics that an encoder has with the valid ones of observations [R, ...]. valid: bool [R]."""
    if (update := statistics_of(encoder)) is not None:
        update(observation, valid)


class BatchRenorm(nn.Module):
    """Batch renormalisation of features [..., R, F] over their R rows. Ioffe 2017, arXiv:1702.03275, algorithm 1.

    Given the rows' weights, features are normalised by the moments of the batch, corrected towards the running ones by
    factors without a gradient, and the running ones are updated; without weights, by the running ones alone.
    shape: of the parameters, [F], or [C, 1, F] for C networks whose features are [C, R, F].
    warm_up: batches at the start that are not corrected: batch normalisation (Ioffe & Szegedy 2015, arXiv:1502.03167).
    keep: weight of the running moments in an update; r_max, d_max: limits of the corrections (names of the paper).
    """

    mean: Tensor
    std: Tensor
    batches: Tensor

    def __init__(
        self,
        shape: Sequence[int],
        warm_up: int,
        keep: float = 0.99,
        eps: float = 1e-3,
        r_max: float = 3.0,
        d_max: float = 5.0,
    ) -> None:
        super().__init__()
        self.warm_up, self.keep, self.eps, self.r_max, self.d_max = warm_up, keep, eps, r_max, d_max
        self.weight, self.bias = nn.Parameter(torch.ones(*shape)), nn.Parameter(torch.zeros(*shape))
        self.register_buffer("mean", torch.zeros(*shape))
        self.register_buffer("std", torch.ones(*shape))
        self.register_buffer("batches", torch.zeros(()))

    def forward(self, features: Tensor, weight: Tensor | None = None) -> Tensor:
        """Normalised features, scaled and shifted. weight: [R], which sum to 1; rows of weight 0 do not count."""
        if weight is None:
            scale = self.weight / self.std
            return torch.addcmul(self.bias - self.mean * scale, features, scale)
        normalized: Tensor = BatchRenormFunction.apply(features, weight.unsqueeze(1), self.weight, self.bias, self)
        return normalized

    @torch.no_grad()
    def _corrections(self, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """r and d of the paper for a batch's moments, which are then added to the running ones."""
        corrects = self.batches >= self.warm_up
        r = torch.where(corrects, (std / self.std).clamp(1 / self.r_max, self.r_max), 1.0)
        d = torch.where(corrects, ((mean - self.mean) / self.std).clamp(-self.d_max, self.d_max), 0.0)
        self.mean.lerp_(mean, 1 - self.keep)
        self.std.lerp_(std, 1 - self.keep)
        self.batches += 1
        return r, d


class BatchRenormFunction(torch.autograd.Function):
    """BatchRenorm of rows with weights w, and its gradient. autograd's gradient takes three times as many passes over
    the features.

    With x the features less their mean, s their deviation, y = weight (x / s r + d) + bias, and g the gradient at y,
    that at feature i is weight r / s (g_i - w_i sum g - w_i x_i / s^2 sum g x)."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, column: Tensor, weight: Tensor, bias: Tensor, norm: BatchRenorm) -> Tensor:
        mean = column.t() @ features
        centered = features - mean
        std = (column.t() @ centered.square() + norm.eps).sqrt()
        r, d = norm._corrections(mean.view_as(norm.mean), std.view_as(norm.std))
        scale = weight * r / std
        ctx.save_for_backward(centered, column, std, scale, r, d)
        return torch.addcmul(weight * d + bias, centered, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (centered, column, std, scale, r, d) = gradients, ctx.saved_tensors
        total, product = grad.sum(-2, keepdim=True), (grad * centered).sum(-2, keepdim=True)
        own = torch.addcmul(grad, column, torch.addcmul(total, centered, product / std.square()), value=-1).mul_(scale)
        return own, None, (product / std * r + total * d).view_as(d), total.view_as(d), None
