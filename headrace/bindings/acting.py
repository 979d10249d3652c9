"""ActorCritic.act and .value by the CPU's kernel: network, sampling and log-likelihood in one call."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.bindings.actor_critic_layout import CLASSES, compiled, encoded_rows, normalizer_of
from headrace.bindings.arguments import fits
from headrace.bindings.digests import DIGESTS
from headrace.bindings.eligibility import verdict
from headrace.core.device import kernel_threads
from headrace.core.fused import register
from headrace.kernels.nn.layout import CHOICES, WORKERS, Normalizer, PolicyArguments, aligned, rounded
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Argument, Call
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import PolicyOutput, is_kind
from headrace.policies.examination import last_examined
from headrace.policies.networks import VectorEncoder
from headrace.policies.numpy_io import batch_size

ANNOUNCEMENT = "compiling the policy (once, about 4 s) ..."
_NO_CHOICE, _NO_ACTION = np.empty(0, np.int32), np.empty(0, np.float32)
_UNKNOWN, _SOME_CHOICE = np.empty(1, np.float32), np.empty(1, np.int32)  # in place of what a call is pointed at
_NO_DRAWS = (np.uint64(0), _NO_ACTION, np.uint64(0))
_IDENTITY_SCALE = np.array((0, 1), np.float32)
WORTH_HELP = 5e7  # floating-point operations below which waking another thread costs more than it saves


class Acting:
    """Acts for one policy, while nothing in it is replaced or moved. Several threads may call it at once."""

    def __init__(self, policy: ActorCritic, flat: Tensor) -> None:
        self.tables = compiled(policy, flat)
        self.parameters = flat.numpy()
        self.start = self.tables.start
        self.discrete = int(self.tables.head.kind) in CHOICES
        self.work_queue = WorkQueue(alike=False)
        self._calls: list[ActCall] = []  # that no thread is using

    def act(self, policy: ActorCritic, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        seen = encoded_rows(policy, observation)
        rows = seen.shape[1]
        action = torch.empty((len(self.start), rows), dtype=torch.int32 if self.discrete else torch.float32)
        log_prob, value = torch.empty(rows), torch.empty(rows)
        try:
            call = self._calls.pop()
        except IndexError:  # a first call, or as many at once as never before
            call = ActCall(self, policy)
        drawn = None if random is None else random.t().contiguous()
        call.point(seen, drawn, action, log_prob, value)
        self.work_queue.run(call.call, self.threads(rows))
        self._calls.append(call)
        return PolicyOutput(action.t() if policy.action_space.shape else action[0], log_prob, value, rnn_state)

    def scratch(self, workers: int = WORKERS) -> np.ndarray:
        """Memory for the workers of one call."""
        return aligned(workers, rounded(self.tables.scratch))

    def policy_arguments(self, policy: ActorCritic, normalizer: Normalizer) -> PolicyArguments:
        """The policy as kernel arguments."""
        tables = (self.tables.network.layers, self.tables.head, self.tables.offsets)
        return PolicyArguments(*tables, self.parameters, value_scale(policy), normalizer, self.start)

    def column(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A flat column of actions as the first or second of the two columns that the kernels take."""
        return (action, _NO_ACTION) if self.discrete else (_NO_CHOICE, action)

    def threads(self, rows: int) -> int:
        """The number of cores where acting for so many rows is worth waking other threads, else 1."""
        worth = 2 * len(self.parameters) * rows > WORTH_HELP
        return min(kernel_threads(), WORKERS) if worth else 1


class RowsCall:
    """A call of an acting kernel for one thread at a time. Its arguments are converted to slots once, which takes
    longer than acting for a few rows. point() puts what differs from call to call: addresses, strides and numbers of
    rows; the kernel does not read the sizes of these arrays.

    policy: the kernel's argument. columns: the two of which actions are written to one, then float32 outputs.
    """

    def __init__(self, kernel: str, policy: Argument, columns: tuple[np.ndarray, ...], scratch: np.ndarray) -> None:
        nothing, (choice, action, *others) = np.uint64(0), columns
        outputs: tuple[Argument, ...] = (choice, action, nothing, *others)
        arguments = (0, queue_state(), policy, (_UNKNOWN, nothing), _NO_DRAWS, nothing, outputs, scratch)
        self.call = Call(entry(kernel, "act", arguments, ANNOUNCEMENT), arguments)
        slot = self.call.slot
        self._seen, self._seen_stride, self._rows = slot(3, 0), slot(3, 1), slot(5)
        self._num_draws, self._draws, self._draws_stride = (slot(4, part) for part in range(3))
        self._action_stride = slot(6, 2)
        self._outputs = [slot(6, 0 if len(choice) else 1), *(slot(6, 3 + k) for k in range(len(others)))]

    def point(self, seen: Tensor, random: Tensor | None, *outputs: Tensor) -> None:
        """Let it read seen [F, R], random [draws, R], and write actions [K, R] and the other outputs [R]."""
        call, slots, rows = self.call, self.call.slots, seen.shape[1]
        slots[self._rows] = slots[self._draws_stride] = rows
        slots[self._seen_stride], slots[self._num_draws] = seen.stride(0), 0
        slots[self._action_stride] = outputs[0].stride(0)
        if random is not None:
            slots[self._num_draws] = len(random)
            call.point(self._draws, random.data_ptr())
        call.point(self._seen, seen.data_ptr())
        for slot, output in zip(self._outputs, outputs, strict=False):
            call.point(slot, output.data_ptr())

    def move(self, columns: list[Tensor], random: Tensor) -> np.ndarray:
        """Point it at the first row of [T, F, N] observations and [T, K, N] actions, and of [T, draws, N] draws.

        Returns int64 [3, 3]: slots of addresses, what they are in the first row, and bytes from row to row."""
        seen, action = columns
        self.point(seen[0], random[0], action[0])
        places = zip((self._seen, self._draws, self._outputs[0]), (seen, random, action), strict=True)
        return np.array([self.call.moving(slot, x.data_ptr(), x.stride(0) * x.element_size()) for slot, x in places])


class ActCall(RowsCall):
    """An actor and critic's: actions, log_prob, value."""

    def __init__(self, acting: Acting, policy: ActorCritic) -> None:
        shared = acting.policy_arguments(policy, normalizer_of(policy))
        normalizer, self._value_scale = policy.return_normalizer, shared.value_scale
        self._units = None if normalizer is None else (normalizer.center.numpy(), normalizer.scale.numpy())
        written = acting.column(_SOME_CHOICE if acting.discrete else _UNKNOWN)
        super().__init__("learning.act", shared, (*written, _UNKNOWN, _UNKNOWN), acting.scratch())

    def point(self, seen: Tensor, random: Tensor | None, *outputs: Tensor) -> None:
        super().point(seen, random, *outputs)
        self.follow_value_scale()

    def follow_value_scale(self) -> None:
        """Take over the units of values, which the normaliser of returns changes after each update."""
        if self._units is not None:
            self._value_scale[:] = self._units


def draws(random: np.ndarray) -> tuple[np.uint64, np.ndarray, np.uint64]:
    """Random draws [..., draws, N] as kernel arguments: the number of draws, the array, the stride of a draw."""
    return np.uint64(random.shape[-2]), random.reshape(-1), np.uint64(random.shape[-1])


def _reads(policy: ActorCritic, observation: Any, random: Tensor | None) -> bool:
    """Whether these are float32 observations and draws of one number of rows. encoded_rows() looks at observations that
    are not vectors."""
    if type(policy.encoder) is VectorEncoder:
        shape, size = tuple(getattr(observation, "shape", ())), policy.encoder.size + policy.encoder.skipped
        if not fits(observation, torch.float32, *shape) or math.prod(shape[1:]) != size:
            return False
    rows = batch_size(observation)
    return rows > 0 and (random is None or fits(random, torch.float32, rows, policy.num_draws))


def _serves(policy: ActorCritic, observation: Any, rnn_state: Any = None, random: Tensor | None = None) -> bool | str:
    if not is_kind(policy, ActorCritic):  # collecting is compiled from its source, or says why it is not
        return False
    weight = policy.critic_out.weight
    if weight.device.type != "cpu" or torch.is_grad_enabled() or not _reads(policy, observation, random):
        return False
    found = verdict(policy)
    return found.acting or found.flat is not None


@register("actor_critic.act", _serves, DIGESTS["actor_critic.act"], CLASSES)
def act(policy: ActorCritic, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
    """headrace.policies.actor_critic.ActorCritic.act, with the same actions except where rounding differs."""
    return actor_of(policy).act(policy, observation, rnn_state, random)


@register("actor_critic.value", _serves, DIGESTS["actor_critic.value"], CLASSES)
def value(policy: ActorCritic, observation: Any, rnn_state: Any = None) -> Tensor:
    """headrace.policies.actor_critic.ActorCritic.value, with the bits of act()."""
    return actor_of(policy).act(policy, observation, rnn_state, None).value


def actor_of(policy: ActorCritic) -> Acting:
    """What acts for the policy, which verdict() allowed."""
    found = last_examined(policy)
    if Acting not in found.kept:
        flat = verdict(policy).flat
        assert flat is not None  # else _serves() had said so
        found.kept[Acting] = Acting(policy, flat)
    return found.kept[Acting]  # type: ignore[no-any-return]


def value_scale(policy: ActorCritic) -> np.ndarray:
    """Center and scale of values."""
    normalizer = policy.return_normalizer
    return _IDENTITY_SCALE if normalizer is None else np.array((normalizer.center, normalizer.scale), np.float32)
