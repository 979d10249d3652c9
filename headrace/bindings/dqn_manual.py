"""DQN's learning call without autograd: headrace.algorithms.dqn.learn with its backward pass written out.

Most of its time is spent in torch's matrix products. Buffers are reused, and the target network is evaluated for all
gradient steps up to its next update in one call; so are the metrics.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from headrace.algorithms.adam import Adam
from headrace.algorithms.dqn import DQNConfig, Networks
from headrace.algorithms.reduce import Reduce, one_learner, size_of
from headrace.bindings.arguments import MISFIT, batches_fit, fits
from headrace.bindings.bound import Bound
from headrace.bindings.digests import DIGESTS
from headrace.bindings.eligibility import SEVERAL_LEARNERS, why_not_adam, why_not_learn
from headrace.bindings.manual_backward import ACTIVATIONS, BatchedMLP, dense_parameters, encode, mean_weights
from headrace.core.fused import register
from headrace.data.replay import Batch
from headrace.data.rollout import flatten
from headrace.policies.examination import last_examined
from headrace.policies.flat_parameters import polyak
from headrace.policies.networks import MLP, Dense, Readout
from headrace.policies.q_network import QNetwork

CLASSES = (QNetwork, MLP, Readout, Adam)  # whose methods this was written after
BATCHES_AT_ONCE = 8  # minibatches that the target network evaluates in one call: their activations stay in the cache


class _Network:
    """A Q-network on R rows, of which those from `first` on are learned from."""

    def __init__(self, policy: QNetwork, rows: int, first: int) -> None:
        def mlp(trunk: MLP, *out: Dense) -> BatchedMLP:
            parameters = dense_parameters([*trunk.layers, *out])
            norms: Any = trunk.norms
            return BatchedMLP(parameters, rows, policy.activation, first, not out, norms)

        self.branches: list[BatchedMLP] = []  # of dueling networks: the advantages', then the value's
        if policy.branch is None or policy.value_branch is None or policy.value_out is None:
            self.trunk = mlp(policy.trunk, policy.out)
        else:
            self.trunk = mlp(policy.trunk)
            self.branches = [mlp(policy.branch, policy.out), mlp(policy.value_branch, policy.value_out)]

    def forward(self, features: Tensor) -> Tensor:
        """Values [R, actions] of encoded observations [R, inputs]."""
        features = self.trunk.forward(features)
        if not self.branches:
            return features
        advantage, value = (branch.forward(features) for branch in self.branches)
        return value + advantage - advantage.mean(1, keepdim=True)

    def backward(self, gradient: Tensor) -> None:
        """Write the gradients of the parameters, from a loss's gradient [B, actions] at the learned values."""
        if self.branches:
            of_value = gradient.sum(1, True)
            of_advantage = gradient - gradient.mean(1, keepdim=True)
            gradient, other = (
                branch.input_gradient(branch.backward(x))
                for branch, x in zip(self.branches, (of_advantage, of_value), strict=True)
            )
            gradient += other
        self.trunk.backward(gradient)


_networks: Bound[_Network] = Bound()


def serves(
    networks: Networks,
    batches: Batch,
    follow: Tensor,
    config: DQNConfig,
    reduce: Reduce = one_learner,
    activations: Collection[str] = ACTIVATIONS,
) -> bool | str:
    """Whether the gradients of this policy are written out; else the reason. activations: names of those that are
    known."""
    if size_of(reduce) > 1:
        return SEVERAL_LEARNERS
    written = written_out(networks, activations)
    if written is not True:
        return written
    fitting = batches_fit(batches, torch.int32) and fits(follow, torch.float32, len(batches.reward))
    return (fitting and _are_choices(networks.policy, batches.action)) or MISFIT


def written_out(networks: Networks, activations: Collection[str] = ACTIVATIONS) -> bool | str:
    """Whether gradients of these networks are written out; else the reason. activations: names of those known."""
    policy, _, _, optimizer = networks
    if optimizer.flat.device.type != "cpu":
        return False
    if reason := why_not_adam(optimizer) or why_not_learn(policy, optimizer):
        return reason
    if policy.activation not in activations:
        return f"its backward pass is written for {' and '.join(activations)}, not for {policy.activation}"
    if len(policy.hidden) <= policy.dueling:
        return "it has no hidden layer, or (dueling) none that both branches read"
    return True


def _are_choices(policy: QNetwork, action: Tensor) -> bool:
    lowest, highest = action.aminmax()
    return policy.start <= int(lowest) and int(highest) < policy.start + len(policy.out.bias)


@register("dqn.learn", serves, DIGESTS["dqn.learn"], CLASSES)
@torch.no_grad()
def learn(
    networks: Networks, batches: Batch, follow: Tensor, config: DQNConfig, reduce: Reduce = one_learner
) -> tuple[dict[str, Tensor], Tensor]:
    """headrace.algorithms.dqn.learn, with the same results within rounding."""
    policy, target, slow, optimizer = networks
    steps, size = batches.rows.shape
    rows = 2 * size if config.double else size  # with next observations first
    depends_on = (last_examined(policy), rows, size)
    network = _networks.get(lambda: _Network(policy, rows, rows - size), policy, *depends_on)
    following, current = (encode(policy, x, (steps, size)) for x in (batches.next_observation, batches.observation))
    features = (torch.cat((following, current), 1) if config.double else current).unbind()
    action = (batches.action - policy.start).long().unsqueeze(2)
    taken = torch.zeros(steps, size, len(policy.out.bias)).scatter_(2, action, 1.0)
    weight = mean_weights(batches.weight)
    values, errors = torch.empty(2, steps, size)
    columns = zip(action, taken, (-weight).unbind(), values.unsqueeze(2), errors, strict=True)
    gradient = torch.empty(size)
    for first, end in _parts(follow):
        next_values = target(flatten(batches.next_observation[first:end])).t().view(end - first, size, -1)
        td_targets = torch.addcmul(batches.reward[first:end], batches.discount[first:end], next_values.amax(2))
        for g in range(first, end):
            chosen, mask, negative, value, error = next(columns)
            q = network.forward(features[g])
            td_target = td_targets[g - first]
            if config.double:
                best = next_values[g - first].gather(1, q[:size].argmax(1, keepdim=True)).squeeze(1)
                td_target = torch.addcmul(batches.reward[g], batches.discount[g], best)
            torch.gather(q[rows - size :], 1, chosen, out=value)
            torch.sub(td_target, value.squeeze(1), out=error)
            torch.clamp(error, -1, 1, out=gradient)
            network.backward(mask * gradient.mul_(negative).unsqueeze(1))
            optimizer.step(config.max_grad_norm)
        if follow[end - 1]:
            polyak(slow, optimizer.flat, follow[end - 1])
    return metrics(values, errors, weight), errors


def metrics(values: Tensor, errors: Tensor, weight: Tensor) -> dict[str, Tensor]:
    """The plain function's metrics, from values, TD errors and weights of the mean, [G, B] each."""
    loss = (smooth_l1_loss(errors, torch.zeros_like(errors), reduction="none") * weight).sum(1).mean()
    return {"loss": loss, "q_value": (values * weight).sum(1).mean()}


def _parts(follow: Tensor) -> list[tuple[int, int]]:
    """(first, end) of runs of gradient steps within which the target stays, BATCHES_AT_ONCE at most."""
    parts, first = [], 0
    for step, fraction in enumerate(follow.tolist()):
        if fraction or step + 1 - first == BATCHES_AT_ONCE or step + 1 == len(follow):
            parts.append((first, step + 1))
            first = step + 1
    return parts
