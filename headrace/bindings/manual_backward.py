"""Networks whose gradients are written out: no autograd graph is recorded, and buffers are reused.

Large products are the BLAS library's either way. Saved are recording and walking the graph, memory for each result,
gradients added to zeros, and gradients that are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.algorithms.config_bases import OffPolicyConfig
from headrace.algorithms.off_policy import Networks
from headrace.algorithms.reduce import Reduce, size_of
from headrace.bindings.arguments import MISFIT, batches_fit, fits
from headrace.bindings.eligibility import SEVERAL_LEARNERS, verdict, why_not_adam
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
    """Dense layers of C networks: weights [C, inputs, outputs], biases [C, 1, outputs], and their gradients alike; of
    one network also without the dimension C.

    All are views of the optimizer's buffers. Gradients are empty where none are written.
    """

    weights: Sequence[Tensor]
    biases: Sequence[Tensor]
    weight_gradients: Sequence[Tensor] = ()
    bias_gradients: Sequence[Tensor] = ()


class Norm:
    """Layer normalisation of R rows, with its backward pass; the gradients of its weight and bias are written over the
    previous ones. learned: the part of the rows that is learned from."""

    def __init__(self, module: nn.LayerNorm, rows: int, first: int) -> None:
        self._weight, self._bias, self._eps = module.weight.detach(), module.bias.detach(), module.eps
        self._shape = list(module.normalized_shape)
        self._gradients = _gradients([module.weight, module.bias])
        self.output = torch.empty(rows, self._shape[0])
        self.learned, self._first = self.output[first:], first
        self._kept: tuple[Tensor, ...] = ()  # sums, means, 1 / standard deviations

    def forward(self, sums: Tensor) -> Tensor:
        """The normalised sums [R, outputs]; valid until the next call."""
        mean, scale = sums.new_empty(2, len(sums), 1).unbind()
        arguments = (sums, self._shape, self._weight, self._bias, self._eps)
        torch.ops.aten.native_layer_norm.out(*arguments, out0=self.output, out1=mean, out2=scale)
        self._kept = tuple(x[self._first :] for x in (sums, mean, scale))
        return self.output

    def backward(self, gradient: Tensor) -> Tensor:
        """The gradient at the sums, from that at the normalised ones."""
        arguments = (gradient, self._kept[0], self._shape, *self._kept[1:], self._weight, self._bias, [True] * 3)
        below, *own = torch.ops.aten.native_layer_norm_backward(*arguments)
        for target, found in zip(self._gradients, own, strict=True):
            target.copy_(found)
        return below  # type: ignore[no-any-return]


class BatchedMLP:
    """C networks of one shape, evaluated together on R rows; without the dimension C, one network by matrix products.

    first: the first of the rows that are learned from. activate_last: whether the last layer has an activation, too.
    norms: of the layers with an activation, or none; for one network alone. backward() writes gradients over the
    previous ones.
    """

    def __init__(
        self,
        parameters: Parameters,
        rows: int,
        activation: str,
        first: int = 0,
        activate_last: bool = False,
        norms: Sequence[nn.LayerNorm] = (),
    ) -> None:
        self.weights, self.biases, weight_gradients, self._bias_gradients = parameters
        self._activate, self._activation_backward = ACTIVATIONS[activation]
        self._batched, self._first = self.weights[0].dim() == 3, first
        # torch rounds batched products of fewer than 400 terms differently from those of matrices
        self._affine: Callable[..., Tensor] = torch.baddbmm if self._batched else torch.addmm
        self._product: Callable[..., Tensor] = torch.bmm if self._batched else torch.mm
        self._activated = len(self.weights) - (not activate_last)  # layers with an activation
        self.outputs = [x.new_empty(*x.shape[:-2], rows, x.shape[-1]) for x in self.weights]
        self._norms = [Norm(norm, rows, first) for norm in norms]
        # views are made once: making one costs as much as a small operation
        self._learned = [output[..., first:, :] for output in self.outputs]
        self._learned[: len(norms)] = [norm.learned for norm in self._norms]  # after the activation
        self._gradients = [torch.empty_like(output) for output in self._learned[:-1]]
        self._transposed = [weight.mT for weight in self.weights]
        # a row times a matrix is four times as fast as a matrix times a column
        self._weight_gradients = [x.mT if x.shape[-1] == 1 else x for x in weight_gradients]
        self._inputs = torch.empty(0)

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs [C, R, outputs] for inputs [R, inputs]; valid until the next call."""
        features = inputs.expand(len(self.weights[0]), *inputs.shape) if self._batched else inputs
        self._inputs = features[..., self._first :, :]
        for layer, output in enumerate(self.outputs):
            features = self._affine(self.biases[layer], features, self.weights[layer], out=output)
            if self._norms and layer < self._activated:
                features = self._norms[layer].forward(features)
            if layer < self._activated:
                self._activate(features)
        return features

    def input_gradient(self, gradient: Tensor) -> Tensor:
        """A loss's gradient at the inputs, summed over networks: [R - first, inputs], from what backward() returned."""
        product = self._product(gradient, self._transposed[0])
        return product.sum(0) if self._batched else product

    def backward_to_inputs(self, gradient: Tensor) -> Tensor:
        """A loss's gradient at the inputs, summed over networks: [R - first, inputs]. Writes no gradients."""
        return self.input_gradient(self.backward(gradient, write=False))

    def backward(self, gradient: Tensor, write: bool = True) -> Tensor:
        """Write the gradients of the parameters, from a loss's gradient [C, R - first, outputs] at the outputs of the
        rows that are learned from.

        Returns the gradient at the first layer's output, before its activation: see input_gradient().
        """
        last = len(self.weights) - 1
        if last < self._activated:
            gradient = self._through_activation(gradient, last)
        for layer in range(last, -1, -1):
            column = gradient.shape[-1] == 1
            if write:
                features, out = self._learned[layer - 1] if layer else self._inputs, self._weight_gradients[layer]
                factors = (gradient.mT, features) if column else (features.mT, gradient)
                self._product(*factors, out=out)
                torch.sum(gradient, -2, True, out=self._bias_gradients[layer])
            if layer:
                product = torch.mul if column else self._product
                below = product(gradient, self._transposed[layer], out=self._gradients[layer - 1])
                gradient = self._through_activation(below, layer - 1)
        return gradient

    def _through_activation(self, gradient: Tensor, layer: int) -> Tensor:
        """The gradient at a layer's sums, from that at its output."""
        gradient = self._activation_backward(gradient, self._learned[layer])
        return self._norms[layer].backward(gradient) if self._norms else gradient


def dense_parameters(layers: Sequence[Dense]) -> Parameters:
    """Dense layers one after another as one network: their weights [outputs, inputs] are seen transposed."""
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    parts = ([x.detach() for x in weights], [x.detach() for x in biases], _gradients(weights), _gradients(biases))
    return Parameters(*([x.t() if x.dim() == 2 else x.unsqueeze(0) for x in part] for part in parts))


def actor_mlp(policy: ActorQ, rows: int, first: int = 0) -> BatchedMLP:
    """The BatchedMLP of an actor, C = 1."""
    parameters = dense_parameters([*policy.actor.layers, policy.actor_out])
    batched = Parameters(*([x.unsqueeze(0) for x in part] for part in parameters))
    return BatchedMLP(batched, rows, policy.activation, first)


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


def serves(
    networks: Networks,
    *call: Adam | Batch | Tensor | int | OffPolicyConfig | Reduce,
    activations: Collection[str] = ACTIVATIONS,
) -> bool | str:
    """Whether gradients of SAC's, TD3's or DDPG's learning call on these networks are written out; else the reason.
    activations: names of those that are known."""
    policy, optimizers = networks.policy, [x for x in call if isinstance(x, Adam)]
    if any(size_of(x) > 1 for x in call[-1:] if callable(x)):
        return SEVERAL_LEARNERS
    written = written_out(networks, *optimizers, activations=activations)
    if written is not True:
        return written
    batches, random = next(x for x in call if isinstance(x, Batch)), [x for x in call if isinstance(x, Tensor)]
    draws = policy.num_draws * (1 + len(optimizers))  # SAC, which has a third, draws for the current actions too
    fitting = batches_fit(batches, torch.float32, policy.action_size)
    return (fitting and all(fits(x, torch.float32, *batches.reward.shape, draws) for x in random)) or MISFIT


def written_out(networks: Networks, *others: Adam, activations: Collection[str] = ACTIVATIONS) -> bool | str:
    """Whether gradients of these networks are written out; else the reason. others: further optimizers. activations:
    names of those that are known."""
    policy, optimizers = networks.policy, (networks.actor_optimizer, networks.critic_optimizer, *others)
    if networks.actor_optimizer.flat.device.type != "cpu":
        return False
    if reason := verdict(policy).learning:
        return reason
    if policy.activation not in activations:
        return f"gradients are written out for {' and '.join(activations)} alone, not for {policy.activation}"
    if len(policy.actor.norms):
        return "it is written for an actor without layer normalisation"
    if reason := next(filter(None, map(why_not_adam, optimizers)), None):
        return reason
    if any(optimizer.flat.dtype != torch.float32 for optimizer in optimizers):
        return "it is written for parameters in float32"
    return True
