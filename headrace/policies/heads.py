"""Heads, which turn the outputs of a network into a distribution over an action space.

Generalised state-dependent exploration (gSDE), use_sde: Raffin et al. 2021, arXiv:2005.05719.

The noise of an action is linear in the features z(s) of the actor's last hidden layer (section 3, eq. 4):

    action = mean(s) + W' z(s),    W[l, k] ~ N(0, sigma[l, k]^2)

W, the noise matrix, is drawn every `sde_sample_freq` steps. In between, the same state has the same noise. Over all
matrices an action is normal, and losses use this distribution (eq. 9 and 10):

    action ~ N(mean(s), sum over l of sigma[l, k]^2 z_l(s)^2)

sigma is learned. As in Stable-Baselines3, on-policy algorithms have no gradient of z through the variance, while SAC,
TQC and CrossQ have one. The matrix of an environment is a function of two draws. Its recurrent state contains them, and
the number of steps for which they remain.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.core import rng
from headrace.core.fused import is_traced
from headrace.core.text import shown
from headrace.data.flat_action import FlatAction, component_sizes
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
from headrace.policies.distributions import (
    LOG_2PI,
    LOG_STD_MAX,
    LOG_STD_MIN,
    Bernoulli,
    Categorical,
    Gaussian,
    Hybrid,
    MultiCategorical,
    SquashedGaussian,
    box_muller,
)
from headrace.policies.masks import forbid
from headrace.policies.unknown_members import explains_members

DISTRIBUTIONS = ("auto", "categorical", "gaussian", "unit_gaussian", "squashed")
SDE_STATE = 3  # numbers in the state of use_sde: remaining steps of a matrix, and its two draws
SDE_LARGEST = 2.0  # largest mean of a squashed actor, before tanh
SDE_LEAST = 1e-6  # added to the variance, as in Stable-Baselines3


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


class StateDependentGaussian(Gaussian):
    """Independent normals, each row with deviations of its own: mean and log_std [K, N]."""

    def log_prob(self, action: Tensor) -> Tensor:
        distance = (action.t() - self.mean) * (-self.log_std).exp()
        return ((distance * distance) * -0.5 - self.log_std).sum(0) - 0.5 * LOG_2PI * len(self.mean)

    def entropy(self) -> Tensor:
        return self.log_std.sum(0) + 0.5 * (1 + LOG_2PI) * len(self.mean)


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
        self.squash, self.own_units = squash, own_units
        self.num_parameters = space.shape[0]
        self.num_draws = self.num_parameters + self.num_parameters % 2
        self.log_std = nn.Parameter(torch.zeros(self.num_parameters))
        for name, values in (("center", low + high), ("half_range", high - low)):
            self.register_buffer(name, torch.tensor(values / 2, dtype=torch.float32).unsqueeze(1), persistent=False)

    def of_rows(self, mean: Tensor, log_std: Tensor) -> StateDependentGaussian | SquashedGaussian:
        """The distribution with deviations of each row, [K, N], in the units of log_std."""
        if not self.squash:
            mean = torch.addcmul(self.center, mean, self.half_range)
            return StateDependentGaussian(mean, log_std + self.half_range.log())
        squashed = SquashedGaussian(mean, log_std, self.center, self.half_range)
        squashed.normal = StateDependentGaussian(mean, log_std)
        return squashed

    def forward(self, parameters: Tensor) -> Gaussian | SquashedGaussian:
        log_std = self.log_std.unsqueeze(1)
        if self.squash:
            return SquashedGaussian(parameters, log_std, self.center, self.half_range)
        return Gaussian(torch.addcmul(self.center, parameters, self.half_range), log_std + self.half_range.log())


@explains_members
class StateStdHead(GaussianHead):
    """Box actions whose log standard deviations are also outputs of the network, a function of the state. They are
    added to the learned one of each dimension."""

    def __init__(self, space: Box, squash: bool, own_units: bool) -> None:
        super().__init__(space, squash, own_units)
        self.num_parameters *= 2

    def forward(self, parameters: Tensor) -> StateDependentGaussian | SquashedGaussian:
        """The distribution of means and log standard deviations, [2 K, N]."""
        mean, offset = parameters.chunk(2)
        return self.of_rows(mean, (self.log_std.unsqueeze(1) + offset).clamp(LOG_STD_MIN, LOG_STD_MAX))


@explains_members
class NoiseMatrix(nn.Module):
    """The deviations of the noise of a squashed actor. log_std: [features, K]. sample_freq: number of steps for which a
    matrix is kept."""

    def __init__(self, features: int, actions: int, sample_freq: int, use_expln: bool = False) -> None:
        super().__init__()
        self.log_std = nn.Parameter(torch.zeros(features, actions))
        self.sample_freq, self.use_expln = sample_freq, use_expln

    def forward(self, mean: Tensor, features: Tensor) -> Tensor:
        """Means [K, N], clipped as in Stable-Baselines3, and log standard deviations over all matrices: [2 K, N]."""
        return torch.cat((mean.clamp(-SDE_LARGEST, SDE_LARGEST), log_std_of(deviation_of(self), features)))


@explains_members
class StateDependentHead(GaussianHead):
    """Box actions whose noise is linear in the features: see the top of this file. log_std: of the noise matrix,
    [features, K], in the units of GaussianHead's. sample_freq: number of steps for which a matrix is kept."""

    def __init__(
        self, space: Box, squash: bool, own_units: bool, features: int, sample_freq: int, use_expln: bool
    ) -> None:
        super().__init__(space, squash, own_units)
        self.log_std = nn.Parameter(torch.zeros(features, self.num_parameters))
        self.sample_freq, self.use_expln = sample_freq, use_expln

    def forward(self, parameters: Tensor, features: Tensor) -> StateDependentGaussian | SquashedGaussian:  # type: ignore[override]
        """The distribution of mean [K, N] and features [N, L], over all matrices."""
        return self.of_rows(parameters, log_std_of(deviation_of(self), features.detach()))

    def explore(
        self, parameters: Tensor, features: Tensor, state: Tensor, random: Tensor
    ) -> tuple[StateDependentGaussian | SquashedGaussian, Tensor, Tensor]:
        """The distribution, actions by each environment's matrix, and the state after them."""
        distribution = self(parameters, features)
        normal, state = noise(self, features, state, random)
        squashed = isinstance(distribution, SquashedGaussian)
        own = distribution.normal if squashed else distribution
        x = torch.addcmul(own.mean, normal, own.log_std.exp())
        return distribution, distribution._stretch(x) if squashed else x.t(), state


@explains_members
class HybridHead(nn.Module):
    """The concatenated heads of all parts of a FlatAction. mask: bool [K, N], the allowed choices of all Discrete and
    MultiDiscrete parts; None for all."""

    def __init__(self, space: FlatAction, heads: list[Any]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)
        self.parameter_sizes, self.draws = [x.num_parameters for x in heads], [x.num_draws for x in heads]
        self.num_parameters, self.num_draws = sum(self.parameter_sizes), sum(self.draws)
        self.sizes = [part.entries.stop - part.entries.start for part in space.parts]
        self.choices = [sum(component_sizes(part.flat)) for part in space.parts]

    def forward(self, parameters: Tensor, mask: Tensor | None = None) -> Hybrid:
        masks = iter(() if mask is None else mask.split([count for count in self.choices if count]))
        own = zip(self.heads, parameters.split(self.parameter_sizes), self.choices, strict=True)
        parts = [head(x) if mask is None or not count else head(x, next(masks)) for head, x, count in own]
        return Hybrid(parts, self.sizes, self.draws)


def state_dependent(head: Any, space: Any, features: int, sample_freq: int, use_expln: bool) -> StateDependentHead:
    """A head of the same distribution with state-dependent exploration. Raises ValueError for actions of another space
    than a Box."""
    if not isinstance(head, GaussianHead):
        raise ValueError(f"use_sde is for actions of a Box, and these are {shown(space)}: leave it out")
    return StateDependentHead(space, head.squash, head.own_units, features, sample_freq, use_expln)


def deviation_of(matrix: StateDependentHead | NoiseMatrix) -> Tensor:
    """sigma, [L, K]: e^log_std, or with use_expln 1 + log(1 + log_std) where log_std is above 0."""
    if not matrix.use_expln:
        return matrix.log_std.exp()
    above = (matrix.log_std.clamp(min=0.0) + SDE_LEAST).log1p() + 1
    return torch.where(matrix.log_std > 0, above, matrix.log_std.clamp(max=0.0).exp())


def log_std_of(deviation: Tensor, features: Tensor) -> Tensor:
    """Log standard deviation [K, N] of the noise over all matrices, for features [N, L]. deviation: [L, K]."""
    return 0.5 * (deviation.square().t() @ features.t().square() + SDE_LEAST).log()


def noise(
    matrix: StateDependentHead | NoiseMatrix, features: Tensor, state: Tensor, random: Tensor
) -> tuple[Tensor, Tensor]:
    """The noise [K, N] by each environment's matrix, in standard deviations, and the next state [N, SDE_STATE].

    state: [N, SDE_STATE]; zeros at the start of an episode, where a matrix is drawn. random: uniform draws,
    [N, 2 or more].
    """
    left, seeds = state[:, :1], state[:, 1:]
    begins = left < 1
    seeds = torch.where(begins, random[:, :2], seeds)
    left = torch.where(begins, float(matrix.sample_freq), left) - 1
    deviation = deviation_of(matrix)
    weights = deviation.unsqueeze(-1) * _normals(seeds, *deviation.shape)  # [L, K, N]
    found = (features.t().unsqueeze(1) * weights).sum(0)
    return found * (-log_std_of(deviation, features)).exp(), torch.cat((left, seeds), 1)


def _normals(seeds: Tensor, features: int, actions: int) -> Tensor:
    """normals(), cached from step to step on the CPU, where computing them takes half of a step's time."""
    if seeds.device.type != "cpu" or is_traced():
        return normals(seeds, features, actions)
    return _kept_normals(seeds.numpy().tobytes(), features, actions)


@lru_cache(4)
def _kept_normals(seeds: bytes, features: int, actions: int) -> Tensor:
    return normals(torch.frombuffer(bytearray(seeds), dtype=torch.float32).view(-1, 2), features, actions)


def normals(seeds: Tensor, features: int, actions: int) -> Tensor:
    """Standard normals [features, actions, N] from two draws of each environment, [N, 2]. The same draws give the same
    numbers on every device."""
    number = features * actions + features * actions % 2
    keys = (seeds * 2.0**24).long()  # draws have 24 bits
    lane = torch.arange(-(-number // 4), device=seeds.device).unsqueeze(1).expand(-1, len(seeds))
    none = torch.zeros_like(lane)
    words = torch.cat(rng.philox((keys[:, 0], keys[:, 1]), (lane, none, none, none + rng.Purpose.ACTION)))[:number]
    return box_muller(rng.to_uniform(words), features * actions).unflatten(0, (features, actions))


def action_head(space: Space, distribution: str = "auto", state_std: bool = False) -> Any:
    """The head for an action space: num_parameters, num_draws, and a call that turns [P, N] into a distribution.

    distribution: "auto" is "categorical" for Discrete and MultiDiscrete, "gaussian" for a Box, and Bernoulli for
    MultiBinary; "unit_gaussian" is a Gaussian in the units of actions. For actions of several kinds it applies to their
    Boxes. state_std: a Gaussian's deviations are also outputs of the network.
    Raises ValueError for an unknown name, TypeError if the distribution does not apply to the space.
    """
    if distribution not in DISTRIBUTIONS:
        raise ValueError(f"unknown distribution {distribution!r}: use one of {', '.join(DISTRIBUTIONS)}")
    if state_std and not isinstance(space, Box):
        raise ValueError(f"state_std is for actions of a Box, and these are {shown(space)}: leave it out")
    if isinstance(space, FlatAction):
        flat = [part.flat for part in space.parts]
        return HybridHead(space, [action_head(own, _distribution_of(own, distribution)) for own in flat])
    if isinstance(space, Discrete) and distribution in ("auto", "categorical"):
        action_column(space)  # refuses numbers that do not fit into 32 bits, which would wrap around
        return CategoricalHead(space)
    if isinstance(space, MultiDiscrete) and len(space.shape) == 1 and distribution in ("auto", "categorical"):
        action_column(space)
        return MultiCategoricalHead(space)
    if isinstance(space, MultiBinary) and len(space.shape) == 1 and distribution == "auto":
        return BernoulliHead(space)
    if isinstance(space, Box) and len(space.shape) == 1 and distribution != "categorical":
        kind = StateStdHead if state_std else GaussianHead
        return kind(space, distribution == "squashed", distribution == "unit_gaussian")
    raise TypeError(
        f"no {distribution} distribution over actions of {space}: "
        "Discrete and MultiDiscrete are categorical; MultiBinary is auto; a Box of one dimension is gaussian, "
        "unit_gaussian or squashed"
    )


def _distribution_of(space: Space, distribution: str) -> str:
    """The name of the distribution of one part of an action. A choice can only be categorical."""
    return distribution if isinstance(space, Box) or distribution == "categorical" else "auto"
