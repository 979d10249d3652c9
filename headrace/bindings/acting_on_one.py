"""Policy.act_on_one: predict() for one observation, from NumPy to NumPy in one call of the CPU's acting kernels."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from headrace.bindings import acting, off_policy_acting
from headrace.bindings.actor_critic_layout import CLASSES, normalizer_of
from headrace.bindings.digests import DIGESTS
from headrace.bindings.eligibility import verdict
from headrace.bindings.off_policy_acting import NO_CHOICE, NO_NUMBER
from headrace.core.fused import reached, register
from headrace.data.flat_dict import FlatDict
from headrace.kernels.nn.layout import PolicyArguments
from headrace.kernels.off_policy.off_policy_run_arguments import ActorArguments
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Call
from headrace.kernels.runtime.thread_pool import queue_state
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.actor_q import ActorQ
from headrace.policies.base import Policy, is_kind, kind_of
from headrace.policies.examination import examine, last_examined
from headrace.policies.networks import VectorEncoder
from headrace.policies.numpy_io import to_action
from headrace.policies.q_network import QNetwork

KEEPS_GIL = 100_000  # parameters up to which acting on one observation takes 10 to 40 us: it keeps the GIL meanwhile
_ACTS: dict[Any, tuple[Any, str, tuple[type, ...]]] = {  # what acts, its digest, and the classes it reaches
    ActorCritic: (ActorCritic.act, DIGESTS["actor_critic.act"], CLASSES),
    ActorQ: (ActorQ.act, DIGESTS["actor_q.act"], off_policy_acting.CLASSES),
    QNetwork: (QNetwork.act, DIGESTS["q_network.act"], off_policy_acting.CLASSES),
}


class _Kernel(NamedTuple):
    """A kernel that acts, `act` of the module headrace.kernels.`module`, and what it acts for.

    discrete: whether actions are whole numbers, of which an action has `size`. outputs: arrays that it writes besides
    actions. scratch: memory for a call. weights: parameters that it reads.
    """

    module: str
    policy: PolicyArguments | ActorArguments
    discrete: bool
    size: int
    outputs: int
    scratch: Callable[[], np.ndarray]
    weights: int


class ActingOnOne:
    """Acts on one observation at a time, while nothing in the policy is replaced or moved. Several threads may call it
    at once."""

    def __init__(self, policy: Policy, kernel: _Kernel) -> None:
        self._kernel, self._num_draws = kernel, policy.num_draws
        self._seen, self._space = policy.observation_space, policy.action_space
        self._shape = policy.observation_space.shape or ()
        # calls that no thread is using, by whether they draw
        self._calls: dict[bool, list[_CallOnOne]] = {False: [], True: []}

    def act(self, observation: Any, deterministic: bool, generator: torch.Generator | None) -> Any:
        """As predict(); None where this is no array of one observation."""
        if type(observation) is dict and isinstance(self._seen, FlatDict):
            observation = self._seen.join(observation)
        if type(observation) is not np.ndarray or observation.shape != self._shape:
            return None
        if observation.dtype.kind not in "fiu":
            return None
        calls, draws = self._calls[not deterministic], 0 if deterministic else self._num_draws
        try:
            call = calls.pop()
        except IndexError:  # a first call, or as many at once as never before
            call = _CallOnOne(self._kernel, self._shape, draws)
        call.observation[...] = observation
        if draws:
            call.random[:] = torch.rand(1, draws, generator=generator).numpy()[0]
        call.state[:] = 0
        call.call()
        action = call.action.copy()
        calls.append(call)
        return to_action(self._space, action.reshape(1, -1) if self._space.shape else action, single=True)


class _CallOnOne:
    """A call of the kernel that reads and writes arrays of its own."""

    def __init__(self, kernel: _Kernel, shape: tuple[int, ...], num_draws: int) -> None:
        one, self.state = np.uint64(1), queue_state()
        seen, self.random = np.empty(math.prod(shape), np.float32), np.empty(num_draws, np.float32)
        self.observation = seen.reshape(shape)
        self.action = np.empty(kernel.size, np.int32 if kernel.discrete else np.float32)
        columns = (self.action, NO_NUMBER) if kernel.discrete else (NO_CHOICE, self.action)
        outputs = (*columns, one, *(np.empty(1, np.float32) for _ in range(kernel.outputs)))
        drawn = (np.uint64(num_draws), self.random, one)
        arguments = (0, self.state, kernel.policy, (seen, one), drawn, one, outputs, kernel.scratch())
        function = entry(kernel.module, "act", arguments, acting.ANNOUNCEMENT)
        self.call = Call(function, arguments, with_gil=kernel.weights <= KEEPS_GIL)


def _kernel(policy: Any) -> _Kernel | None:
    """What acts for this policy: for vectors, on the CPU, from parameters in one buffer; None for others."""
    if type(policy.encoder) is not VectorEncoder or verdict(policy).acting is not None:
        return None
    if is_kind(policy, ActorCritic):
        flat = verdict(policy).flat
        if flat is None or flat.device.type != "cpu":
            return None
        actor = acting.actor_of(policy)
        arguments, size = actor.policy_arguments(policy, normalizer_of(policy)), len(actor.start)
        return _Kernel("learning.act", arguments, actor.discrete, size, 2, lambda: actor.scratch(1), len(flat))
    if not off_policy_acting.known(policy):
        return None
    other = off_policy_acting.actor_of(policy)
    if other.copies:  # before each call
        return None
    not_explored = other.arguments._replace(exploration=np.zeros(1, np.float32), random=np.zeros(1, np.float32))
    fields = not_explored, other.choices, other.size, 1, lambda: other.scratch(1), other.weights
    return _Kernel("off_policy.off_policy_act", *fields)


def _serves(policy: Policy, observation: Any, *_: Any) -> bool:
    if kind_of(policy) not in _ACTS or type(observation) not in (np.ndarray, dict):
        return False
    found = examine(policy).kept
    if ActingOnOne not in found:
        kernel = _kernel(policy)
        found[ActingOnOne] = None if kernel is None else ActingOnOne(policy, kernel)
    if found[ActingOnOne] is None:
        return False
    function, digest, classes = _ACTS[kind_of(policy)]
    current: Any = type(policy).act
    return current is function and reached(function.plain, classes).matches(digest)


@register("policy.act_on_one", _serves)
def act_on_one(policy: Policy, observation: Any, deterministic: bool, generator: torch.Generator | None) -> Any:
    """predict() of one observation, with the bits of act_without_exploration()."""
    one = last_examined(policy).kept.get(ActingOnOne)  # None where another thread has just changed the policy
    return None if one is None else one.act(observation, deterministic, generator)
