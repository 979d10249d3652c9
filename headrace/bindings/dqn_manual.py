"""DQN's learning call without autograd: headrace.algorithms.dqn.learn with its backward pass written out.

Its time goes into matrix products of torch's BLAS and little else: everything is written into buffers that stay, what
the target network says is computed for all gradient steps up to its next move at once, and so are the metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from headrace.algorithms.adam import Adam
from headrace.algorithms.dqn import DQNConfig
from headrace.bindings.eligibility import flat_parameters
from headrace.core.fused import register
from headrace.data.replay import Batch
from headrace.data.rollout import flatten
from headrace.policies.flat_parameters import polyak
from headrace.policies.networks import MLP, Readout
from headrace.policies.q_network import QNetwork

# Of the plain source that this was written after, and what else that calls. Where a test says that they differ: bring
# this after the source, see that tests/bindings/test_dqn_manual.py passes, and put the new digest here.
DIGEST = "7d5ad736025af6d4"
SOURCES = (
    (QNetwork, "forward"),
    (QNetwork, "values"),
    (QNetwork, "action_value"),
    (MLP, "forward"),
    (Readout, "forward"),
    (Adam, "step"),
    (Adam, "_move"),
)
# the gradient before an activation, from (the gradient after it, what it gave): written into `out`
SLOPES: dict[str, Callable[..., Any]] = {
    "relu": lambda delta, given, out: torch.ops.aten.threshold_backward.grad_input(delta, given, 0, grad_input=out),
    "tanh": lambda delta, given, out: torch.ops.aten.tanh_backward.grad_input(delta, given, grad_input=out),
}
TOGETHER = 8  # minibatches for which the target network is asked at once: their activations stay in the cache
ACTIVATE: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu_, "tanh": torch.tanh_}


class _Layer(NamedTuple):
    """A dense layer and where it writes; all views are made once, since making one costs as much as a small operation.

    Of R rows the first B are learned from.
    """

    weight: Tensor
    turned: Tensor  # the weight, [inputs, outputs]
    bias: Tensor
    weight_gradient: Tensor
    bias_gradient: Tensor
    given: Tensor  # [R, outputs]: what comes out of its activation
    learned: Tensor  # the first B of these
    delta: Tensor  # [B, outputs]: the gradient of the loss by that
    delta_turned: Tensor
    last: bool  # it has no activation


class _Chain:
    """Dense layers one after another, for R rows, of which the first B are learned from."""

    def __init__(self, layers: list[Any], activation: str, rows: int, learned: int) -> None:
        self.activate, self.slope, self.learned = ACTIVATE[activation], SLOPES[activation], learned
        self.layers = []
        for layer in layers:
            weight, bias = layer.weight, layer.bias
            given, delta = torch.empty(rows, len(bias)), torch.empty(learned, len(bias))
            views = (given, given[:learned], delta, delta.t(), isinstance(layer, Readout))
            self.layers.append(_Layer(weight, weight.t(), bias, weight.grad, bias.grad, *views))
        self.delta = self.layers[-1].delta
        self.input_delta = torch.empty(learned, layers[0].weight.shape[1])

    def forward(self, features: Tensor) -> Tensor:
        """[R, inputs] -> [R, outputs]."""
        self.inputs = features
        for layer in self.layers:
            features = torch.addmm(layer.bias, features, layer.turned, out=layer.given)
            if not layer.last:
                self.activate(features)
        return features

    def backward(self, further: bool) -> Tensor:
        """Write the gradients, given that by what came out, in self.delta. Gives the one by what went in, if asked."""
        below = [None, *self.layers]
        for layer, lower in zip(reversed(self.layers), reversed(below[:-1]), strict=True):
            if not layer.last:
                self.slope(layer.delta, layer.learned, layer.delta)
            inputs = self.inputs[: self.learned] if lower is None else lower.learned
            torch.mm(layer.delta_turned, inputs, out=layer.weight_gradient)
            torch.sum(layer.delta, 0, out=layer.bias_gradient)
            if lower is not None or further:
                torch.mm(layer.delta, layer.weight, out=self.input_delta if lower is None else lower.delta)
        return self.input_delta


class _Network:
    """A Q-network on R rows, of which the first B are learned from, as long as its parameters lie where they lay."""

    def __init__(self, policy: QNetwork, rows: int, learned: int) -> None:
        self.key = (policy.out.weight.data_ptr(), rows, learned)

        def chain(*parts: Any) -> _Chain:
            layers = [layer for part in parts for layer in getattr(part, "layers", [part])]
            return _Chain(layers, policy.activation, rows, learned)

        self.dueling = policy.dueling
        if policy.dueling:
            self.trunk = chain(policy.trunk)
            self.branch, self.value_branch = (
                chain(policy.branch, policy.out),
                chain(policy.value_branch, policy.value_out),
            )
        else:
            self.trunk = chain(policy.trunk, policy.out)
        self.delta = self.branch.delta if policy.dueling else self.trunk.delta  # [B, actions]: by the values

    def forward(self, features: Tensor) -> Tensor:
        """Values [R, actions] of encoded observations [R, inputs]."""
        features = self.trunk.forward(features)
        if not self.dueling:
            return features
        advantage = self.branch.forward(features)
        return self.value_branch.forward(features) + advantage - advantage.mean(1, keepdim=True)

    def backward(self) -> None:
        """Write the gradient of the loss, given that by the values of the first B rows, in self.delta."""
        if self.dueling:
            torch.sum(self.delta, 1, True, out=self.value_branch.delta)
            self.delta.sub_(self.delta.mean(1, keepdim=True))
            torch.add(self.branch.backward(True), self.value_branch.backward(True), out=self.trunk.delta)
        self.trunk.backward(False)


_networks: WeakKeyDictionary[QNetwork, _Network] = WeakKeyDictionary()


def _network(policy: QNetwork, rows: int, learned: int) -> _Network:
    network = _networks.get(policy)
    if network is None or network.key != (policy.out.weight.data_ptr(), rows, learned):
        network = _networks[policy] = _Network(policy, rows, learned)
    return network


def serves(
    policy: Any, target: Any, slow: Tensor, optimizer: Any, batches: Batch, follow: Tensor, config: Any
) -> bool | str:
    """Whether the policy is one whose backward pass is written out here; else the reason."""
    if follow.device.type != "cpu":
        return False
    if type(policy) is not QNetwork or type(optimizer) is not Adam:
        return (
            f"{type(policy).__name__} and {type(optimizer).__name__} are not the QNetwork and Adam it was written for"
        )
    if policy.layer_norm or policy.activation not in SLOPES:
        return "its backward pass is written for relu and tanh, without layer normalisation"
    if len(policy.hidden) <= policy.dueling:
        return "it has no hidden layer, or (dueling) none that both branches read"
    if any(True for _ in policy.encoder.parameters()):
        return "its encoder learns"
    flat = flat_parameters(policy)
    if flat is None or flat.data_ptr() != optimizer.flat.data_ptr():
        return "parameters are not float32 views of the optimizer's buffer"
    return all(parameter.requires_grad for parameter in policy.parameters()) or "some parameters are frozen"


@register("dqn.learn", serves, DIGEST, SOURCES)
@torch.no_grad()
def learn(
    policy: QNetwork,
    target: QNetwork,
    slow: Tensor,
    optimizer: Adam,
    batches: Batch,
    follow: Tensor,
    config: DQNConfig,
) -> tuple[dict[str, Tensor], Tensor]:
    """headrace.algorithms.dqn.learn, with the same results within rounding."""
    steps, size = batches.rows.shape
    network = _network(policy, 2 * size if config.double else size, size)
    now, later = (_encoded(policy, x, (steps, size)) for x in (batches.observation, batches.next_observation))
    features = (torch.cat((now, later), 1) if config.double else now).unbind()
    action = (batches.action - policy.start).long().unsqueeze(2)
    taken = torch.zeros(steps, size, network.delta.shape[1]).scatter_(2, action, 1.0)
    weight = batches.weight / batches.weight.count_nonzero(1).clamp(min=1).unsqueeze(1)
    values, errors = torch.empty(2, steps, size)
    rows = zip(action, taken, (-weight).unbind(), values.unsqueeze(2), errors, strict=True)
    slope = torch.empty(size)
    upright = slope.unsqueeze(1)
    for first, end in _parts(follow):
        coming = target(flatten(batches.next_observation[first:end])).t().view(end - first, size, -1)
        aims = torch.addcmul(batches.reward[first:end], batches.discount[first:end], coming.amax(2))
        for g in range(first, end):
            chosen, mask, negative, value, error = next(rows)
            q = network.forward(features[g])
            aim = aims[g - first]
            if config.double:
                best = coming[g - first].gather(1, q[size:].argmax(1, keepdim=True)).squeeze(1)
                aim = torch.addcmul(batches.reward[g], batches.discount[g], best)
            torch.gather(q[:size], 1, chosen, out=value)
            torch.sub(aim, value.squeeze(1), out=error)
            torch.clamp(error, -1, 1, out=slope)
            slope.mul_(negative)
            torch.mul(mask, upright, out=network.delta)
            network.backward()
            optimizer.step(config.max_grad_norm)
        if follow[end - 1]:
            polyak(slow, optimizer.flat, follow[end - 1])
    loss = (smooth_l1_loss(errors, torch.zeros_like(errors), reduction="none") * weight).sum(1).mean()
    return {"loss": loss, "q_value": (values * weight).sum(1).mean()}, errors


def _encoded(policy: QNetwork, observation: Any, shape: tuple[int, int]) -> Tensor:
    """What the trunk reads of observations of this shape, [G, B]: float32 [G, B, inputs]."""
    return policy.encoder(flatten(observation)).view(*shape, -1)


def _parts(follow: Tensor) -> list[tuple[int, int]]:
    """The first and one past the last of gradient steps between which the target stays, TOGETHER at most."""
    parts, first = [], 0
    for step, share in enumerate(follow.tolist()):
        if share or step + 1 - first == TOGETHER or step + 1 == len(follow):
            parts.append((first, step + 1))
            first = step + 1
    return parts
