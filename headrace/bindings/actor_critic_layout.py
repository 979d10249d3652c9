"""An ActorCritic as the tables and arrays that the CPU's kernels take."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from headrace.bindings.bound import place
from headrace.kernels.nn import layer_table, layout
from headrace.kernels.nn.layout import Head, Layer, Network, Normalizer, ScratchOffsets, network
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.actor_q import ActorQ
from headrace.policies.base import PolicyOutput
from headrace.policies.distributions import Bernoulli, Categorical, Gaussian, MultiCategorical, SquashedGaussian
from headrace.policies.heads import BernoulliHead, CategoricalHead, GaussianHead, MultiCategoricalHead
from headrace.policies.masks import mask_of
from headrace.policies.networks import MLP, Readout, VectorEncoder
from headrace.policies.normalization import ObservationNormalizer, ReturnNormalizer
from headrace.policies.q_network import QNetwork

# whose methods the kernels were written after
CLASSES = (
    *(ActorCritic, PolicyOutput, MLP, Readout, VectorEncoder, ObservationNormalizer, ReturnNormalizer),
    *(CategoricalHead, MultiCategoricalHead, BernoulliHead, GaussianHead),
    *(Categorical, MultiCategorical, Bernoulli, Gaussian, SquashedGaussian),
)
_NOTHING = Normalizer(np.empty(0, np.float32), np.empty(0, np.float32), np.float32(np.inf))


Encoded: TypeAlias = tuple[np.ndarray, int, Normalizer]  # see encoded()


class Compiled(NamedTuple):
    """What the kernels know of a policy. start: int32 [K], the number of each choice's first option."""

    network: Network
    head: Head
    offsets: ScratchOffsets
    scratch: int  # float32 one block needs
    start: np.ndarray


def compiled(policy: ActorCritic, flat: Tensor) -> Compiled:
    """Tables for a policy whose parameters are views of `flat`."""
    layers: list[Layer] = []
    actor = dense_layer(
        policy.actor_out, trunk_layers(policy.actor, layers, policy.activation, flat), "identity", layers, flat
    )
    trunk = layers[actor].source if policy.shared else trunk_layers(policy.critic, layers, policy.activation, flat)
    critic = dense_layer(policy.critic_out, trunk, "identity", layers, flat)
    head, start = _head(policy.head, flat)
    net, masked = network(layers), masked_choices(policy)
    samples = net.scratch + len(head.sizes) * 64
    mask = samples + (1 + policy.num_draws) * 64  # of samples: log_prob and draws
    offsets = ScratchOffsets(
        inputs=np.uint64(net.inputs),
        logits=net.layers[actor, layer_table.OUTPUT],
        probs=net.layers[actor, layer_table.OUTPUT_GRAD],
        values=net.layers[critic, layer_table.OUTPUT],
        actions=np.uint64(net.scratch),
        samples=np.uint64(samples),
        mask=np.uint64(mask),
        masked=np.uint64(masked),
    )
    return Compiled(net, head, offsets, mask + masked * 64, start)


def masked_choices(policy: ActorCritic | ActorQ | QNetwork) -> int:
    """How many choices the policy's action mask is about; 0 without one."""
    return policy.head.num_parameters if isinstance(policy, ActorCritic) and policy.masked else 0


def encoded(policy: ActorCritic | QNetwork, observation: Any) -> Encoded:
    """What the policy's layers read of R observations: flat, feature-major, the stride of its rows, and what the kernel
    is to do to it first."""
    rows = encoded_rows(policy, observation)
    features, count = rows.shape
    # the memory from the first to the last entry: a column's rows may have others between them
    memory = torch.as_strided(rows, ((features - 1) * rows.stride(0) + count,), (1,))
    return memory.numpy(), rows.stride(0), normalizer_of(policy)


def encoded_rows(policy: ActorCritic | ActorQ | QNetwork, observation: Any) -> Tensor:
    """What the policy's layers read of R observations before normalisation, and the action mask, if there is one:
    [F, R], each row contiguous."""
    encoder, size = policy.encoder, policy.encoder.size + masked_choices(policy)
    if type(encoder) is not VectorEncoder:
        rows = encoder(observation).t()
        if masked_choices(policy):
            rows = torch.cat((rows, mask_of(policy.observation_space, observation).to(rows.dtype)))
    else:
        rows = (observation if observation.dim() == 2 else observation.reshape(len(observation), size)).t()
    if rows.dtype != torch.float32 or len(rows) != size:
        found = f"{len(rows)} numbers of {rows.dtype}"
        raise ValueError(f"an observation has {found}, and the policy reads {size} of torch.float32")
    return rows if rows.stride(1) == 1 else rows.contiguous()


def normalizer_of(policy: ActorCritic | ActorQ | QNetwork) -> Normalizer:
    """What a kernel is to do to encoded_rows() first."""
    normalizer = policy.encoder.normalizer if type(policy.encoder) is VectorEncoder else None
    if normalizer is None:
        return _NOTHING
    return Normalizer(normalizer.center.numpy(), normalizer.scale.numpy(), np.float32(normalizer.limit))


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


def _head(head: Any, flat: Tensor) -> tuple[Head, np.ndarray]:
    spread, constants = np.zeros((3, head.num_parameters), np.float32), np.zeros(1, np.float32)
    if isinstance(head, GaussianHead):
        spread[0], spread[1] = head.center[:, 0].numpy(), head.half_range[:, 0].numpy()
        sizes, start = [1] * head.num_parameters, [0] * head.num_parameters
        log_std = place(head.log_std, flat)
        kind = layout.SQUASHED if head.squash else layout.GAUSSIAN
    elif isinstance(head, BernoulliHead):
        sizes, start = [1] * head.num_parameters, [0] * head.num_parameters
        kind, log_std = layout.BERNOULLI, 0
    else:
        several = isinstance(head, MultiCategoricalHead)
        sizes = head.sizes if several else [head.num_parameters]
        start = head.starts if several else [head.start]
        kind, log_std = layout.DISCRETE, 0
    table = Head(kind, np.array(sizes, np.uint64), spread, constants, np.uint64(log_std))
    return table, np.array(start, np.int32)
