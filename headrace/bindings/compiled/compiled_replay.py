"""Learning from the replay buffer by programs made of an algorithm's losses, in the loop that draws minibatches.

The loop of Headrace's own networks and losses (headrace.bindings.off_policy_loop) is asked first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.objectives import Rows
from headrace.algorithms.off_policy import OffPolicy, delayed_steps, learn_from_replay, means_of_sums
from headrace.algorithms.reduce import size_of
from headrace.bindings import off_policy_acting
from headrace.bindings.bound import Bound
from headrace.bindings.compiled import compiled_objectives
from headrace.bindings.compiled.compiled_collecting import program_of, rows_of
from headrace.bindings.compiled.compiled_objectives import arguments_of, programs_of
from headrace.bindings.compiled.loss_program import Program
from headrace.bindings.compiled.objective_learner import ObjectiveLearner, Part
from headrace.bindings.digests import DIGESTS
from headrace.bindings.off_policy_loop import CLASSES, STEPS_CLASSES
from headrace.bindings.replay_batches import count
from headrace.bindings.replay_loop import NOTHING, Acts, Loop, collects, compiled_step, draws
from headrace.core import rng
from headrace.core.fused import kernel_of, register
from headrace.data.priorities import PrioritizedReplay
from headrace.data.replay import Batch
from headrace.kernels.nn.layout import BLOCK, WORKERS, Normalizer
from headrace.kernels.off_policy.off_policy_arguments import Batches
from headrace.kernels.off_policy.off_policy_run_arguments import Learning, Minibatches
from headrace.parallel.learning_collector import LearningCollector
from headrace.policies.actor_q import ActorQ
from headrace.policies.base import kind_of
from headrace.policies.q_network import QNetwork

NO_NORMALIZER = Normalizer(NOTHING, NOTHING, np.float32(0))


class _Minibatches:
    """Memory for G minibatches of B rows, which a compiled call draws, and for their draws."""

    def __init__(self, algorithm: OffPolicy[Any], steps: int) -> None:
        config, replay = algorithm.config, algorithm.replay
        assert replay is not None
        ring, self.shape = replay.ring, (steps, config.batch_size)
        blocks, noises = count(config.batch_size), algorithm.num_draws()
        room = steps, blocks * int(BLOCK)
        seen = ring.observation.shape[2]
        observation, following = torch.zeros(*room, seen), torch.zeros(*room, seen)
        choices = ring.action.dim() == 2
        action = torch.zeros(room, dtype=torch.int32) if choices else torch.zeros(*room, ring.action.shape[2])
        reward, discount, self.weight = torch.zeros(room), torch.zeros(room), torch.zeros(room)
        random = torch.zeros(*room, noises)
        self.columns: Rows = {
            "observation": observation,
            "action": action,
            "reward": reward,
            "discount": discount,
            "next_observation": following,
            "weight": self.weight,
        } | ({"random": random} if noises else {})
        flat = [x.view(-1).numpy() for x in (observation, following, reward, discount, self.weight, random)]
        numbers, choice = (
            (NOTHING, action.view(-1).numpy()) if choices else (action.view(-1).numpy(), off_policy_acting.NO_CHOICE)
        )
        targets = Batches(flat[0], flat[1], numbers, *flat[2:])
        self.arguments = Minibatches(
            steps=np.uint64(steps),
            rows=np.uint64(config.batch_size),
            blocks=np.uint64(blocks),
            seed=np.uint64(rng.word(algorithm.seed)),
            n_steps=np.uint64(config.n_steps),
            gamma=np.float32(config.gamma),
            draws=np.uint64(noises),
            noises=np.uint64(noises > 0),
            noise=np.float32(1),
            clip=np.float32(np.inf),
            normalizer=NO_NORMALIZER,
            center=NOTHING,
            half_range=NOTHING,
            start=np.int64(0),
            targets=targets,
            scratch=np.zeros(max(1, noises) * int(BLOCK), np.float32),
            in_blocks=np.uint64(0),
            choice=choice,
        )
        # the first two minibatches, as losses are given them
        self.first, self.second = (self._rows(g) for g in (0, min(1, steps - 1)))
        self._fill(algorithm)

    def _rows(self, g: int) -> Rows:
        return {name: column[g, : self.shape[1]] for name, column in self.columns.items()}

    def _fill(self, algorithm: OffPolicy[Any]) -> None:
        """Write a minibatch of the replay buffer, for programs to be compared on."""
        replay, (_, rows) = algorithm.replay, self.shape
        assert replay is not None
        random = torch.rand(1, rows, replay.draws, generator=torch.Generator().manual_seed(0))
        batch: Batch = replay.sample(random, algorithm.config.gamma)
        found = batch._asdict() | {"weight": compiled_objectives.mean_weights(batch.weight)}
        if "random" in self.columns:
            found["random"] = torch.rand(1, rows, algorithm.num_draws(), generator=torch.Generator().manual_seed(1))
        for name, column in self.columns.items():
            column[:1, :rows] = found[name]


class CompiledLearningCall:
    """Gradient steps along an algorithm's losses on minibatches that the compiled loop draws: see
    replay_loop.AnyLearningCall."""

    def __init__(
        self,
        algorithm: OffPolicy[Any],
        minibatches: _Minibatches,
        programs: list[Program],
        columns: list[Rows],
    ) -> None:
        self._minibatches, (self.steps, rows) = minibatches, minibatches.shape
        objectives, _ = algorithm.objectives()
        self._columns, config = columns, algorithm.config
        room = minibatches.weight.shape[1]
        given = zip(programs, objectives, columns, strict=True)
        self._parts = [Part(*part, self.steps, rows, room) for part in given]
        learner = ObjectiveLearner(self._parts, self.steps, rows)
        names = [(part, name) for part in self._parts for name in part.metrics]
        measured = torch.zeros(self.steps, len(names))
        for column, (part, name) in enumerate(names):
            part.found[part.metrics[name]] = measured[:, column]
        self.names = {name: part.every for part, name in names}
        self._threads, self.sums = learner.threads(), np.zeros(len(names) + 1)
        call = learner.call
        words, state = np.tile(call.slots, (WORKERS, 1)), call.arguments[1]
        words[:, 0] = range(WORKERS)
        assert isinstance(state, np.ndarray)
        state[0] = -1  # closed: worker threads of the loop look at it between learning calls
        every = [part.every for part in self._parts]
        interval = getattr(config, "target_interval", 1)
        follow = next(
            (part.tau.numpy() for part, own in zip(self._parts, objectives, strict=True) if own.targets), NOTHING
        )
        follow = follow if interval > 1 else NOTHING
        errors = next((part.errors for part in self._parts if part.errors is not None), None)
        self.learning = Learning(
            entry=np.uint64(call.function.address),
            slots=np.uint64(len(call.slots)),
            words=words.reshape(-1),
            floats=words.reshape(-1).view(np.float64),
            state=state,
            since=np.uint64(learner.since),
            delay=np.int64(np.lcm.reduce(every)),
            counts=np.empty(0, np.uint64),
            follow=follow,
            tau=np.float32(getattr(config, "tau", 1.0)),
            interval=np.int64(interval),
            metrics=measured.view(-1).numpy(),
            value=NOTHING,
            error=NOTHING if errors is None else errors.view(-1).numpy(),
            sums=self.sums,
        )
        self._learner, self.batch = learner, minibatches.arguments
        self.drawn = self.steps * rows

    def threads(self, calls: int = 1) -> int:
        """See AnyLearningCall."""
        return self._threads

    def begin(self, algorithm: OffPolicy[Any]) -> None:
        """See AnyLearningCall."""
        objectives, networks = algorithm.objectives()
        given = self._minibatches.first, self._minibatches.second
        arguments = arguments_of(networks, given, self._columns, algorithm.config)
        parts = zip(self._parts, objectives, arguments, strict=True)
        self._kept = [part.begin(objective, own, self._threads) for part, objective, own in parts]
        self.sums[:] = 0

    def end(self, algorithm: OffPolicy[Any], first: int) -> tuple[dict[str, Tensor], int]:
        """See AnyLearningCall."""
        taken, (objectives, _) = int(self.sums[-1]), algorithm.objectives()
        for part, objective in zip(self._parts, objectives, strict=True):
            part.end(objective, 0)
        if not taken:
            return {}, 0
        counts = {name: delayed_steps(first, taken, every) for name, every in self.names.items()}
        return means_of_sums(torch.from_numpy(self.sums.astype(np.float32)), counts), taken


LEFT_OUT = ("append_and_learn", "batch_rows", "add_metrics")  # methods that the compiled loop does not call


def _can_be_called(algorithm: OffPolicy[Any], number: int) -> bool:
    """Whether the compiled loop can do what the algorithm's methods do for learning."""
    kind = type(algorithm)
    if any(getattr(kind, name) is not getattr(OffPolicy, name) for name in LEFT_OUT):
        return False
    if vars(algorithm).keys() & {"learn", *LEFT_OUT} or not kind.learn.__module__.startswith("headrace.algorithms."):
        return False
    return size_of(algorithm.reduce) == 1 and draws(algorithm, number) and kind.objectives is not OffPolicy.objectives


def _call(algorithm: OffPolicy[Any], steps: int) -> CompiledLearningCall | None:
    """The learning call of an algorithm as it is now; None where its losses are not compiled, or have to be computed
    one gradient step at a time."""
    objectives, networks = algorithm.objectives()
    if compiled_objectives.why_not(objectives, algorithm.config.batch_size) is not None:
        return None
    minibatches = _memory.get(lambda: _Minibatches(algorithm, steps), algorithm, algorithm.replay, steps)
    found = programs_of(objectives, networks, minibatches.first, algorithm.config)
    if isinstance(found, str):
        return None
    programs, columns = found
    depends_on = (*programs, *compiled_objectives.buffers_of(objectives), algorithm.replay, steps)
    call = _calls.get(
        lambda: CompiledLearningCall(algorithm, minibatches, programs, columns), algorithm, minibatches, *depends_on
    )
    if isinstance(algorithm.replay, PrioritizedReplay) and not len(call.learning.error):
        return None  # no loss has the errors that priorities follow: the plain function says so
    return call


_memory: Bound[_Minibatches] = Bound()
_calls: Bound[CompiledLearningCall] = Bound()
_learning: Bound[Loop] = Bound()
_loops: Bound[Loop] = Bound()


def serves(algorithm: OffPolicy[Any], number: int) -> bool:
    """Whether minibatches of this algorithm's replay buffer are drawn and learned by programs of its losses."""
    return _can_be_called(algorithm, number) and _call(algorithm, number) is not None


@register("off_policy.learn_from_replay", serves, DIGESTS["off_policy.learn_from_replay"], CLASSES, first=False)
@torch.no_grad()
def learn(algorithm: OffPolicy[Any], number: int) -> dict[str, Tensor]:
    """headrace.algorithms.off_policy.learn_from_replay: the same rows, and results within rounding."""
    call = _calls.last(algorithm)
    return _learning.get(lambda: Loop(algorithm, call), algorithm, call).learn(algorithm)


def serves_steps(collector: LearningCollector, random: Tensor) -> bool:
    """Whether the compiled loop does all but, perhaps, acting and the environments' steps."""
    algorithm = collector.algorithm
    if not collects(collector, random):
        return False
    return kernel_of(learn_from_replay, algorithm, algorithm.gradient_steps(algorithm.rows_per_iteration)) is learn


@register("off_policy.steps", serves_steps, DIGESTS["off_policy.steps"], STEPS_CLASSES, first=False)
@torch.no_grad()
def collect(collector: LearningCollector, random: Tensor) -> None:
    """headrace.parallel.learning_collector.steps: the same rows, and results within rounding."""
    algorithm, rollout, step = collector.algorithm, collector.rollout, compiled_step(collector)
    policy, call = algorithm.policy, _calls.last(algorithm)
    kernel = _kernel_acts(policy, collector)
    actor = off_policy_acting.actor_of(policy) if kernel else None  # type: ignore[arg-type]
    acts = None if kernel else _acts_of(collector)

    def make() -> Loop:
        return Loop(algorithm, call, actor, rollout, collector.every, step, acts)

    _loops.get(make, collector, call, actor, rollout, step, acts).collect(collector, random)


class _Plainly:
    """Acts by the collector, as it is written."""

    act = staticmethod(LearningCollector.act)

    def begin(self, collector: LearningCollector, random: Tensor) -> None:
        """Nothing is to be done."""

    def end(self, collector: LearningCollector) -> None:
        """Nothing is to be done."""


_plainly = _Plainly()


def _acts_of(collector: LearningCollector) -> Acts:
    """A program of the policy's act() where there is one, else the collector itself."""
    program = program_of(collector)
    if program is None or isinstance(program, str):
        return _plainly
    return rows_of(program, collector) or _plainly


def _kernel_acts(policy: Any, collector: LearningCollector) -> bool:
    """Whether the kernel of Headrace's own policies acts for this one."""
    if kind_of(policy) not in (ActorQ, QNetwork) or type(collector).act is not LearningCollector.act:
        return False
    known = off_policy_acting.known(policy) and not off_policy_acting.actor_of(policy).copies
    return known and len(policy.exploration) in (1, collector.env.num_envs)
