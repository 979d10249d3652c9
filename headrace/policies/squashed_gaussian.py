"""Tanh-squashed normal over normalised actions, for SAC. Haarnoja et al. 2018, arXiv:1812.05905."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0  # as in the authors' code


def split(parameters: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log standard deviation, [K, B] each, of an actor's output [2 K, B]."""
    mean, log_std = parameters.chunk(2)
    return mean, log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)


def sample(parameters: Tensor, normal: Tensor) -> tuple[Tensor, Tensor]:
    """Actions in [-1, 1], [K, B], and their log-density [B], of standard normal draws [K, B]. Appendix C, eq. 21.

    The log of tanh's derivative is 2 (log 2 - x - softplus(-2 x)): exact where 1 - tanh(x)^2 is 0 in float32.
    """
    mean, log_std = split(parameters)
    x = torch.addcmul(mean, log_std.exp(), normal)
    log_slope = 2 * (math.log(2) - x - softplus(-2 * x))
    log_density = -0.5 * normal.square() - log_std - 0.5 * math.log(2 * math.pi)
    return x.tanh(), (log_density - log_slope).sum(0)
