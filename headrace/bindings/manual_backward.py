"""Networks whose gradients are written out: no graph of operations is recorded, nothing is allocated.

Large products are the BLAS library's either way. What is saved is all around them: recording and walking a graph, new
memory for each result, gradients that are added to zeros, gradients nobody asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.data.replay import Batch
from headrace.data.rollout import tree_map
from headrace.policies.actor_q import ActorQ
from headrace.policies.critics import Critics


def _through_relu(slope: Tensor, out: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward.grad_input(slope, out, 0, grad_input=slope)  # type: ignore[no-any-return]


def _through_tanh(slope: Tensor, out: Tensor) -> Tensor:
    return torch.ops.aten.tanh_backward.grad_input(slope, out, grad_input=slope)  # type: ignore[no-any-return]


# name -> the activation, in place, and what it makes of a slope, in place, given what came out of it
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "relu": (torch.relu_, _through_relu),
    "tanh": (torch.tanh_, _through_tanh),
}


class Tower:
    """C networks of one shape side by side on R rows: weights [C, inputs, outputs], biases [C, 1, outputs].

    Parameters and gradients are views of those that the optimizer knows; gradients are written over, not added to.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        gradients: tuple[Sequence[Tensor], Sequence[Tensor]] | None,
        rows: int,
        activation: str,
    ) -> None:
        self.weights, self.biases, self.gradients = weights, biases, gradients
        self._activate, self._slope = ACTIVATIONS[activation]
        number = len(weights[0])
        empty = [torch.empty(number, rows, weight.shape[2], device=weight.device) for weight in weights]
        self.values, self.slopes = empty, [torch.empty_like(value) for value in empty[:-1]]
        self._entry = torch.empty(0)
        self._turned = [weight.transpose(1, 2) for weight in weights]

    def forward(self, inputs: Tensor) -> Tensor:
        """What comes out, [C, R, outputs], for inputs [R, inputs]; kept until the next call."""
        features = self._entry = inputs.expand(len(self.weights[0]), *inputs.shape)
        for weight, bias, value in zip(self.weights, self.biases, self.values, strict=True):
            torch.baddbmm(bias, features, weight, out=value)
            features = value if value is self.values[-1] else self._activate(value)
        return features

    def backward(self, slope: Tensor, first: int = 0) -> None:
        """Write the gradients, given the slopes [C, R - first, outputs] of a loss in what came out of rows from `first`
        on: rows before it are not learned from."""
        assert self.gradients is not None
        for layer in reversed(range(len(self.weights))):
            features = (self.values[layer - 1] if layer else self._entry)[:, first:]
            gradient = self.gradients[0][layer]
            if slope.shape[2] == 1:  # a row times a matrix is four times as fast as a matrix times a column
                torch.bmm(slope.transpose(1, 2), features, out=gradient.transpose(1, 2))
            else:
                torch.bmm(features.transpose(1, 2), slope, out=gradient)
            torch.sum(slope, 1, True, out=self.gradients[1][layer])
            if layer:
                slope = self._through(layer, slope, first)

    def slope_of_inputs(self, slope: Tensor) -> Tensor:
        """Slopes of a loss in the inputs, summed over the C networks: [R, inputs]. Writes no gradients."""
        for layer in reversed(range(1, len(self.weights))):
            slope = self._through(layer, slope, 0)
        return torch.bmm(slope, self._turned[0]).sum(0)

    def _through(self, layer: int, slope: Tensor, first: int) -> Tensor:
        """Slopes in what goes into a layer's predecessor's activation."""
        below = self.slopes[layer - 1][:, first:]
        if slope.shape[2] == 1:
            torch.mul(slope, self._turned[layer], out=below)
        else:
            torch.bmm(slope, self._turned[layer], out=below)
        return self._slope(below, self.values[layer - 1][:, first:])


def critic_tower(critics: Critics, rows: int, activation: str, number: int | None = None) -> Tower:
    """The Tower of (the first `number` of) critics."""
    weights, biases = list(critics.weights), list(critics.biases)
    gradients = None
    if weights[0].grad is not None and number is None:
        gradients = ([_grad(x) for x in weights], [_grad(x) for x in biases])
    first = [[x.detach()[:number] for x in part] for part in (weights, biases)]
    return Tower(first[0], first[1], gradients, rows, activation)


def actor_tower(policy: ActorQ, rows: int) -> Tower:
    """The Tower of an actor: its weights lie as [outputs, inputs], and are seen turned."""
    layers = [*policy.actor.layers, policy.actor_out]
    weights = [layer.weight.detach().t().unsqueeze(0) for layer in layers]
    biases = [layer.bias.detach().view(1, 1, -1) for layer in layers]
    gradients = None
    if layers[0].weight.grad is not None:
        gradients = (
            [_grad(layer.weight).t().unsqueeze(0) for layer in layers],
            [_grad(layer.bias).view(1, 1, -1) for layer in layers],
        )
    return Tower(weights, biases, gradients, rows, policy.activation)


def _grad(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


class Inputs(NamedTuple):
    """A batch as the networks see it: of G batches all made at once, then taken one by one."""

    seen: Tensor  # [2 B, F]: encoded observations, first the next ones, then those of now
    chosen: Tensor  # [2 B, F + K]: the same, and room for the actions that the actor chooses there
    taken: Tensor  # [B, F + K]: observations of now, and the actions that were taken
    reward: Tensor  # [B, 1]
    discount: Tensor  # [B, 1]
    share: Tensor  # [B, 1]: 1 / number of rows that count, 0 for those that do not


def inputs(policy: ActorQ, batches: Batch) -> list[Inputs]:
    """G batches [G, B], encoded and with actions normalised."""
    steps, rows = batches.reward.shape
    following, now = (
        policy.encoder(tree_map(lambda x: x.flatten(0, 1), part)).view(steps, rows, -1)
        for part in (batches.next_observation, batches.observation)
    )
    seen = torch.cat((following, now), 1)
    taken = torch.cat((now, policy.normalize_action(batches.action)), 2)
    chosen = torch.cat((seen, seen.new_empty(steps, 2 * rows, policy.action_size)), 2)
    reward, discount, weight = (x.unsqueeze(2) for x in (batches.reward, batches.discount, batches.weight))
    share = weight / weight.count_nonzero(1).clamp(min=1).unsqueeze(1)
    split = (x.unbind() for x in (seen, chosen, taken, reward, discount, share))
    return [Inputs(*parts) for parts in zip(*split, strict=True)]


def why_not(policy: ActorQ, *optimizers: Adam) -> str | None:
    """The reason why gradients of this policy are not written out here; None where they are."""
    if policy.activation not in ACTIVATIONS:
        return f"gradients are written out for {' and '.join(ACTIVATIONS)} alone, not for {policy.activation}"
    if any(True for _ in policy.encoder.parameters()):
        return "its encoder learns too"
    if type(policy) is not ActorQ or type(policy.critics) is not Critics or len(policy.actor.norms):
        return f"a {type(policy).__name__} with such networks is not what it was written for"
    if any(type(optimizer) is not Adam or optimizer.flat.dtype != torch.float32 for optimizer in optimizers):
        return "it is written for the Adam of this package in float32"
    return None
