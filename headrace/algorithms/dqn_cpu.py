"""DQN's learning call without autograd: headrace.algorithms.dqn.learn with its backward pass written out.

Its time goes into matrix products of torch's BLAS and little else: everything is written into buffers that stay, what
the target network says is computed for all gradient steps up to its next move at once, and so are the metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from headrace.algorithms.adam import Adam
from headrace.algorithms.dqn import DQNConfig
from headrace.fused import register
from headrace.policies.flat import polyak
from headrace.policies.networks import MLP, Readout
from headrace.policies.q_network import QNetwork
from headrace.policies.served import flat_parameters
from headrace.replay import Batch
from headrace.rollout import flatten

# Of the plain source that this was written after, and what else that calls. Where a test says that they differ: bring
# this after the source, see that tests/algorithms/test_dqn_cpu.py passes, and put the new digest here.
DIGEST = "2b54e940b8319f02"
SOURCES = ((QNetwork, "forward"), (QNetwork, "chosen"), (MLP, "forward"), (Readout, "forward"), (Adam, "step"))
# the gradient before an activation, from (the gradient after it, what it gave): written into `out`
SLOPES: dict[str, Callable[..., Any]] = {
    "relu": lambda delta, given, out: torch.ops.aten.threshold_backward.grad_input(delta, given, 0, grad_input=out),
    "tanh": lambda delta, given, out: torch.ops.aten.tanh_backward.grad_input(delta, given, grad_input=out),
}
TOGETHER = 8  # minibatches for which the target network is asked at once: their activations stay in the cache
ACTIVATE: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu_, "tanh": torch.tanh_}


class _Chain:
    """Dense layers one after another, the last one without an activation where it is a Readout; for R rows, of which
    the first B are learned from."""

    def __init__(self, layers: list[Any], activation: str, rows: int, learned: int) -> None:
        self.activation, self.learned = activation, learned
        self.layers = [(layer.weight, layer.bias, isinstance(layer, Readout)) for layer in layers]
        self.transposed = [layer.weight.t() for layer in layers]
        self.given = [torch.empty(rows, len(layer.bias)) for layer in layers]
        self.delta = [torch.empty(learned, layer.weight.shape[1]) for layer in layers]

    def forward(self, features: Tensor) -> Tensor:
        """[R, inputs] -> [R, outputs]."""
        activate = ACTIVATE[self.activation]
        self.inputs = features
        for (_, bias, last), weight, given in zip(self.layers, self.transposed, self.given, strict=True):
            features = torch.addmm(bias, features, weight, out=given)
            if not last:
                activate(features)
        return features

    def backward(self, delta: Tensor, further: bool) -> Tensor:
        """Write the gradients of weights and biases; delta: [B, outputs]. Gives the one at the inputs, where asked."""
        sources = [self.inputs, *self.given[:-1]]
        for n in reversed(range(len(self.layers))):
            weight, bias, last = self.layers[n]
            if not last:
                SLOPES[self.activation](delta, self.given[n][: self.learned], delta)
            torch.mm(delta.t(), sources[n][: self.learned], out=weight.grad)
            torch.sum(delta, 0, out=bias.grad)
            if n or further:
                delta = torch.mm(delta, weight, out=self.delta[n])
        return delta


class _Learner:
    """Buffers for one policy, as long as its parameters lie where they lay, and batches have their size."""

    def __init__(self, policy: QNetwork, optimizer: Adam, rows: int, learned: int) -> None:
        self.key = (optimizer.flat.data_ptr(), rows, learned)

        def chain(*layers: Any) -> _Chain:
            return _Chain(
                [x for layer in layers for x in getattr(layer, "layers", [layer])], policy.activation, rows, learned
            )

        self.duelling = policy.duelling
        if policy.duelling:
            self.trunk = chain(policy.trunk)
            self.branch = chain(policy.branch, policy.out)
            self.value_branch = chain(policy.value_branch, policy.value_out)
        else:
            self.trunk = chain(policy.trunk, policy.out)

    def forward(self, features: Tensor) -> Tensor:
        """Values [R, A] of encoded observations [R, inputs]."""
        features = self.trunk.forward(features)
        if not self.duelling:
            return features
        advantage = self.branch.forward(features)
        return self.value_branch.forward(features) + advantage - advantage.mean(1, keepdim=True)

    def backward(self, delta: Tensor) -> None:
        """Write the gradient of the loss, from that by the values of the first B rows, [B, A]."""
        if self.duelling:
            total = delta.sum(1, keepdim=True)
            advantage = self.branch.backward(delta - total / delta.shape[1], True)
            delta = self.value_branch.backward(total, True).add_(advantage)
        self.trunk.backward(delta, False)


_learners: WeakKeyDictionary[QNetwork, _Learner] = WeakKeyDictionary()


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
    rows = 2 * size if config.double else size
    learner = _learners.get(policy)
    if learner is None or learner.key != (optimizer.flat.data_ptr(), rows, size):
        learner = _learners[policy] = _Learner(policy, optimizer, rows, size)
    features = _encoded(policy, batches.observation, (steps, size))
    if config.double:
        features = torch.cat((features, _encoded(policy, batches.next_observation, (steps, size))), 1)
    action = (batches.action - policy.start).long().unsqueeze(2)
    taken = torch.zeros(steps, size, int(policy.action_space.n)).scatter_(2, action, 1.0)  # type: ignore[attr-defined]
    weight = batches.weight / batches.weight.count_nonzero(1).clamp(min=1).unsqueeze(1)
    values, errors = torch.empty(2, steps, size)
    for first, end in _parts(follow):
        coming = target(flatten(batches.next_observation[first:end])).t().view(end - first, size, -1)
        best = coming.amax(2)
        for g in range(first, end):
            value = learner.forward(features[g])
            if config.double:
                choice = value[size:].argmax(1, keepdim=True)
                best[g - first] = coming[g - first].gather(1, choice).squeeze(1)
            torch.sum(value[:size] * taken[g], 1, out=values[g])
            error = torch.sub(torch.addcmul(batches.reward[g], batches.discount[g], best[g - first]), values[g])
            errors[g] = error
            learner.backward(taken[g] * (error.clamp_(-1, 1) * weight[g]).neg_().unsqueeze(1))
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
