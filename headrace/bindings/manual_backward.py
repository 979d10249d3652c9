"""Networks whose gradients are written out: no autograd graph is recorded, and buffers are reused.

Large products are the BLAS library's either way. Saved are recording and walking the graph, memory for each result,
gradients added to zeros, and gradients that are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.data.replay import Batch
from headrace.data.rollout import flatten
from headrace.policies.actor_q import ActorQ
from headrace.policies.critics import Critics
from headrace.policies.networks import Dense
from headrace.policies.q_network import QNetwork


def _relu_backward(gradient: Tensor, output: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)  # type: ignore[no-any-return]


def _tanh_backward(gradient: Tensor, output: Tensor) -> Tensor:
    return torch.ops.aten.tanh_backward.grad_input(gradient, output, grad_input=gradient)  # type: ignore[no-any-return]


# name -> the activation, in place, and its backward pass from (gradient at its output, output), in place
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "relu": (torch.relu_, _relu_backward),
    "tanh": (torch.tanh_, _tanh_backward),
}


class Parameters(NamedTuple):
    """Dense layers of C networks: weights [C, inputs, outputs], biases [C, 1, outputs], and their gradients alike.

    All are views of the optimizer's buffers. Gradients are empty where none are written.
    """

    weights: Sequence[Tensor]
    biases: Sequence[Tensor]
    weight_gradients: Sequence[Tensor] = ()
    bias_gradients: Sequence[Tensor] = ()


class BatchedMLP:
    """C networks of one shape, evaluated together on R rows. backward() writes gradients over the previous ones.

    activate_last: whether the last layer has an activation, too.
    """

    def __init__(self, parameters: Parameters, rows: int, activation: str, activate_last: bool = False) -> None:
        self.weights, self.biases, self._weight_gradients, self._bias_gradients = parameters
        self._activate, self._activation_backward = ACTIVATIONS[activation]
        self._activated = len(self.weights) - (not activate_last)  # layers with an activation
        self.outputs = [weight.new_empty(len(weight), rows, weight.shape[2]) for weight in self.weights]
        self._gradients = [torch.empty_like(output) for output in self.outputs[:-1]]
        self._transposed = [weight.transpose(1, 2) for weight in self.weights]
        self._inputs = torch.empty(0)

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs [C, R, outputs] for inputs [R, inputs]; valid until the next call."""
        features = self._inputs = inputs.expand(len(self.weights[0]), *inputs.shape)
        for layer, output in enumerate(self.outputs):
            features = self._affine(self.biases[layer], features, self.weights[layer], output)
            if layer < self._activated:
                self._activate(features)
        return features

    def backward(self, gradient: Tensor, first: int = 0) -> Tensor:
        """Write the gradients of the parameters, from a loss's gradient [C, R - first, outputs] at the outputs of the
        rows from `first` on; rows before `first` do not count.

        Returns the gradient at the first layer's output, before its activation: see input_gradient().
        """
        return self._backward(gradient, first, self._write)

    def input_gradient(self, gradient: Tensor) -> Tensor:
        """A loss's gradient at the inputs, summed over the C networks: [R, inputs], from what backward() returned."""
        return torch.bmm(gradient, self._transposed[0]).sum(0)

    def backward_to_inputs(self, gradient: Tensor) -> Tensor:
        """A loss's gradient at the inputs, summed over the C networks: [R, inputs]. Writes no gradients."""
        return self.input_gradient(self._backward(gradient, 0, lambda layer, gradient, first: None))

    def _backward(self, gradient: Tensor, first: int, visit: Callable[[int, Tensor, int], None]) -> Tensor:
        last = len(self.weights) - 1
        if last < self._activated:
            gradient = self._activation_backward(gradient, self.outputs[last][:, first:])
        for layer in range(last, 0, -1):
            visit(layer, gradient, first)
            below = self._gradients[layer - 1][:, first:]
            if gradient.shape[2] == 1:
                torch.mul(gradient, self._transposed[layer], out=below)
            else:
                self._product(gradient, self._transposed[layer], below)
            gradient = self._activation_backward(below, self.outputs[layer - 1][:, first:])
        visit(0, gradient, first)
        return gradient

    def _write(self, layer: int, gradient: Tensor, first: int) -> None:
        """Write the gradients of one layer, from the gradient at its output before the activation."""
        features = (self.outputs[layer - 1] if layer else self._inputs)[:, first:]
        out = self._weight_gradients[layer]
        if gradient.shape[2] == 1:  # a row times a matrix is four times as fast as a matrix times a column
            self._product(gradient.transpose(1, 2), features, out.transpose(1, 2))
        else:
            self._product(features.transpose(1, 2), gradient, out)
        torch.sum(gradient, 1, True, out=self._bias_gradients[layer])

    def _affine(self, bias: Tensor, features: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        return torch.baddbmm(bias, features, weight, out=out)

    def _product(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        torch.bmm(a, b, out=out)


class SingleMLP(BatchedMLP):
    """One network (C = 1) by matrix products; torch rounds batched products of fewer than 400 terms differently."""

    def _affine(self, bias: Tensor, features: Tensor, weight: Tensor, out: Tensor) -> Tensor:
        torch.addmm(bias[0], features[0], weight[0], out=out[0])
        return out

    def _product(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        torch.mm(a[0], b[0], out=out[0])


def dense_parameters(layers: Sequence[Dense]) -> Parameters:
    """Dense layers one after another as one network: their weights [outputs, inputs] are seen transposed."""

    def views(weights: Sequence[Tensor], biases: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        return [x.detach().t().unsqueeze(0) for x in weights], [x.detach().view(1, 1, -1) for x in biases]

    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    gradients = views(_gradients(weights), _gradients(biases))
    return Parameters(*views(weights, biases), *gradients)


def actor_mlp(policy: ActorQ, rows: int) -> BatchedMLP:
    """The BatchedMLP of an actor."""
    return BatchedMLP(dense_parameters([*policy.actor.layers, policy.actor_out]), rows, policy.activation)


def critic_mlp(critics: Critics, rows: int, activation: str, number: int | None = None) -> BatchedMLP:
    """The BatchedMLP of critics, or of the first `number` of them, for which no gradients are written."""
    parts = list(critics.weights), list(critics.biases)
    gradients = [_gradients(part) for part in parts] if number is None else []
    return BatchedMLP(
        Parameters(*([x.detach()[:number] for x in part] for part in parts), *gradients), rows, activation
    )


def _gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """Their gradients; empty for the parameters of a target network, which has none."""
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def encode(policy: ActorQ | QNetwork, observation: Tensor, shape: Sequence[int]) -> Tensor:
    """Observations [G, B, ...] as the policy's layers read them: float32 [G, B, F]. shape: [G, B]."""
    return policy.encoder(flatten(observation)).view(*shape, -1)  # type: ignore[no-any-return]


def mean_weights(weight: Tensor) -> Tensor:
    """Weights [G, B] of the mean over the rows of a batch whose weight is not 0."""
    return weight / weight.count_nonzero(1).clamp(min=1).unsqueeze(1)


class Inputs(NamedTuple):
    """One of G batches, as the networks read it."""

    observations: Tensor  # [2 B, F]: encoded; the next observations, then the current ones
    with_policy_action: Tensor  # [2 B, F + K]: the same, and space for the policy's actions
    with_action: Tensor  # [B, F + K]: current observations and the actions taken
    reward: Tensor  # [B, 1]
    discount: Tensor  # [B, 1]
    weight: Tensor  # [B, 1]: of the mean over rows


def inputs(policy: ActorQ, batches: Batch) -> list[Inputs]:
    """G batches [G, B], with observations encoded and actions normalised."""
    steps, rows = batches.reward.shape
    parts = (batches.next_observation, batches.observation)
    following, current = (encode(policy, part, (steps, rows)) for part in parts)
    observations = torch.cat((following, current), 1)
    with_action = torch.cat((current, policy.normalize_action(batches.action)), 2)
    space = torch.cat((observations, observations.new_empty(steps, 2 * rows, policy.action_size)), 2)
    columns = (x.unsqueeze(2) for x in (batches.reward, batches.discount, mean_weights(batches.weight)))
    split = (x.unbind() for x in (observations, space, with_action, *columns))
    return [Inputs(*parts) for parts in zip(*split, strict=True)]


def why_not(policy: ActorQ, *optimizers: Adam) -> str | None:
    """The reason why gradients of this policy are not written out here; None where they are."""
    if policy.activation not in ACTIVATIONS:
        return f"gradients are written out for {' and '.join(ACTIVATIONS)} alone, not for {policy.activation}"
    if any(True for _ in policy.encoder.parameters()):
        return "its encoder has parameters"
    if type(policy) is not ActorQ or type(policy.critics) is not Critics or len(policy.actor.norms):
        return f"it is written for ActorQ without layer normalisation, not for this {type(policy).__name__}"
    if any(type(optimizer) is not Adam or optimizer.flat.dtype != torch.float32 for optimizer in optimizers):
        return "it is written for the Adam of this package in float32"
    return None
