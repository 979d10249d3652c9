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
from headrace.kernels.runtime.native import Call
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import PolicyOutput
from headrace.policies.examination import last_examined
from headrace.policies.networks import VectorEncoder
from headrace.policies.numpy_io import batch_size

ANNOUNCEMENT = "compiling the policy (once, about 4 s) ..."
_NO_CHOICE, _NO_ACTION = np.empty(0, np.int32), np.empty(0, np.float32)
_NO_DRAWS = (np.uint64(0), np.empty(0, np.float32), np.uint64(0))
_IDENTITY_SCALE = np.array((0, 1), np.float32)
WORTH_HELP = 5e7  # floating-point operations below which waking another thread costs more than it saves


class Acting:
    """Acts for one policy, while nothing in it is replaced or moved. Several threads may call it at once."""

    def __init__(self, policy: ActorCritic, flat: Tensor) -> None:
        self.tables = compiled(policy, flat)
        self.parameters = flat.numpy()
        self.start = self.tables.start[:, 0].to(torch.int32).numpy()
        self.discrete = int(self.tables.head.kind) in CHOICES
        self.work_queue = WorkQueue()
        self._calls: list[_ActCall] = []  # that no thread is using

    def act(self, policy: ActorCritic, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        seen = encoded_rows(policy, observation)
        rows = seen.shape[1]
        action = torch.empty((len(self.start), rows), dtype=torch.int32 if self.discrete else torch.float32)
        log_prob, value = torch.empty(rows), torch.empty(rows)
        try:
            call = self._calls.pop()
        except IndexError:  # a first call, or as many at once as never before
            call = _ActCall(self, policy)
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


class _ActCall:
    """A call of the kernel for one thread at a time. Its arguments are converted to slots once, which takes longer than
    acting for a few rows. point() puts what differs from call to call: addresses, strides and numbers of rows; the
    kernel does not read the sizes of these arrays."""

    def __init__(self, acting: Acting, policy: ActorCritic) -> None:
        shared = acting.policy_arguments(policy, normalizer_of(policy))
        normalizer, self._value_scale = policy.return_normalizer, shared.value_scale
        self._units = None if normalizer is None else (normalizer.center.numpy(), normalizer.scale.numpy())
        column, nothing = np.empty(0, np.float32), np.uint64(0)
        outputs = (*acting.column(_NO_CHOICE if acting.discrete else column), nothing, column, column)
        arguments = (0, queue_state(), shared, (column, nothing), _NO_DRAWS, nothing, outputs, acting.scratch())
        self.call = Call(entry("learning.act", "act", arguments, ANNOUNCEMENT), arguments)
        slot = self.call.slot
        self._seen, self._seen_stride, self._rows = slot(3, 0), slot(3, 1), slot(5)
        self._num_draws, self._draws, self._draws_stride = (slot(4, part) for part in range(3))
        self._action, self._action_stride = slot(6, 0 if acting.discrete else 1), slot(6, 2)
        self._log_prob, self._value = slot(6, 3), slot(6, 4)

    def point(self, seen: Tensor, random: Tensor | None, action: Tensor, log_prob: Tensor, value: Tensor) -> None:
        """Let it read seen [F, R], random [draws, R], and write action [K, R], log_prob [R], value [R]."""
        call, slots, rows = self.call, self.call.slots, seen.shape[1]
        slots[self._rows] = slots[self._draws_stride] = slots[self._action_stride] = rows
        slots[self._seen_stride], slots[self._num_draws] = seen.stride(0), 0
        if random is not None:
            slots[self._num_draws] = len(random)
            call.point(self._draws, random.data_ptr())
        call.point(self._seen, seen.data_ptr())
        call.point(self._action, action.data_ptr())
        call.point(self._log_prob, log_prob.data_ptr())
        call.point(self._value, value.data_ptr())
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
