"""ActorQ.act and QNetwork.act by the CPU's kernel: network, exploration and clipping in one call."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from headrace.bindings import acting
from headrace.bindings.actor_critic_layout import dense_layer, encoded_rows, normalizer_of, trunk_layers
from headrace.bindings.arguments import fits
from headrace.bindings.digests import DIGESTS
from headrace.bindings.eligibility import flat_buffer, verdict
from headrace.core.device import kernel_threads
from headrace.core.fused import register
from headrace.kernels.nn.layer_table import OUTPUT
from headrace.kernels.nn.layout import BLOCK, WORKERS, Layer, ScratchOffsets, aligned, network, rounded
from headrace.kernels.off_policy import off_policy_run_arguments as slots
from headrace.kernels.off_policy.off_policy_run_arguments import ActorArguments
from headrace.kernels.runtime.thread_pool import WorkQueue
from headrace.policies.actor_q import ActorQ
from headrace.policies.base import PolicyOutput, kind_of
from headrace.policies.examination import examine, last_examined
from headrace.policies.flat_parameters import flatten
from headrace.policies.networks import MLP, Readout, VectorEncoder
from headrace.policies.normalization import ObservationNormalizer
from headrace.policies.numpy_io import batch_size
from headrace.policies.q_network import QNetwork

CLASSES = (ActorQ, QNetwork, PolicyOutput, MLP, Readout, VectorEncoder, ObservationNormalizer)
Acts: TypeAlias = ActorQ | QNetwork
NO_CHOICE, NO_NUMBER = np.empty(0, np.int32), np.empty(0, np.float32)
SOME_CHOICE, SOME_NUMBER = np.empty(1, np.int32), np.empty(1, np.float32)  # in place of what a call is pointed at


class Actor:
    """Acts for one policy, while nothing in it is replaced. Several threads may call it at once."""

    def __init__(self, policy: Acts) -> None:
        parts = parts_of(policy)
        self.originals: Any = [parameter for part in parts for parameter in part.parameters()]
        self.copies: Any = []  # where no optimizer has moved the parameters into one buffer
        flat = flat_buffer(self.originals)
        if flat is None:
            parts = deepcopy(parts)
            self.copies = [parameter for part in parts for parameter in part.parameters()]
            flat = flatten(self.copies)
        layers, values = layers_of(parts, policy.activation, flat)
        net = network(layers)
        zero, outputs = np.uint64(0), net.layers[:, OUTPUT]
        offsets = ScratchOffsets(
            inputs=np.uint64(net.inputs),
            logits=outputs[-1],
            probs=zero,
            values=zero if values is None else outputs[values],
            actions=zero,
            samples=np.uint64(net.scratch),
            mask=zero,
            masked=zero,
        )
        self.choices, self.work_queue = isinstance(policy, QNetwork), WorkQueue(alike=False)
        self.weights = sum(map(Tensor.numel, self.originals))
        self.scratch_size = rounded(net.scratch + (policy.num_draws + 2) * int(BLOCK))
        kind, center, half_range, random = slots.CHOICES, NO_NUMBER, NO_NUMBER, NO_NUMBER
        if isinstance(policy, ActorQ):
            kind = slots.DETERMINISTIC if policy.deterministic else slots.STOCHASTIC
            center, half_range, random = (x.numpy() for x in (policy.center, policy.half_range, policy.random))
        self.size = 1 if self.choices else len(center)  # numbers of an action
        start = np.int64(policy.start if isinstance(policy, QNetwork) else 0)
        normalizer = normalizer_of(policy)
        fields: Any = (kind, net.layers, offsets, flat.numpy(), normalizer)
        number = np.uint64(layers[-1].outputs)
        last: Any = (center, half_range, start, number, policy.exploration.numpy(), random)
        self.arguments = ActorArguments(*fields, *last)
        self._calls: list[acting.RowsCall] = []  # that no thread is using

    def scratch(self, workers: int = WORKERS) -> np.ndarray:
        """Memory for the workers of one call."""
        return aligned(workers, self.scratch_size)

    def act(self, policy: Acts, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        """See the policies' act()."""
        if self.copies:
            torch._foreach_copy_(self.copies, self.originals)
        seen = encoded_rows(policy, observation)
        rows = seen.shape[1]
        action = torch.empty((self.size, rows), dtype=torch.int32 if self.choices else torch.float32)
        value = torch.empty(rows) if self.choices else None
        try:
            call = self._calls.pop()
        except IndexError:  # a first call, or as many at once as never before
            call = self._call()
        drawn = None if random is None else random.t().contiguous()
        call.point(seen, drawn, *(action,) if value is None else (action, value))
        self.work_queue.run(call.call, self.threads(rows))
        self._calls.append(call)
        return PolicyOutput(action[0] if self.choices else action.t(), None, value, rnn_state)

    def threads(self, rows: int) -> int:
        """The number of cores where acting for so many rows is worth waking other threads, else 1."""
        return min(kernel_threads(), WORKERS) if 2 * self.weights * rows > acting.WORTH_HELP else 1

    def actions_call(self) -> acting.RowsCall:
        """A call that writes actions alone."""
        return self._call(NO_NUMBER)

    def _call(self, value: np.ndarray = SOME_NUMBER) -> acting.RowsCall:
        """value: its size says whether values of choices are written."""
        columns = (SOME_CHOICE, NO_NUMBER, value) if self.choices else (NO_CHOICE, SOME_NUMBER, NO_NUMBER)
        return acting.RowsCall("off_policy.off_policy_act", self.arguments, columns, self.scratch())


def parts_of(policy: Acts) -> tuple[Any, ...]:
    """The modules that actions are computed by: an MLP and its output layer; of a dueling network an MLP, and one with
    an output layer for each branch, that of the actions last."""
    if isinstance(policy, ActorQ):
        return policy.actor, policy.actor_out
    if not policy.dueling:
        return policy.trunk, policy.out
    return policy.trunk, policy.value_branch, policy.value_out, policy.branch, policy.out


def layers_of(parts: tuple[Any, ...], activation: str, flat: Tensor) -> tuple[list[Layer], int | None]:
    """The layers of parts_of(), and the number of the one that is the value of a dueling network's state."""
    layers: list[Layer] = []
    trunk, *branches = parts
    source, values = trunk_layers(trunk, layers, activation, flat), None
    if len(branches) > 1:
        branch, out, *branches = branches
        values = dense_layer(out, trunk_layers(branch, layers, activation, flat, source), "identity", layers, flat)
    *hidden, out = branches
    for branch in hidden:
        source = trunk_layers(branch, layers, activation, flat, source)
    dense_layer(out, source, "identity", layers, flat)
    return layers, values


def actor_of(policy: Acts) -> Actor:
    """What acts for a policy that known() holds of."""
    found = last_examined(policy)
    if Actor not in found.kept:
        found.kept[Actor] = Actor(policy)
    return found.kept[Actor]  # type: ignore[no-any-return]


def known(policy: Acts) -> bool:
    """Whether kernels act for a policy as it is now: float32, and without recurrent state."""
    found = examine(policy).kept
    if known not in found:
        found[known] = _known(policy)
    return found[known]  # type: ignore[no-any-return]


def _known(policy: Acts) -> bool:
    tensors = [*last_examined(policy).parameters, policy.exploration]
    if any(x.device.type != "cpu" or x.dtype != torch.float32 for x in tensors):
        return False
    if policy.state_width or policy.recurrent != "none":
        return False
    return verdict(policy).acting is None


def _serves(policy: Acts, observation: Any, rnn_state: Any = None, random: Tensor | None = None) -> bool:
    if torch.is_grad_enabled() or kind_of(policy) not in (ActorQ, QNetwork) or not known(policy):
        return False
    rows = batch_size(observation)
    if type(policy.encoder) is VectorEncoder:
        shape = tuple(getattr(observation, "shape", ()))
        if not fits(observation, torch.float32, *shape) or observation.numel() != rows * policy.encoder.size:
            return False
    if rows < 1 or (isinstance(policy, QNetwork) and len(policy.exploration) not in (1, rows)):
        return False
    return random is None or fits(random, torch.float32, rows, policy.num_draws)


@register("actor_q.act", _serves, DIGESTS["actor_q.act"], CLASSES)
def act(policy: ActorQ, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
    """headrace.policies.actor_q.ActorQ.act, with the same actions within rounding."""
    return actor_of(policy).act(policy, observation, rnn_state, random)


@register("q_network.act", _serves, DIGESTS["q_network.act"], CLASSES)
def act_greedily(policy: QNetwork, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
    """headrace.policies.q_network.QNetwork.act, with the same actions except where rounding differs."""
    return actor_of(policy).act(policy, observation, rnn_state, random)
