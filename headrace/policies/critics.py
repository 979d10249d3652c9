"""Several critics Q(observation, action) of one shape, computed by batched products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise, zip_longest

import torch
from torch import Tensor, nn
from torch.nn import functional

from headrace.policies.networks import ACTIVATIONS
from headrace.policies.normalization import BatchRenorm
from headrace.policies.unknown_members import explains_members


@explains_members
class Critics(nn.Module):
    """C multi-layer perceptrons in one module: weights [C, inputs, outputs], biases [C, 1, outputs].

    quantiles: number of outputs of each: 1 for the expected return, more for quantiles of the return's distribution.
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
        quantiles: int = 1,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"unknown activation {activation!r}: use one of {', '.join(ACTIVATIONS)}")
        if any(size < 1 for size in hidden):
            raise ValueError(f"hidden sizes must be 1 or more, got {tuple(hidden)}")
        sizes = [observation_size + action_size, *hidden, quantiles]
        gains = [math.sqrt(2)] * len(hidden) + [1.0]
        weights = [
            torch.stack([_orthogonal(a, b, gain, generator) for _ in range(number)])
            for (a, b), gain in zip(pairwise(sizes), gains, strict=True)
        ]
        self.number = number
        self.weights = nn.ParameterList(weights)
        self.biases = nn.ParameterList(torch.zeros(number, 1, size) for size in sizes[1:])
        self.activation, self._activate = activation, ACTIVATIONS[activation]

    def forward(self, observation: Tensor, action: Tensor | None = None) -> Tensor:
        """Values [C, B], or [C, B, M] with M quantiles, of encoded observations [B, F] and normalised actions [B, K].
        The action is None for critics of observations alone."""
        features = observation if action is None else torch.cat((observation, action), 1)
        features = features.expand(self.number, *features.shape)
        *hidden, (weight, bias) = zip(self.weights, self.biases, strict=True)
        for inner, offset in hidden:
            features = self._activate(torch.baddbmm(offset, features, inner))
        return torch.baddbmm(bias, features, weight).squeeze(2)


class NormalizedCritics(Critics):
    """Critics with layer normalisation before each activation, or that of root mean squares: see networks.NORMS."""

    def __init__(
        self,
        number: int,
        observation_size: int,
        action_size: int,
        hidden: Sequence[int],
        activation: str,
        generator: torch.Generator,
        quantiles: int,
        norm: str,
    ) -> None:
        super().__init__(number, observation_size, action_size, hidden, activation, generator, quantiles)
        self.norm = norm
        self.gains = nn.ParameterList(torch.ones(number, 1, size) for size in hidden)
        self.shifts = nn.ParameterList(torch.zeros(number, 1, size) for size in hidden if norm == "layer")

    def forward(self, observation: Tensor, action: Tensor | None = None) -> Tensor:
        """See Critics."""
        features = observation if action is None else torch.cat((observation, action), 1)
        features = features.expand(self.number, *features.shape)
        *hidden, (last, bias) = zip(self.weights, self.biases, strict=True)
        for (inner, offset), gain, shift in zip_longest(hidden, self.gains, self.shifts):
            sums = torch.baddbmm(offset, features, inner)
            if shift is None:
                found = functional.rms_norm(sums, sums.shape[2:], eps=1e-5) * gain
            else:
                found = functional.layer_norm(sums, sums.shape[2:]) * gain + shift
            features = self._activate(found)
        return torch.baddbmm(bias, features, last).squeeze(2)


class RenormCritics(Critics):
    """Critics with batch renormalisation of the input and after each activation, as in CrossQ (Bhatt et al. 2024,
    arXiv:1902.05605). warm_up: see BatchRenorm."""

    has_renorm = True

    def __init__(
        self,
        number: int,
        observation_size: int,
        action_size: int,
        hidden: Sequence[int],
        activation: str,
        generator: torch.Generator,
        warm_up: int,
    ) -> None:
        super().__init__(number, observation_size, action_size, hidden, activation, generator)
        sizes = (observation_size + action_size, *hidden)
        self.norms = nn.ModuleList(BatchRenorm((number, 1, size), warm_up) for size in sizes)

    def forward(self, observation: Tensor, action: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
        """Values [C, B]. weight: of the rows [B], to learn from them; None to normalise by the running moments."""
        first, *norms = self.norms
        features = observation if action is None else torch.cat((observation, action), 1)
        features = first(features.expand(self.number, *features.shape), weight)
        *hidden, (last, bias) = zip(self.weights, self.biases, strict=True)
        for (inner, offset), norm in zip(hidden, norms, strict=True):
            features = norm(self._activate(torch.baddbmm(offset, features, inner)), weight)
        return torch.baddbmm(bias, features, last).squeeze(2)


def _orthogonal(inputs: int, outputs: int, gain: float, generator: torch.Generator) -> Tensor:
    """[inputs, outputs]. Saxe et al. 2014."""
    return nn.init.orthogonal_(torch.empty(outputs, inputs), gain, generator).t()
