"""The compiled loop of off-policy algorithms: acting, environments, the replay buffer, and learning by programs made of
an algorithm's losses, in one call.

Where environments are not compiled they are stepped in Python, between a call that acts and one that appends and
learns; where a rollout is collected whole, the call draws and learns alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.off_policy import Networks, OffPolicy, learn_from_replay
from headrace.algorithms.reduce import size_of
from headrace.bindings.bound import Bound
from headrace.bindings.collecting.compiled_collecting import Rows, program_of, rows_of
from headrace.bindings.collecting.replay_loop import Loop, collects, compiled_step, draws
from headrace.bindings.compiled import compiled_objectives
from headrace.bindings.compiled.compiled_objectives import programs_of
from headrace.bindings.compiled.replay_learning import LearningCall, MinibatchMemory
from headrace.bindings.digests import DIGESTS
from headrace.core.fused import kernel_of, register
from headrace.core.packages import of_headrace
from headrace.data.priorities import PrioritizedReplay
from headrace.data.replay import Replay
from headrace.parallel.collector import InlineCollector
from headrace.parallel.learning_collector import LearningCollector
from headrace.policies.actor_q import ActorQ
from headrace.policies.q_network import QNetwork

CLASSES = (OffPolicy, Networks, Adam, Replay, PrioritizedReplay, ActorQ, QNetwork)
STEPS_CLASSES = (*CLASSES, InlineCollector, LearningCollector)
LEFT_OUT = ("append_and_learn", "batch_rows", "add_metrics")  # methods that the compiled loop does not call


def _can_be_called(algorithm: OffPolicy[Any], number: int) -> bool:
    """Tell whether the compiled loop can do what the algorithm's methods do for learning."""
    kind = type(algorithm)
    if any(getattr(kind, name) is not getattr(OffPolicy, name) for name in LEFT_OUT):
        return False
    if vars(algorithm).keys() & {"learn", *LEFT_OUT} or not of_headrace(kind.learn):
        return False
    return size_of(algorithm.reduce) == 1 and draws(algorithm, number) and kind.objectives is not OffPolicy.objectives


def _call(algorithm: OffPolicy[Any], steps: int) -> LearningCall | None:
    """The learning call of an algorithm as it is now; None where its losses are not compiled, or have to be computed
    one gradient step at a time."""
    objectives, networks = algorithm.objectives()
    config, length = algorithm.config, algorithm.policy.sequence_length
    if compiled_objectives.why_not(objectives, config.batch_size, length, config) is not None:
        return None
    minibatches = _memory.get(lambda: MinibatchMemory(algorithm, steps), algorithm, algorithm.replay, steps)
    found = programs_of(objectives, networks, minibatches.first, config)
    if isinstance(found, str):
        return None
    programs, columns = found
    depends_on = (*programs, *compiled_objectives.buffers_of(objectives), algorithm.replay, steps)
    call = _calls.get(
        lambda: LearningCall(algorithm, minibatches, programs, columns), algorithm, minibatches, *depends_on
    )
    if isinstance(algorithm.replay, PrioritizedReplay) and not len(call.learning.error):
        return None  # no loss has the errors that priorities follow: the plain function says so
    return call


_memory: Bound[MinibatchMemory] = Bound()
_calls: Bound[LearningCall] = Bound()
_learning: Bound[Loop] = Bound()
_loops: Bound[Loop] = Bound()


def serves(algorithm: OffPolicy[Any], number: int) -> bool:
    """Tell whether minibatches of this algorithm's replay buffer are drawn and learned by programs of its losses."""
    return _can_be_called(algorithm, number) and _call(algorithm, number) is not None


@register("off_policy.learn_from_replay", serves, DIGESTS["off_policy.learn_from_replay"], CLASSES)
@torch.no_grad()
def learn(algorithm: OffPolicy[Any], number: int) -> dict[str, Tensor]:
    """headrace.algorithms.off_policy.learn_from_replay: the same rows, and results within rounding."""
    call = _calls.last(algorithm)
    return _learning.get(lambda: Loop(algorithm, call), algorithm, call).learn(algorithm)


def serves_steps(collector: LearningCollector, random: Tensor) -> bool:
    """Tell whether the compiled loop does all but, perhaps, acting and the environments' steps."""
    algorithm = collector.algorithm
    if not collects(collector, random):
        return False
    return kernel_of(learn_from_replay, algorithm, algorithm.gradient_steps(algorithm.rows_per_iteration)) is learn


@register("off_policy.steps", serves_steps, DIGESTS["off_policy.steps"], STEPS_CLASSES)
@torch.no_grad()
def collect(collector: LearningCollector, random: Tensor) -> None:
    """headrace.parallel.learning_collector.steps: the same rows, and results within rounding."""
    algorithm, rollout, step = collector.algorithm, collector.rollout, compiled_step(collector)
    call, rows = _calls.last(algorithm), _rows_of(collector)
    acts = _plainly if rows is None else None

    def make() -> Loop:
        return Loop(algorithm, call, rows, rollout, collector.every, step, acts)

    _loops.get(make, collector, call, rows, rollout, step, acts).collect(collector, random)


class _Plainly:
    """Acts by the collector, as it is written."""

    act = staticmethod(LearningCollector.act)

    def begin(self, collector: LearningCollector, random: Tensor) -> None:
        """Do nothing: each step acts by itself."""

    def end(self, collector: LearningCollector) -> None:
        """Do nothing: each step acts by itself."""


_plainly = _Plainly()


def _rows_of(collector: LearningCollector) -> Rows | None:
    """A program of the policy's act(); None where the collector acts itself."""
    program = program_of(collector)
    return None if program is None or isinstance(program, str) else rows_of(program, collector)
