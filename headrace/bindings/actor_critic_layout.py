"""An ActorCritic as the layers that the GPU's kernels take."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from headrace.bindings.bound import place
from headrace.kernels.nn import layout
from headrace.kernels.nn.layout import Layer
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import PolicyOutput
from headrace.policies.distributions import Bernoulli, Categorical, Gaussian, MultiCategorical, SquashedGaussian
from headrace.policies.heads import BernoulliHead, CategoricalHead, GaussianHead, MultiCategoricalHead
from headrace.policies.networks import MLP, Readout, VectorEncoder
from headrace.policies.normalization import ObservationNormalizer, ReturnNormalizer

# whose methods the kernels were written after
CLASSES = (
    *(ActorCritic, PolicyOutput, MLP, Readout, VectorEncoder, ObservationNormalizer, ReturnNormalizer),
    *(CategoricalHead, MultiCategoricalHead, BernoulliHead, GaussianHead),
    *(Categorical, MultiCategorical, Bernoulli, Gaussian, SquashedGaussian),
)


def encoded_rows(policy: ActorCritic, observation: Tensor) -> Tensor:
    """Features of R observations that the policy's layers read, before normalisation: [F, R], each row contiguous."""
    size = policy.encoder.size
    rows = (observation if observation.dim() == 2 else observation.reshape(len(observation), size)).t()
    return rows if rows.stride(1) == 1 else rows.contiguous()


def trunk_layers(mlp: Any, layers: list[Layer], activation: str, flat: Tensor, source: int = layout.OBSERVATION) -> int:
    """Append an MLP's layers, whose parameters are views of `flat`, after layer `source`; returns the number of the
    last."""
    norms = mlp.norms or [None] * len(mlp.layers)
    for layer, norm in zip(mlp.layers, norms, strict=True):
        source = dense_layer(layer, source, activation, layers, flat, norm)
    return source


def dense_layer(layer: Any, source: int, activation: str, layers: list[Layer], flat: Tensor, norm: Any = None) -> int:
    """Append a layer that reads layer `source`; returns its number."""
    outputs, inputs = layer.weight.shape
    offsets = place(layer.weight, flat), place(layer.bias, flat)
    normed = None if norm is None else (place(norm.weight, flat), place(norm.bias, flat))
    layers.append(Layer(source, inputs, outputs, *offsets, activation, normed))
    return len(layers) - 1
