"""The CPU kernels for collecting with an ActorCritic: T steps of compiled environments in one call; and a call per step
for other environments.

The second saves what stands around a kernel's call: what the policy is, where it reads and writes, is looked up once in
T steps. That is most of the time of acting for a few rows, the more so where an environment sleeps: what runs after it
finds nothing in the processor's caches, so it is the amount of code and data that counts."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from headrace.bindings import acting
from headrace.bindings.actor_critic_layout import encoded
from headrace.bindings.arguments import draws_fit
from headrace.bindings.bound import Bound
from headrace.bindings.digests import DIGESTS
from headrace.core import rng
from headrace.core.fused import kernel_of, latest_kernel, register
from headrace.data.rollout import Rollout, flatten
from headrace.envs.compiled.env import CompiledEnv
from headrace.kernels.nn.layout import WORKERS
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Call
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state
from headrace.kernels.targets.cpu.env import CpuEnvs
from headrace.parallel.collector import InlineCollector, acts_as_written, output_columns
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import is_kind
from headrace.policies.examination import examine
from headrace.policies.networks import VectorEncoder

ANNOUNCEMENT = "compiling the collector (once, about 4 s) ..."
LINE = 8  # words of a cache line: see headrace.kernels.learning.collect


class _CollectCall:
    """The call that collects T steps of one policy and one env into one rollout, while their memory stays the same."""

    def __init__(self, actor: acting.Acting, step: Call, policy: ActorCritic, rollout: Rollout) -> None:
        steps, num_envs = rollout.num_steps, rollout.num_envs
        column, stride, normalizer = encoded(policy, flatten(rollout.observation))
        self.policy_arguments = actor.policy_arguments(policy, normalizer)
        action = rollout.action.view(steps * num_envs, -1).t().reshape(-1)
        self.random = np.zeros((steps, policy.num_draws, num_envs), np.float32)
        self.spent = np.zeros((WORKERS, LINE), np.uint64)
        slots = np.tile(step.slots, (WORKERS, 1))
        log_prob, value = rollout.log_prob.view(-1).numpy(), rollout.value.view(-1).numpy()
        arguments = (
            *(0, queue_state(), self.policy_arguments, (column, np.uint64(stride)), acting.draws(self.random)),
            (*actor.column(action.numpy()), np.uint64(steps * num_envs), log_prob, value),
            (np.uint64(steps), np.uint64(num_envs)),
            (np.uint64(step.function.address), np.uint64(slots.shape[1])),
            *(slots.reshape(-1), actor.scratch(), self.spent.reshape(-1), (np.uint64(0),) * 5),
        )
        self.call = Call(entry("learning.collect", "collect", arguments, ANNOUNCEMENT), arguments)
        self.counter_place = self.call.slot(len(arguments) - 1)
        self.threads = actor.threads(steps * num_envs)
        self.work_queue = WorkQueue()

    def run(self, collector: InlineCollector, policy: ActorCritic, first_step: int) -> dict[str, float]:
        """Collect, and return the seconds spent in each part."""
        if type(collector)._random is InlineCollector._random and "_random" not in vars(collector):
            numbers = (rng.word(collector.seed), int(rng.Purpose.ACTION), first_step, collector.env.first_env)
            self.call.slots[self.counter_place : self.counter_place + 5] = (1, *numbers)
        else:
            self.call.slots[self.counter_place] = 0
            self.random[...] = collector._random(first_step).transpose(1, 2).numpy()
        self.policy_arguments.value_scale[:] = acting.value_scale(policy)
        self.spent[:] = 0
        started = perf_counter()
        self.work_queue.run(self.call, self.threads)
        seconds = perf_counter() - started
        inference, env = map(sum, zip(*self.spent[: self.threads, :2].tolist(), strict=True))
        if not inference + env:  # the processor's cycle counter cannot be read
            return {"collecting": seconds}
        return {"inference": seconds * inference / (inference + env), "env": seconds * env / (inference + env)}


_calls: Bound[_CollectCall] = Bound()


class _RowCalls:
    """A call of the acting kernel for each row of a rollout, while its memory stays the same: it reads and writes the
    columns where they lie."""

    def __init__(self, actor: acting.Acting, policy: ActorCritic, rollout: Rollout) -> None:
        steps, num_envs = rollout.num_steps, rollout.num_envs
        self.draws = torch.zeros(steps, policy.num_draws, num_envs)
        self.act, self.calls = acting.ActCall(actor, policy), list[Call]()
        self.threads, self.work_queue = actor.threads(num_envs), WorkQueue()
        for t in range(steps):
            action = rollout.action[t].view(num_envs, -1).t()
            self.act.point(rollout.observation[t].t(), self.draws[t], action, rollout.log_prob[t], rollout.value[t])
            self.calls.append(self.act.call.as_it_is())

    def begin(self, random: Tensor) -> None:
        """Take over what changes from rollout to rollout. random: [T, N, draws]."""
        self.draws.copy_(random.transpose(1, 2))
        self.act.follow_value_scale()


_row_calls: Bound[_RowCalls] = Bound()


def serves_rows(collector: InlineCollector, first_step: int | Tensor) -> bool:
    """Whether the policy has a CPU kernel that can read and write the rollout's columns where they lie."""
    policy, rollout = collector.policy, collector.rollout
    if not is_kind(policy, ActorCritic) or type(policy.encoder) is not VectorEncoder:
        return False
    if not acts_as_written(collector) or not isinstance(rollout.observation, Tensor):
        return False
    if rollout.observation.dim() != 3 or output_columns(rollout) != ["action", "log_prob", "value"]:
        return False
    seen, action = rollout.observation, flatten(rollout.action)
    columns = (action.view(len(action), -1).t(), rollout.log_prob, rollout.value, seen.permute(2, 0, 1))
    return (
        not isinstance(first_step, Tensor)
        and all(x.is_contiguous() and x.dtype in (torch.float32, torch.int32) for x in columns)
        and kernel_of(ActorCritic.act, policy, seen[0], None, None) is acting.act
        and kernel_of(ActorCritic.value, policy, seen[0]) is acting.value
    )


@register("collector.steps", serves_rows, DIGESTS["collector.steps"], (InlineCollector,))
@torch.no_grad()
def steps_of_rows(collector: InlineCollector, first_step: int) -> None:
    """headrace.parallel.collector.steps, with the same bits as the kernel for acting: the environments are of any
    kind."""
    env, policy, rollout, timer = collector.env, collector.policy, collector.rollout, collector.timer
    assert isinstance(policy, ActorCritic)
    actor, columns = acting.actor_of(policy), (rollout.observation, rollout.action, rollout.log_prob, rollout.value)
    acts = _row_calls.get(lambda: _RowCalls(actor, policy, rollout), rollout, actor, *columns)
    with timer("inference"):
        acts.begin(collector._random(first_step))
    for t, call in enumerate(acts.calls):
        with timer("inference"):
            collector.check_stop()
            acts.work_queue.run(call, acts.threads)
        with timer("env"):
            env.step(rollout, t)
    with timer("inference"):
        collector.evaluate_bootstrap_row()


def serves(collector: InlineCollector, first_step: int | Tensor) -> bool:
    """Whether policy and environments both have CPU kernels."""
    env, policy, rollout = collector.env, collector.policy, collector.rollout
    if type(env) is not CompiledEnv or env.backend != "cpu" or env.step != env.target.step or env.num_agents > 1:
        return False
    if not is_kind(policy, ActorCritic) or type(policy.encoder) is not VectorEncoder or rollout.observation.dim() != 3:
        return False
    if output_columns(rollout) != ["action", "log_prob", "value"] or torch.is_grad_enabled():
        return False
    if not acts_as_written(collector):
        return False
    if isinstance(first_step, Tensor) or not draws_fit(collector.seed, 0, 1, env.num_envs, 1, env.first_env):
        return False
    if latest_kernel(ActorCritic.act) is not acting.act or latest_kernel(ActorCritic.value) is not acting.value:
        return False
    columns = (rollout.observation, rollout.action, rollout.log_prob, rollout.value)
    return _answers.get(lambda: _acts_for(policy, rollout), rollout, examine(policy), *columns)


_answers: Bound[bool] = Bound()  # of _acts_for()


def _acts_for(policy: ActorCritic, rollout: Rollout) -> bool:
    """Whether the kernels for acting serve this policy, and can write these columns."""
    seen, action = rollout.observation[0], flatten(rollout.action)
    written = (action.view(len(action), -1).t(), rollout.log_prob, rollout.value)
    return (
        all(x.is_contiguous() and x.dtype in (torch.float32, torch.int32) for x in written)
        and kernel_of(ActorCritic.act, policy, seen, None, None) is acting.act
        and kernel_of(ActorCritic.value, policy, seen) is acting.value
    )


@register("collector.steps", serves, DIGESTS["collector.steps"], (InlineCollector,))
@torch.no_grad()
def steps(collector: InlineCollector, first_step: int) -> None:
    """headrace.parallel.collector.steps, with the same bits as the kernels for acting and stepping."""
    env, policy, rollout = collector.env, collector.policy, collector.rollout
    assert isinstance(env, CompiledEnv) and isinstance(env.target, CpuEnvs) and isinstance(policy, ActorCritic)
    actor, step = acting.actor_of(policy), env.target.bound(rollout)
    collecting = _calls.get(lambda: _CollectCall(actor, step, policy, rollout), rollout, actor, step)
    for part, seconds in collecting.run(collector, policy, first_step).items():
        collector.timer.add(part, seconds)
