"""Tanh-squashed normal over normalised actions, for SAC. Haarnoja et al. 2018, arXiv:1812.05905."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0  # as in the authors' code


class Tanh(torch.autograd.Function):
    """tanh of an actor's output, whose slope is 1 / cosh(x)^2 of the input.

    1 - tanh(x)^2 of the output is rounding alone where |x| is 9 or more: 0, or twice the truth, and Adam, which divides
    gradients by their size, takes whole steps of it.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        ctx.save_for_backward(output)
        return output.tanh()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (output,) = ctx.saved_tensors
        return gradient * (1 / output.cosh()).square()


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
    action: Tensor = Tanh.apply(x)  # type: ignore[no-untyped-call]
    return action, (log_density - log_slope).sum(0)
