"""From the outputs of a network to a distribution over an action space."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.data.spaces import (
    FARTHEST,
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    action_column,
    bounds,
    unit_bounds,
)
from headrace.policies.distributions import Bernoulli, Categorical, Gaussian, MultiCategorical, SquashedGaussian
from headrace.policies.masks import forbid
from headrace.policies.unknown_members import explains_members

DISTRIBUTIONS = ("auto", "categorical", "gaussian", "unit_gaussian", "squashed")


@explains_members
class CategoricalHead(nn.Module):
    """Discrete actions: one logit for each choice. mask: bool [K, N], the choices that are allowed; None for all."""

    def __init__(self, space: Discrete) -> None:
        super().__init__()
        self.num_parameters, self.num_draws, self.start = int(space.n), 1, int(space.start)

    def forward(self, parameters: Tensor, mask: Tensor | None = None) -> Categorical:
        return Categorical(parameters if mask is None else forbid(parameters, mask), self.start)


@explains_members
class MultiCategoricalHead(nn.Module):
    """MultiDiscrete actions: one logit for each choice of each component. mask: as of a CategoricalHead."""

    def __init__(self, space: MultiDiscrete) -> None:
        super().__init__()
        self.sizes, self.starts = space.nvec.tolist(), space.start.tolist()
        self.num_parameters, self.num_draws = sum(self.sizes), len(self.sizes)

    def forward(self, parameters: Tensor, mask: Tensor | None = None) -> MultiCategorical:
        logits = parameters if mask is None else forbid(parameters, mask)
        return MultiCategorical(logits, self.sizes, self.starts)


@explains_members
class BernoulliHead(nn.Module):
    """MultiBinary actions: one logit for each entry."""

    def __init__(self, space: MultiBinary) -> None:
        super().__init__()
        self.num_parameters = self.num_draws = space.shape[0]

    def forward(self, parameters: Tensor) -> Bernoulli:
        return Bernoulli(parameters)


@explains_members
class GaussianHead(nn.Module):
    """Box actions: means from the network, one learned log standard deviation per dimension, 0 at first.

    Both are in units of half the bounds' range, around its center, so that learning does not depend on the units of
    actions; the unit of an unbounded dimension is 1 (see spaces.unit_bounds). own_units: both are in the units of
    actions, around 0, as in Stable-Baselines3. squash: through tanh, so that actions need no clipping.
    """

    center: Tensor
    half_range: Tensor

    def __init__(self, space: Box, squash: bool, own_units: bool = False) -> None:
        super().__init__()
        if squash and not np.isfinite(bounds(space)).all():
            raise TypeError(
                f"a squashed Gaussian needs bounds on every dimension, got {space}; {FARTHEST:g} and a dtype's largest "
                "number are none: use distribution='gaussian'"
            )
        low, high = unit_bounds(space)
        if not (low < high).all():
            raise TypeError(f"every dimension of an action needs low < high, got {space}")
        if own_units:
            low, high = np.full_like(low, -1.0), np.ones_like(high)
        self.squash = squash
        self.num_parameters = space.shape[0]
        self.num_draws = self.num_parameters + self.num_parameters % 2
        self.log_std = nn.Parameter(torch.zeros(self.num_parameters))
        for name, values in (("center", low + high), ("half_range", high - low)):
            self.register_buffer(name, torch.tensor(values / 2, dtype=torch.float32).unsqueeze(1), persistent=False)

    def forward(self, parameters: Tensor) -> Gaussian | SquashedGaussian:
        log_std = self.log_std.unsqueeze(1)
        if self.squash:
            return SquashedGaussian(parameters, log_std, self.center, self.half_range)
        return Gaussian(torch.addcmul(self.center, parameters, self.half_range), log_std + self.half_range.log())


def action_head(space: Space, distribution: str = "auto") -> Any:
    """The head for an action space: num_parameters, num_draws, and a call that turns [P, N] into a distribution.

    distribution: "auto" is "categorical" for Discrete and MultiDiscrete, "gaussian" for a Box, and Bernoulli for
    MultiBinary; "unit_gaussian" is a Gaussian in the units of actions.
    Raises ValueError for an unknown name, TypeError where the distribution does not apply to the space.
    """
    if distribution not in DISTRIBUTIONS:
        raise ValueError(f"unknown distribution {distribution!r}: use one of {', '.join(DISTRIBUTIONS)}")
    if isinstance(space, Discrete) and distribution in ("auto", "categorical"):
        action_column(space)  # refuses numbers that do not fit into 32 bits, which would wrap around
        return CategoricalHead(space)
    if isinstance(space, MultiDiscrete) and len(space.shape) == 1 and distribution in ("auto", "categorical"):
        action_column(space)
        return MultiCategoricalHead(space)
    if isinstance(space, MultiBinary) and len(space.shape) == 1 and distribution == "auto":
        return BernoulliHead(space)
    if isinstance(space, Box) and len(space.shape) == 1 and distribution != "categorical":
        return GaussianHead(space, distribution == "squashed", distribution == "unit_gaussian")
    raise TypeError(
        f"no {distribution} distribution over actions of {space}: "
        "Discrete and MultiDiscrete are categorical; MultiBinary is auto; a Box of one dimension is gaussian, "
        "unit_gaussian or squashed"
    )
