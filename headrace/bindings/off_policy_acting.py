"""ActorQ.act and QNetwork.act by the CPU's kernel: network, exploration and clipping in one call."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from headrace.bindings import acting
from headrace.bindings.actor_critic_layout import dense_layer, normalizer_of, trunk_layers
from headrace.bindings.arguments import fits
from headrace.bindings.digests import DIGESTS
from headrace.bindings.eligibility import flat_buffer, verdict
from headrace.core.device import kernel_threads
from headrace.core.fused import register
from headrace.kernels.learning import off_policy_run_arguments as slots
from headrace.kernels.learning.off_policy_run_arguments import ActorArguments
from headrace.kernels.nn.layer_table import OUTPUT
from headrace.kernels.nn.layout import BLOCK, WORKERS, Layer, ScratchOffsets, aligned, network, rounded
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Call
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state
from headrace.policies.actor_q import ActorQ
from headrace.policies.base import PolicyOutput
from headrace.policies.examination import last_examined
from headrace.policies.flat_parameters import flatten
from headrace.policies.networks import MLP, Readout, VectorEncoder
from headrace.policies.normalization import ObservationNormalizer
from headrace.policies.numpy_io import batch_size
from headrace.policies.q_network import QNetwork

WIDEST = 512  # hidden layers wider than this are faster in plain torch
ANNOUNCEMENT = "compiling the policy (once, about 4 s) ..."
CLASSES = (ActorQ, QNetwork, PolicyOutput, MLP, Readout, VectorEncoder, ObservationNormalizer)
Acts: TypeAlias = ActorQ | QNetwork
NO_CHOICE, NO_NUMBER = np.empty(0, np.int32), np.empty(0, np.float32)
SIZES = 16  # numbers of rows for which calls are kept


class Actor:
    """Acts for one policy, while nothing in it is replaced. Several threads may call it at once."""

    def __init__(self, policy: Acts) -> None:
        layers: list[Layer] = []
        trunk, out = _parts(policy)
        self.originals: Any = [*trunk.parameters(), *out.parameters()]
        self.copies: Any = []  # where no optimizer has moved the parameters into one buffer
        flat = flat_buffer(self.originals)
        if flat is None:
            trunk, out = deepcopy((trunk, out))
            self.copies = [*trunk.parameters(), *out.parameters()]
            flat = flatten(self.copies)
        dense_layer(out, trunk_layers(trunk, layers, policy.activation, flat), "identity", layers, flat)
        net = network(layers)
        zero, output = np.uint64(0), net.layers[-1, OUTPUT]
        offsets = (
            np.uint64(net.inputs),
            np.uint64(net.transposed),
            output,
            *[zero] * 5,
            np.uint64(net.scratch),
            zero,
            zero,
        )
        self.choices, self.features = isinstance(policy, QNetwork), net.inputs
        self.weights = sum(map(Tensor.numel, self.originals))
        self.scratch_size = rounded(net.scratch + (policy.num_draws + 2) * int(BLOCK))
        kind, center, half_range, random = slots.CHOICES, NO_NUMBER, NO_NUMBER, NO_NUMBER
        if isinstance(policy, ActorQ):
            kind = slots.DETERMINISTIC if policy.deterministic else slots.STOCHASTIC
            center, half_range, random = (x.numpy() for x in (policy.center, policy.half_range, policy.random))
        self.size = 1 if self.choices else len(center)  # numbers of an action
        start = np.int64(policy.start if isinstance(policy, QNetwork) else 0)
        normalizer = normalizer_of(policy)
        fields: Any = (kind, net.layers, ScratchOffsets(*offsets), flat.numpy(), normalizer)
        last: Any = (center, half_range, start, np.uint64(len(out.bias)), policy.exploration.numpy(), random)
        self.arguments = ActorArguments(*fields, *last)
        self._spare: dict[tuple[int, int], list[_Call]] = {}  # by rows and draws, calls that no thread is in

    def scratch(self, workers: int = WORKERS) -> np.ndarray:
        """Memory for the workers of one call."""
        return aligned(workers, self.scratch_size)

    def act(self, policy: Acts, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        """See the policies' act()."""
        if self.copies:
            torch._foreach_copy_(self.copies, self.originals)
        key = batch_size(observation), 0 if random is None else policy.num_draws
        if len(self._spare) > SIZES:
            self._spare = {}
        calls = self._spare.setdefault(key, [])
        try:
            call = calls.pop()
        except IndexError:  # a first call, or as many at once as never before
            call = _Call(self, *key)
        action, value = call.act(policy, observation, random)
        calls.append(call)
        return PolicyOutput(action, None, value, rnn_state)

    def threads(self, rows: int) -> int:
        """The number of cores where acting for so many rows is worth waking other threads, else 1."""
        return min(kernel_threads(), WORKERS) if 2 * self.weights * rows > acting.WORTH_HELP else 1


class _Call:
    """A call for so many rows: its arguments are made once, since that takes longer than acting for a few rows."""

    def __init__(self, actor: Actor, rows: int, draws: int) -> None:
        self.observation, self.random = torch.zeros(actor.features, rows), torch.zeros(draws, rows)
        self.action = torch.zeros(actor.size, rows, dtype=torch.int32 if actor.choices else torch.float32)
        self.value = torch.zeros(rows if actor.choices else 0)
        given, drawn, action, value = (
            x.view(-1).numpy() for x in (self.observation, self.random, self.action, self.value)
        )
        count, choices = np.uint64(rows), actor.choices
        arguments: Any = (
            *(0, queue_state(), actor.arguments, (given, count), (np.uint64(draws), drawn, count), count),
            ((action, NO_NUMBER) if choices else (NO_CHOICE, action)) + (count, value),
            actor.scratch(),
        )
        self.call = Call(entry("learning.off_policy_act", "act", arguments, ANNOUNCEMENT), arguments)
        self.threads, self.choices, self.work_queue = actor.threads(rows), choices, WorkQueue()

    def act(self, policy: Acts, observation: Any, random: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Actions, and (of choices) their values."""
        if type(policy.encoder) is VectorEncoder:
            self.observation.t().copy_(observation.reshape(len(observation), -1))
        else:
            self.observation.t().copy_(policy.encoder(observation))
        if random is not None:
            self.random.t().copy_(random)
        self.work_queue.run(self.call, self.threads)
        if self.choices:
            return self.action[0].clone(), self.value.clone()
        return self.action.clone().t(), None


def _parts(policy: Acts) -> tuple[MLP, Readout]:
    """The layers that actions are computed by."""
    return (policy.trunk, policy.out) if isinstance(policy, QNetwork) else (policy.actor, policy.actor_out)


def actor_of(policy: Acts) -> Actor:
    """What acts for a policy that known() holds of."""
    found = last_examined(policy)
    if Actor not in found.kept:
        found.kept[Actor] = Actor(policy)
    return found.kept[Actor]  # type: ignore[no-any-return]


def known(policy: Acts) -> bool:
    """Whether kernels act for a policy: float32, and without recurrent state."""
    if max(policy.hidden, default=0) > WIDEST or next(policy.parameters()).device.type != "cpu":
        return False
    if policy.state_width or policy.recurrent != "none":
        return False
    if isinstance(policy, QNetwork) and (policy.dueling or policy.exploration.device.type != "cpu"):
        return False
    dtypes = {parameter.dtype for parameter in last_examined(policy).parameters}
    return verdict(policy).acting is None and dtypes == {torch.float32}


def _serves(policy: Acts, observation: Any, rnn_state: Any = None, random: Tensor | None = None) -> bool:
    if torch.is_grad_enabled() or type(policy) not in (ActorQ, QNetwork) or not known(policy):
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
