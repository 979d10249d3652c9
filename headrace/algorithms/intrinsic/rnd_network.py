"""The networks of random network distillation: see headrace.algorithms.intrinsic.rnd."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.core import rng
from headrace.core.text import shown
from headrace.data.spaces import Box, Space, channels_first, is_image, leaves
from headrace.policies.convolutions import ImageEncoder
from headrace.policies.networks import MLP, Readout, make_encoder
from headrace.policies.normalization import ObservationNormalizer

LIMIT = 5.0  # of normalised observations, section 2.4 of the paper


class Pixels(nn.Module):
    """Images uint8 -> their numbers, channels first, float32 [N, size]."""

    def __init__(self, space: Box) -> None:
        super().__init__()
        self.in_front, self.shape = channels_first(space.shape)
        self.flat, self.size = len(space.shape) == 2, math.prod(self.shape)

    def forward(self, observation: Tensor) -> Tensor:
        """The numbers of images [N, ...]."""
        pixels = observation if self.in_front or self.flat else observation.permute(0, 3, 1, 2)
        return pixels.flatten(1).to(torch.float32)


class Convolved(nn.Module):
    """Normalised numbers of Pixels [N, size] -> features of convolutions [N, convolutions.size]."""

    def __init__(self, shape: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.convolutions = ImageEncoder(Box(0, 255, self.shape, np.uint8), "auto", generator)

    def forward(self, seen: Tensor) -> Tensor:
        """Features of images."""
        return self.convolutions(seen.view(-1, *self.shape) * 255.0)  # type: ignore[no-any-return] # by which it divides


class RNDNetwork(nn.Module):
    """The fixed network, its predictor, and the critic of intrinsic returns: MLPs, of images convolutions and a layer.

    hidden: sizes of hidden layers; the predictor has two layers more, as in the paper. features: outputs of the fixed
    network. with_critic: False where the bonus is part of the reward. Weights are a function of the seed.
    Raises ValueError for images that are members of other observations.
    """

    sequence_length = 1  # rows of each observation alone, also where the policy is recurrent

    def __init__(self, space: Space, hidden: Sequence[int], features: int, seed: int, with_critic: bool = True) -> None:
        super().__init__()
        if not is_image(space) and any(is_image(leaf) for _, leaf in leaves(space)):
            raise ValueError(f"intrinsic='rnd' is not for images among other members, got {shown(space)}: leave it out")
        generator = rng.generator(seed, rng.Purpose.INTRINSIC)
        self.encoder = Pixels(space) if is_image(space) else make_encoder(space, False, generator)
        self.normalizer = ObservationNormalizer(self.encoder.size, LIMIT)
        sizes = () if is_image(space) else tuple(hidden)
        self.target = _network(self.encoder, sizes, features, generator)
        self.predictor = _network(self.encoder, (*sizes, hidden[-1], hidden[-1]), features, generator)
        self.critic = _network(self.encoder, sizes, 1, generator) if with_critic else None
        self.target.requires_grad_(False)

    def value(self, seen: Tensor) -> Tensor:
        """Intrinsic value of normalised observations [R, F]: [R]."""
        assert self.critic is not None
        return self.critic(seen).flatten()  # type: ignore[no-any-return]

    def error(self, seen: Tensor, wanted: Tensor) -> Tensor:
        """Mean squared error of the predictor on normalised observations [R, F], of the outputs `wanted` [R, features]
        of the fixed network: [R]."""
        return (self.predictor(seen).t() - wanted).square().mean(1)  # type: ignore[no-any-return]

    def learned(self) -> list[nn.Parameter]:
        """Parameters of predictor and critic."""
        return [*self.predictor.parameters(), *(() if self.critic is None else self.critic.parameters())]


def _network(encoder: Any, hidden: Sequence[int], outputs: int, generator: torch.Generator) -> nn.Sequential:
    """A network of normalised observations: of images convolutions first."""
    layers, size = list[nn.Module](), encoder.size
    if isinstance(encoder, Pixels):
        layers.append(front := Convolved(encoder.shape, generator))
        size = front.convolutions.size
    if hidden:
        layers.append(MLP(size, hidden, "relu", generator))
        size = hidden[-1]
    return nn.Sequential(*layers, Readout(size, outputs, 1.0, generator))
