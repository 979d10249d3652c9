"""The compiled loop of off-policy algorithms: acting, environments, the replay buffer and learning in one call.

Where environments are not compiled they are stepped in Python, between a call that acts and one that appends and
learns; where a rollout is collected whole, the call draws and learns alone.
"""

from __future__ import annotations

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
from headrace.bindings.replay_loop import NOTHING, Loop, collects, compiled_step, draws
from headrace.bindings.sac_tqc_td3_ddpg import delay_of
from headrace.core.fused import kernel_of, register
from headrace.core.rng import word
from headrace.data.priorities import PrioritizedReplay
from headrace.data.replay import Replay
from headrace.kernels.nn.layout import BLOCK, WORKERS
from headrace.kernels.off_policy import dqn_arguments
from headrace.kernels.off_policy import off_policy_run_arguments as slots
from headrace.kernels.off_policy.off_policy_arguments import Batches, Settings
from headrace.kernels.off_policy.off_policy_run_arguments import (
    Learning,
    Minibatches,
)
from headrace.kernels.runtime.native import argument_slots
from headrace.parallel.collector import InlineCollector
from headrace.parallel.learning_collector import LearningCollector
from headrace.policies.actor_q import ActorQ
from headrace.policies.critics import Critics
from headrace.policies.examination import last_examined
from headrace.policies.networks import VectorEncoder
from headrace.policies.q_network import QNetwork

Learner: TypeAlias = sac_tqc_td3_ddpg.Learner | dqn.Learner
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
        self.threads, self.drawn = learner.threads, steps * algorithm.config.batch_size

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
        *(np.zeros(max(1, draws * noises) * int(BLOCK), np.float32), np.uint64(1), acting.NO_CHOICE),
    )
    return Minibatches(*fields)


CLASSES = (OffPolicy, SAC, TQC, TD3, DDPG, DQN, Replay, PrioritizedReplay, Networks, Adam, Critics, *acting.CLASSES)
_learning: Bound[Loop] = Bound()
_loops: Bound[Loop] = Bound()


def serves(algorithm: OffPolicy[Any], number: int) -> bool:
    """Whether minibatches of this algorithm and its replay buffer are drawn and learned by the kernel."""
    policy = algorithm.policy
    if not draws(algorithm, number) or not isinstance(policy, ActorQ | QNetwork):
        return False
    if isinstance(algorithm.replay, PrioritizedReplay) and not isinstance(algorithm, DQN):
        return False  # of the errors of others no priorities follow
    # an optimizer has moved the parameters into one buffer
    return _learns(algorithm) and acting.known(policy) and not acting.actor_of(policy).copies


@register("off_policy.learn_from_replay", serves, DIGESTS["off_policy.learn_from_replay"], CLASSES)
@torch.no_grad()
def learn(algorithm: OffPolicy[Any], number: int) -> dict[str, Tensor]:
    """headrace.algorithms.off_policy.learn_from_replay: the same rows, and results within rounding."""
    assert algorithm.replay is not None
    depends_on = (last_examined(algorithm.policy), *_depends_on(algorithm), algorithm.replay, number)

    made = _learning.get(lambda: Loop(algorithm, LearningCall(algorithm, number)), algorithm, *depends_on)
    return made.learn(algorithm)


def serves_steps(collector: LearningCollector, random: Tensor) -> bool:
    """Whether the kernel does all but, perhaps, the environments' steps."""
    algorithm = collector.algorithm
    if not collects(collector, random):
        return False
    steps = algorithm.gradient_steps(algorithm.rows_per_iteration)
    if kernel_of(learn_from_replay, algorithm, steps) is not learn:
        return False
    exploration = getattr(algorithm.policy, "exploration", None)
    return isinstance(exploration, Tensor) and len(exploration) in (1, collector.env.num_envs)


STEPS_CLASSES = (*CLASSES, InlineCollector, LearningCollector)


@register("off_policy.steps", serves_steps, DIGESTS["off_policy.steps"], STEPS_CLASSES)
@torch.no_grad()
def collect(collector: LearningCollector, random: Tensor) -> None:
    """headrace.parallel.learning_collector.steps: the same rows, and results within rounding."""
    algorithm, rollout = collector.algorithm, collector.rollout
    step, number = compiled_step(collector), algorithm.gradient_steps(algorithm.rows_per_iteration)
    depends_on = (last_examined(algorithm.policy), *_depends_on(algorithm), algorithm.replay, rollout, step)

    def make() -> Loop:
        actor = acting.actor_of(algorithm.policy)  # type: ignore[arg-type]
        return Loop(algorithm, LearningCall(algorithm, number), actor, rollout, collector.every, step)

    _loops.get(make, collector, *depends_on, number).collect(collector, random)
