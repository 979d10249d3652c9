"""Move all parameters of a network into one buffer, so that clipping, the step and averaging take one pass each.

The parameters become views of the buffer; modules use them as before.

    critic, target = make(), make()
    optimizer = Adam(critic.parameters(), 3e-4)      # optimizer.flat is the critic's buffer
    flat_target = flatten(target.parameters())
    flat_target.copy_(optimizer.flat)                # the target network starts with the critic's weights
    polyak(flat_target, optimizer.flat, 0.005)       # target network update
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def flatten(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Move parameters into one buffer [P], in their order, and return it. The parameters become views of it.

    Raises ValueError where dtypes or devices differ.
    """
    parameters = list(parameters)
    kinds = {(p.dtype, p.device) for p in parameters}
    if len(kinds) > 1:
        raise ValueError(f"one buffer holds parameters of one dtype and device, got {sorted(map(str, kinds))}")
    flat = torch.cat([p.detach().flatten() for p in parameters])
    for parameter, values in zip(parameters, _split(flat, parameters), strict=True):
        parameter.data = values.view(parameter.shape)
    return flat


def flatten_gradients(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Make a buffer of zeros [P] and let the parameters' .grad be views of it: backward() adds to them in place."""
    parameters = list(parameters)
    gradient = torch.zeros_like(torch.cat([p.detach().flatten() for p in parameters]))
    for parameter, slope in zip(parameters, _split(gradient, parameters), strict=True):
        parameter.grad = slope.view(parameter.shape)
    return gradient


@torch.no_grad()
def polyak(target: Tensor, source: Tensor, tau: float | Tensor) -> None:
    """Target network update: target += tau * (source - target).

    Raises ValueError where the shapes differ. Polyak & Juditsky 1992; Lillicrap et al. 2016, arXiv:1509.02971.
    """
    if target.shape != source.shape:
        raise ValueError(f"buffers of {tuple(target.shape)} and {tuple(source.shape)}: not of the same network")
    target.lerp_(source, tau)


def _split(flat: Tensor, parameters: list[nn.Parameter]) -> tuple[Tensor, ...]:
    return flat.split([p.numel() for p in parameters])
