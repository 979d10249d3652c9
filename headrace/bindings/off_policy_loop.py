"""The compiled loop of off-policy algorithms: acting, environments, the replay buffer and learning in one call.

Where environments are not compiled they are stepped in Python, between a call that acts and one that appends and
learns; where a rollout is collected whole, the call draws and learns alone.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.ddpg import DDPG
from headrace.algorithms.dqn import DQN
from headrace.algorithms.off_policy import Networks, OffPolicy, learn_from_replay, means_of_sums
from headrace.algorithms.reduce import size_of
from headrace.algorithms.sac import METRICS, SAC
from headrace.algorithms.td3 import TD3
from headrace.algorithms.tqc import TQC
from headrace.bindings import dqn, sac_tqc_td3_ddpg
from headrace.bindings import off_policy_acting as acting
from headrace.bindings.actor_critic_layout import normalizer_of
from headrace.bindings.bound import Bound
from headrace.bindings.digests import DIGESTS
from headrace.bindings.replay_batches import count
from headrace.bindings.sac_tqc_td3_ddpg import delay_of
from headrace.core.fused import kernel_of, register
from headrace.core.rng import word
from headrace.core.timer import Timer
from headrace.data.priorities import PrioritizedReplay
from headrace.data.replay import Replay
from headrace.data.rollout import Rollout
from headrace.envs.compiled.env import CompiledEnv
from headrace.kernels.nn.layout import BLOCK, WORKERS
from headrace.kernels.off_policy import dqn_arguments
from headrace.kernels.off_policy import off_policy_run_arguments as slots
from headrace.kernels.off_policy.off_policy_arguments import Batches, Settings
from headrace.kernels.off_policy.off_policy_run_arguments import (
    ACT,
    APPEND,
    LEARN,
    STEP,
    Columns,
    Learning,
    Minibatches,
    Priorities,
    Ring,
    Steps,
)
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Call, argument_slots
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state
from headrace.kernels.targets.cpu.env import CpuEnvs
from headrace.kernels.targets.cpu.state_layout import flat
from headrace.parallel.collector import InlineCollector
from headrace.parallel.learning_collector import LearningCollector
from headrace.policies.actor_q import ActorQ
from headrace.policies.critics import Critics
from headrace.policies.examination import last_examined
from headrace.policies.networks import VectorEncoder

Learner: TypeAlias = sac_tqc_td3_ddpg.Learner | dqn.Learner
NOTHING = np.empty(0, np.float32)
ENTROPIC = (SAC, TQC)  # that learn a temperature


class LearningCall:
    """G gradient steps of an algorithm on minibatches that the compiled loop draws."""

    def __init__(self, algorithm: OffPolicy[Any], steps: int) -> None:
        config, shape = algorithm.config, (steps, algorithm.config.batch_size)
        self.learner: Learner = _make(algorithm, shape)
        call = self.learner.call
        self.words = np.tile(call.slots, (WORKERS, 1))
        self.words[:, 0] = range(WORKERS)
        self.optimizers = _optimizers(algorithm)
        self.names = METRICS if isinstance(algorithm, ENTROPIC) else _NAMES[type(self.learner)]
        self.sums = np.zeros(slots.METRICS + 1)
        state = call.arguments[1]
        assert isinstance(state, np.ndarray)
        state[0] = -1  # closed: worker threads of the loop look at it between learning calls
        self.steps, self.batch = steps, _minibatches(algorithm, self.learner, shape)
        learner, words = self.learner, self.words.reshape(-1)
        shared = (
            np.uint64(call.function.address),
            np.uint64(len(call.slots)),
            words,
            words.view(np.float64),
            state,
        )
        if isinstance(learner, dqn.Learner):
            counts = np.array([learner.place], np.uint64)
            value, error = (x.view(-1).numpy() for x in learner.found)
            follow = (learner.follow.numpy(), np.float32(config.tau), np.int64(config.target_interval))
            rest: Any = (np.uint64(0), np.int64(1), counts, *follow, NOTHING, value, error)
        else:
            place = learner.place
            counts = np.array([place + _COUNTS[name] for name in self.optimizers], np.uint64)
            delay = np.int64(delay_of(config))
            metrics = learner.metrics.view(-1).numpy()
            no_follow = (NOTHING, np.float32(0), np.int64(1))
            rest = (np.uint64(place + _SINCE), delay, counts, *no_follow, metrics, NOTHING, NOTHING)
        fields: Any = (*shared, *rest, self.sums)
        self.learning = Learning(*fields)

    def begin(self, algorithm: OffPolicy[Any]) -> None:
        """Write the settings of the next gradient steps."""
        new = argument_slots(_settings(algorithm))
        self.words[0, self.learner.place : self.learner.place + len(new)] = new
        self.sums[:] = 0

    def end(self, algorithm: OffPolicy[Any], first: int) -> tuple[dict[str, Tensor], int]:
        """Note the gradient steps since begin(), of which `first` is the number of the first.

        Returns the means of their metrics, and how many steps they were."""
        taken = int(self.sums[-1])
        if not taken:
            return {}, 0
        floats = self.words[0].view(np.float64)
        for place, optimizer in zip(self.learning.counts.tolist(), self.optimizers.values(), strict=True):
            optimizer.steps.fill_(float(floats[place]))
        counts = {name: algorithm.measurements(name, first, taken) for name in self.names}
        return means_of_sums(torch.from_numpy(self.sums.astype(np.float32)), counts), taken


_SINCE, _COUNTS = 1, {"actor": 3, "critics": 4, "temperature": 5}  # fields of Settings
_NAMES: dict[type, tuple[str, ...]] = {sac_tqc_td3_ddpg.Learner: METRICS[:2], dqn.Learner: ("loss", "q_value")}


def _learns(algorithm: OffPolicy[Any]) -> bool:
    """Whether this is an algorithm whose learning call is compiled, on vectors."""
    policy = algorithm.policy
    if type(policy.encoder) is not VectorEncoder or "learn" in vars(algorithm):  # type: ignore[attr-defined]
        return False
    if size_of(algorithm.reduce) > 1:  # each gradient step needs the sums of the others
        return False
    if type(algorithm) is DQN:
        return dqn.knows(algorithm.networks) is True
    if type(algorithm) not in (SAC, TQC, TD3, DDPG):
        return False
    others = [algorithm.temperature] if isinstance(algorithm, ENTROPIC) else []
    return sac_tqc_td3_ddpg.knows(algorithm.networks, *others) is True  # type: ignore[attr-defined]


def _depends_on(algorithm: OffPolicy[Any]) -> tuple[object, ...]:
    """What a LearningCall is stale without, besides the policy as it is."""
    return (*sac_tqc_td3_ddpg.kept_of(*algorithm.optimizers.values()), *algorithm.buffers.values(), algorithm.config)


def _optimizers(algorithm: OffPolicy[Any]) -> dict[str, Adam]:
    """Those that take steps, in the order of Learning.counts."""
    learned = not isinstance(algorithm, ENTROPIC) or algorithm.config.learn_temperature
    return {name: x for name, x in algorithm.optimizers.items() if learned or name != "temperature"}


def _make(algorithm: Any, shape: tuple[int, int]) -> Learner:
    networks = algorithm.networks
    if isinstance(algorithm, DQN):
        slow, optimizer = networks.target_flat, networks.optimizer
        return dqn.Learner(networks.policy, slow, optimizer, shape, algorithm.config.double)
    temperature = algorithm.temperature if isinstance(algorithm, ENTROPIC) else None
    return sac_tqc_td3_ddpg.Learner(networks, shape, temperature)


def _settings(algorithm: Any) -> Settings | dqn_arguments.Settings:
    networks, config = algorithm.networks, algorithm.config
    if isinstance(algorithm, DQN):
        return dqn.settings_of(networks.optimizer, config)
    if isinstance(algorithm, ENTROPIC):
        return sac_tqc_td3_ddpg.sac_settings(networks, algorithm.temperature, config)
    return sac_tqc_td3_ddpg.td_settings(networks, 0, config)


def _minibatches(algorithm: Any, learner: Learner, shape: tuple[int, int]) -> Minibatches:
    policy, config, (steps, rows) = algorithm.policy, algorithm.config, shape
    given: Any = [x.view(-1).numpy() for x in learner.given]
    center, half_range, start, noise, clip, noises = NOTHING, NOTHING, 0, 1.0, np.inf, 0
    if isinstance(algorithm, DQN):
        given, start = [*given, NOTHING], policy.start
    else:
        center, half_range = policy.center.numpy(), policy.half_range.numpy()
        noises = algorithm.num_draws() // policy.num_draws
    if isinstance(algorithm, TD3):
        noise, clip = config.target_noise, config.target_noise_clip
    draws = policy.num_draws if noises else 0
    fields: Any = (
        *map(np.uint64, (steps, rows, count(rows), word(algorithm.seed), config.n_steps)),
        *(np.float32(config.gamma), np.uint64(draws), np.uint64(noises), np.float32(noise), np.float32(clip)),
        *(normalizer_of(policy), center, half_range, np.int64(start), Batches(*given)),
        np.zeros(max(1, draws * noises) * int(BLOCK), np.float32),
    )
    return Minibatches(*fields)


ANNOUNCEMENT = "compiling the off-policy loop (once, about 8 s) ..."
CLASSES = (OffPolicy, SAC, TQC, TD3, DDPG, DQN, Replay, PrioritizedReplay, Networks, Adam, Critics, *acting.CLASSES)
_NO_WORDS = np.zeros(1, np.uint64)
FLAGS = ("valid", "terminated", "truncated")


class Loop:
    """The compiled loop of one algorithm, its replay buffer and (or None, to learn alone) one rollout.

    steps: gradient steps of a learning call, after every `every` environment steps. step: the environments', if
    compiled."""

    def __init__(
        self, algorithm: OffPolicy[Any], steps: int, rollout: Rollout | None = None, every: int = 1, step: Any = None
    ) -> None:
        replay, policy = algorithm.replay, algorithm.policy
        assert replay is not None
        self.learning = LearningCall(algorithm, steps)
        actor = acting.actor_of(policy)  # type: ignore[arg-type]
        self.span, self.spent = np.zeros(4, np.int64), np.zeros(slots.PARTS, np.uint64)
        source: Any = replay.ring[:1] if rollout is None else rollout
        self.random = np.zeros((source.num_steps, policy.num_draws, source.num_envs), np.float32)
        address, words = (0, _NO_WORDS) if step is None else (step.function.address, step.slots)
        if step is not None:
            words[-3:-1] = 0, source.num_envs
        ring = _ring(replay, steps * algorithm.config.batch_size)
        arguments = (
            *(0, queue_state(), actor.arguments),
            *(_columns(source), ring, self.learning.batch, self.learning.learning),
            Steps(
                *(self.span, np.int64(every), np.uint64(policy.num_draws), self.random.reshape(-1)),
                *(np.uint64(address), words, actor.scratch()[0], self.spent),
            ),
        )
        self.call = Call(entry("off_policy.off_policy_run", "run_steps", arguments, ANNOUNCEMENT), arguments)
        self.every, self.num_steps = every, source.num_steps
        self.work_queue, self.compiled, self.in_python = WorkQueue(), step is not None, 0.0  # s in environments

    def run(self, first: int, last: int, flags: int, threads: int = 1) -> None:
        """Do what the flags say for steps first .. last - 1. threads: for the learning calls among them."""
        span = self.span
        span[0], span[1], span[2] = first, last, flags  # a slice takes longer
        self.work_queue.run(self.call, threads)

    def learn(self, algorithm: OffPolicy[Any]) -> dict[str, Tensor]:
        """The gradient steps of one learning call, and their metrics."""
        self.span[slots.UPDATES] = algorithm.updates
        self.learning.begin(algorithm)
        self.run(self.every - 1, self.every, LEARN, self.learning.learner.threads())
        return self.learning.end(algorithm, algorithm.updates)[0]

    def collect(self, collector: LearningCollector, random: Tensor) -> None:
        """All steps of a rollout."""
        algorithm, every = collector.algorithm, self.every
        self.random[: len(random)] = random.transpose(1, 2).numpy()
        self.span[slots.UPDATES] = updates = algorithm.updates
        self.spent[:], self.in_python = 0, 0.0
        self.learning.begin(algorithm)
        began, first = perf_counter(), 0
        try:
            while first < len(random):
                count = len(random) - first if algorithm.steady() else every
                self._steps(collector, first, first + count, LEARN if algorithm.past_warm_up() else 0)
                algorithm.explore()
                first += count
        finally:  # an environment's exception ends the rollout
            metrics, taken = self.learning.end(algorithm, updates)
            if taken:
                algorithm.add_metrics(metrics, updates, taken)
        self._note_times(collector.timer, perf_counter() - began)

    def _steps(self, collector: LearningCollector, first: int, last: int, learn: int) -> None:
        every, algorithm, learner = self.every, collector.algorithm, self.learning.learner
        if self.compiled:
            calls = last // every - first // every
            self.run(first, last, ACT | STEP | APPEND | learn, learner.threads(calls) if learn else 1)
            algorithm.iteration += calls
            return
        env, rollout = collector.env, collector.rollout
        threads = learner.threads() if learn else 1  # once for all steps: it asks the system
        for t in range(first, last):
            self.run(t, t + 1, ACT)
            began = perf_counter()
            env.step(rollout, t)
            self.in_python += perf_counter() - began
            ends = (t + 1) % every == 0
            self.run(t, t + 1, APPEND | learn, threads if ends else 1)
            algorithm.iteration += ends

    def _note_times(self, timer: Timer, seconds: float) -> None:
        """Divide the seconds of a rollout among its parts, by the processor's ticks."""
        ticks = self.spent.tolist()
        shares = [part / sum(ticks) for part in ticks] if any(ticks) else [0.0, 0.0, 1.0]  # it may have no counter
        inference, env, learn = ((seconds - self.in_python) * share for share in shares)
        for part, spent in (("inference", inference), ("env", env + self.in_python), ("learning", learn)):
            timer.add(part, spent)


def _columns(rollout: Rollout) -> Columns:
    action, nothing = rollout.action, (acting.NO_NUMBER, acting.NO_CHOICE)
    number, choice = (flat(action), nothing[1]) if action.dim() == 3 else (nothing[0], flat(action))
    flags = {name: flat(getattr(rollout, name)) for name in FLAGS}
    planes = np.uint64(rollout.observation.stride(2)), np.uint64(action.stride(2) if action.dim() == 3 else 0)
    others = (flat(rollout.reward), flags["terminated"], flags["truncated"])
    return Columns(flat(rollout.observation), flags["valid"], number, choice, *others, *planes)


def _ring(replay: Replay, drawn: int) -> Ring:
    ring, size = replay.ring, 1 if replay.ring.action.dim() == 2 else replay.ring.action.shape[2]
    columns = _columns(ring)
    numbers = (replay.length, replay.num_envs, ring.observation.shape[2], size)
    fields: Any = (*columns[:-2], replay.written.numpy(), *map(np.uint64, numbers), _priorities(replay, drawn))
    return Ring(*fields)


def _priorities(replay: Replay, drawn: int) -> Priorities:
    """drawn: rows of a learning call's minibatches."""
    if not isinstance(replay, PrioritizedReplay):
        nothing = (np.zeros(1), 0.0, NOTHING, np.zeros(1), np.zeros(1, np.int64), np.zeros(1))
        return Priorities(np.uint64(0), np.uint64(0), *nothing)
    numbers = (replay.beta.view(1).numpy(), replay.highest.view(1).numpy())
    memory = (np.zeros(drawn, np.int64), np.zeros(drawn))
    sizes = (np.uint64(replay.depth), np.uint64(replay.num_steps))
    return Priorities(*sizes, replay.tree.numpy(), float(replay.alpha), *numbers, *memory)


_learning: Bound[Loop] = Bound()
_loops: Bound[Loop] = Bound()


def serves(algorithm: OffPolicy[Any], number: int) -> bool:
    """Whether minibatches of this algorithm and its replay buffer are drawn and learned by the kernel."""
    replay = algorithm.replay
    if not (type(replay) is Replay or (type(replay) is PrioritizedReplay and isinstance(algorithm, DQN))):
        return False  # of other algorithms' errors no priorities follow
    if replay.ring.device.type != "cpu" or not replay.alike:
        return False
    ring, policy = replay.ring, algorithm.policy
    if not isinstance(ring.observation, Tensor) or ring.observation.dtype != torch.float32 or number < 1:
        return False
    numbers = torch.float32 if isinstance(policy, ActorQ) else torch.int32
    if ring.observation.dim() != 3 or ring.action.dtype != numbers:
        return False
    # an optimizer has moved the parameters into one buffer
    return _learns(algorithm) and acting.known(policy) and not acting.actor_of(policy).copies  # type: ignore[arg-type]


@register("off_policy.learn_from_replay", serves, DIGESTS["off_policy.learn_from_replay"], CLASSES)
@torch.no_grad()
def learn(algorithm: OffPolicy[Any], number: int) -> dict[str, Tensor]:
    """headrace.algorithms.off_policy.learn_from_replay: the same rows, and results within rounding."""
    assert algorithm.replay is not None
    depends_on = (last_examined(algorithm.policy), *_depends_on(algorithm), algorithm.replay, number)
    return _learning.get(lambda: Loop(algorithm, number), algorithm, *depends_on).learn(algorithm)


def serves_steps(collector: LearningCollector, random: Tensor) -> bool:
    """Whether the kernel does all but, perhaps, the environments' steps."""
    rollout, algorithm, env = collector.rollout, collector.algorithm, collector.env
    if rollout.env is not None or rollout.device.type != "cpu" or random.dtype != torch.float32:
        return False
    steps = algorithm.gradient_steps(algorithm.rows_per_iteration)
    if kernel_of(learn_from_replay, algorithm, steps) is not learn or not _side_by_side(rollout):
        return False
    exploration = getattr(algorithm.policy, "exploration", None)
    return isinstance(exploration, Tensor) and len(exploration) in (1, env.num_envs)


def _side_by_side(rollout: Rollout) -> bool:
    """Whether entry (t, n) of every column lies at t * N + n."""
    scalars = [rollout.reward, *(getattr(rollout, name) for name in FLAGS)]
    vectors = [x[:, :, 0] for x in (rollout.observation, rollout.action) if x.dim() == 3]
    if rollout.observation.dim() != 3 or rollout.action.dim() not in (2, 3):
        return False
    return all(x.is_contiguous() for x in (*scalars, *vectors))


_STEPS_CLASSES = (*CLASSES, InlineCollector, LearningCollector)


@register("off_policy.steps", serves_steps, DIGESTS["off_policy.steps"], _STEPS_CLASSES)
@torch.no_grad()
def collect(collector: LearningCollector, random: Tensor) -> None:
    """headrace.parallel.learning_collector.steps: the same rows, and results within rounding."""
    algorithm, rollout, env = collector.algorithm, collector.rollout, collector.env
    step = None
    if type(env) is CompiledEnv and isinstance(env.target, CpuEnvs) and env.step == env.target.step:
        step = env.target.bound(rollout) if env.num_agents == 1 and not env.ir.frames else None
    number = algorithm.gradient_steps(algorithm.rows_per_iteration)
    depends_on = (last_examined(algorithm.policy), *_depends_on(algorithm), algorithm.replay, rollout, step)

    def make() -> Loop:
        return Loop(algorithm, number, rollout, collector.every, step)

    _loops.get(make, collector, *depends_on, number).collect(collector, random)
