"""Several critics Q(observation, action) of one shape, computed by batched products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from headrace.policies.networks import ACTIVATIONS


class Critics(nn.Module):
    """C multi-layer perceptrons in one module: weights [C, inputs, outputs], biases [C, 1, outputs].

    Initial weights as an MLP's: orthogonal, gain sqrt 2, and 1 for the last layer; they differ between critics.
    Raises ValueError for an unknown activation or a size below 1.
    """

    def __init__(
        self,
        number: int,
        observation_size: int,
        action_size: int,
        hidden: Sequence[int],
        activation: str,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"unknown activation {activation!r}: use one of {', '.join(ACTIVATIONS)}")
        if any(size < 1 for size in hidden):
            raise ValueError(f"hidden sizes must be 1 or more, got {tuple(hidden)}")
        sizes = [observation_size + action_size, *hidden, 1]
        gains = [math.sqrt(2)] * len(hidden) + [1.0]
        weights = [
            torch.stack([_orthogonal(a, b, gain, generator) for _ in range(number)])
            for (a, b), gain in zip(pairwise(sizes), gains, strict=True)
        ]
        self.number = number
        self.weights = nn.ParameterList(weights)
        self.biases = nn.ParameterList(torch.zeros(number, 1, size) for size in sizes[1:])
        self.activation, self._activate = activation, ACTIVATIONS[activation]

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """Values [C, B] of encoded observations [B, F] and normalised actions [B, K]."""
        features = torch.cat((observation, action), 1)
        features = features.expand(self.number, *features.shape)
        *hidden, (weight, bias) = zip(self.weights, self.biases, strict=True)
        for inner, offset in hidden:
            features = self._activate(torch.baddbmm(offset, features, inner))
        return torch.baddbmm(bias, features, weight).squeeze(2)


def _orthogonal(inputs: int, outputs: int, gain: float, generator: torch.Generator) -> Tensor:
    """[inputs, outputs]. Saxe et al. 2014."""
    return nn.init.orthogonal_(torch.empty(outputs, inputs), gain, generator).t()
