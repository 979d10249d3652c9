"""Convolutional encoders of image observations, chosen by the size of the image."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from headrace.data.spaces import Box, Dict, Space, Tuple, channels_first, is_image
from headrace.policies.unknown_members import explains_members

NATURE_FROM = 36  # pixels per side: the smallest image that Nature's convolutions accept
LARGE = 64 * 64  # pixels of an image from which all threads of torch pay; measured at 84 x 84 by generality.py


@explains_members
class ImageEncoder(nn.Module):
    """Images uint8 [N, H, W], [N, H, W, C] or [N, C, H, W] -> [N, size], by convolutions.

    network: "nature" (Mnih et al. 2015, 512 features), "impala" (Espeholt et al. 2018, arXiv:1802.01561, the deeper one
    of figure 3, 256 features), "small" (Young & Tian 2019, arXiv:1903.03176, 128 features), or "auto": small below 36
    pixels per side, else Nature's. Weights are orthogonal, gain sqrt 2.
    Raises ValueError for an unknown network, or an image too small for it.
    """

    def __init__(self, space: Box, network: str, generator: torch.Generator) -> None:
        super().__init__()
        self.in_front, (channels, height, width) = channels_first(space.shape)
        self.flat, self.pixels = len(space.shape) == 2, height * width
        if network == "auto":
            network = "nature" if min(height, width) >= NATURE_FROM else "small"
        if network not in NETWORKS:
            raise ValueError(f"unknown image network {network!r}: use auto, {', '.join(NETWORKS)}")
        convolutions, self.size = NETWORKS[network](channels)
        self.convolutions = convolutions
        with torch.no_grad():
            try:
                features = self.convolutions(torch.zeros(1, channels, height, width)).numel()
            except RuntimeError as error:
                raise ValueError(f"images of {height} x {width} pixels are too small for {network!r}") from error
        self.out = nn.Linear(features, self.size)
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.orthogonal_(module.weight, math.sqrt(2), generator)
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]

    def forward(self, observation: Tensor) -> Tensor:
        """Features [N, size]; the first convolution scales pixels from 0..255 to 0..1."""
        pixels = observation.unsqueeze(1) if self.flat else observation
        if not self.in_front:
            pixels = pixels.permute(0, 3, 1, 2)
        # convolutions on channels-last memory take two thirds of the time; converting uint8 is cheaper than float32
        pixels = pixels.contiguous(memory_format=torch.channels_last).to(torch.float32)
        return torch.relu(self.out(self.convolutions(pixels).flatten(1)))

    def update_statistics(self, observation: Tensor, valid: Tensor) -> None:
        """Do nothing: pixels have known bounds."""


def shares_threads(policy: nn.Module) -> bool:
    """Tell whether a policy has convolutions of such large images that all of torch's threads are faster than one."""
    return any(isinstance(part, ImageEncoder) and part.pixels >= LARGE for part in policy.modules())


def is_for_nature(space: Space) -> bool:
    """Tell whether observations are images, or have image members, for which "auto" chooses Nature's network."""
    if isinstance(space, Dict | Tuple):
        return any(map(is_for_nature, space.values() if isinstance(space, Dict) else space))
    return is_image(space) and min(channels_first(space.shape)[1][1:]) >= NATURE_FROM


class ByteConv2d(nn.Conv2d):
    """A convolution that scales inputs from 0..255 to 0..1. Scaling its weights instead of every pixel saves a third of
    the time of learning from images."""

    def forward(self, pixels: Tensor) -> Tensor:
        return self._conv_forward(pixels, self.weight * (1 / 255), self.bias)


def _nature(channels: int) -> tuple[nn.Module, int]:
    convolutions = (ByteConv2d(channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1))
    # in place: the gradient of a convolution needs its input, not its output
    return nn.Sequential(*[part for layer in convolutions for part in (layer, nn.ReLU(inplace=True))]), 512


def _small(channels: int) -> tuple[nn.Module, int]:
    return nn.Sequential(ByteConv2d(channels, 16, 3), nn.ReLU(inplace=True)), 128


def _impala(channels: int) -> tuple[nn.Module, int]:
    sizes = ((ByteConv2d, channels, 16), (nn.Conv2d, 16, 32), (nn.Conv2d, 32, 32))
    stacks = [ResidualStack(*size) for size in sizes]
    return nn.Sequential(*stacks, nn.ReLU()), 256


class ResidualStack(nn.Module):
    """A convolution, pooling to half the size, and two residual blocks."""

    def __init__(self, first: type[nn.Conv2d], inputs: int, outputs: int) -> None:
        super().__init__()
        self.enter = first(inputs, outputs, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.ReLU(),
                nn.Conv2d(outputs, outputs, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(outputs, outputs, 3, padding=1),
            )
            for _ in range(2)
        )

    def forward(self, pixels: Tensor) -> Tensor:
        features = nn.functional.max_pool2d(self.enter(pixels), 3, 2, padding=1)
        for block in self.blocks:
            features = features + block(features)
        return features


NETWORKS: dict[str, Callable[[int], tuple[nn.Module, int]]] = {"nature": _nature, "impala": _impala, "small": _small}
