"""The learning calls of SAC, TQC, TD3 and DDPG by the CPU's kernel: hundreds of gradient steps in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.config_bases import EntropyConfig, OffPolicyConfig
from headrace.algorithms.ddpg import DDPGConfig
from headrace.algorithms.off_policy import Networks, delayed_steps, means_of_sums
from headrace.algorithms.reduce import Reduce, one_learner, size_of
from headrace.algorithms.sac import METRICS, SACConfig
from headrace.algorithms.td3 import TD3Config
from headrace.algorithms.tqc import TQCConfig
from headrace.bindings.arguments import MISFIT, batches_fit, fits
from headrace.bindings.bound import Bound
from headrace.bindings.bound import place as start_of
from headrace.bindings.digests import DIGESTS
from headrace.bindings.eligibility import (
    SEVERAL_LEARNERS,
    verdict,
    why_not_adam,
    why_not_copies,
    why_not_temperature,
)
from headrace.bindings.off_policy_acting import layers_of, parts_of
from headrace.bindings.replay_batches import WORTH_HELP, blocks_of, count, lay_blocks
from headrace.bindings.replay_batches import weights as weights_of
from headrace.core.device import kernel_threads
from headrace.core.fused import AsChosen, register
from headrace.data.replay import Batch
from headrace.kernels.nn.activation_table import IDENTITY
from headrace.kernels.nn.layout import BLOCK, WORKERS, Layer, aligned
from headrace.kernels.nn.stepwise_layout import gradient_scratch_size, stepwise_table, weight_chunks
from headrace.kernels.off_policy import off_policy_arguments as slots
from headrace.kernels.off_policy.off_policy_arguments import Batches, OffPolicyArguments, Settings, Weights
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Call
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state
from headrace.policies.actor_q import ActorQ
from headrace.policies.critics import Critics
from headrace.policies.distributions import box_muller
from headrace.policies.examination import last_examined
from headrace.policies.networks import MLP, Readout

ANNOUNCEMENT = "compiling the learning call (once, about 15 s) ..."


class Learner:
    """Learns from `steps` batches of `rows`; shape: (steps, rows). temperature: the optimizer of SAC's or TQC's."""

    def __init__(self, networks: Networks, shape: tuple[int, int], temperature: Adam | None) -> None:
        policy, _, actor, critics, slow_actor, slow_critics = networks
        steps, rows = shape
        self.blocks = count(rows)
        features, actions, block = policy.encoder.size, policy.action_size, int(BLOCK)
        quantiles = policy.critics.weights[-1].shape[2]
        layers, _ = layers_of(parts_of(policy), policy.activation, actor.flat)
        own, place, actor_words = stepwise_table(layers, 0, (features + actions) * block, 0, self.blocks)
        tables, words = [], 0
        for c in range(policy.critics.number):
            layers = critic_layers(policy, c, critics.flat)
            inputs, place = place, place + (features + actions) * block
            table, place, words = stepwise_table(layers, inputs, place, words, self.blocks)
            tables.append(table)
        self.given = blocks_of(steps, self.blocks, features, actions)
        self.numbers = np.zeros(16, np.float32)
        self.numbers[int(slots.ACTOR_EPS)], self.numbers[int(slots.CRITICS_EPS)] = actor.eps, critics.eps
        tiled = actor_words + words > 0
        numbers = (not policy.deterministic, tiled, self.blocks, features, actions, quantiles, place)
        sizes = (np.uint64(x) for x in numbers)
        fields: Any = (
            *sizes,
            *(own, np.stack(tables), weight_chunks([own]), weight_chunks(tables)),
            *(weights_of(actor, slow_actor, actor_words), weights_of(critics, slow_critics, words)),
            Batches(*(x.view(-1).numpy() for x in self.given)),
            aligned(self.blocks, place + (2 * actions + 1 + quantiles * len(tables)) * block),
            aligned(WORKERS, gradient_scratch_size([own, *tables])),
            *(np.zeros(((len(tables) + 1) * self.blocks, 16), np.float32), self.numbers, np.zeros(8, np.int64)),
        )
        self.metrics = torch.zeros(steps, slots.METRICS)
        third = Weights(*np.zeros((6, 1), np.float32)) if temperature is None else weights_of(temperature)
        arguments = (0, queue_state(), OffPolicyArguments(*fields), Settings(), third, self.metrics.view(-1).numpy())
        self.call = Call(entry("off_policy.off_policy_actor_critic", "learn", arguments, ANNOUNCEMENT), arguments)
        self.place, self.work_queue = self.call.slot(3), WorkQueue()
        self.operations = 6 * steps * rows * (len(critics.flat) + len(actor.flat))

    def learn(self, policy: ActorQ, batches: Batch, normal: Tensor, settings: Settings) -> Tensor:
        """Metrics [G, METRICS]. normal: [G, R, K], R twice the batch, or once."""
        lay_blocks(self.given, policy, batches, normal)
        self.call.put(self.place, settings)
        self.work_queue.run(self.call, self.threads())
        return self.metrics

    def threads(self, calls: int = 1) -> int:
        """The number of cores where so many calls one after another are worth waking other threads, else 1."""
        return min(kernel_threads(), WORKERS, 2 * self.blocks) if self.operations * calls > WORTH_HELP else 1


def critic_layers(policy: ActorQ, c: int, flat: Tensor) -> list[Layer]:
    """The layers of critic c, whose parameters are views of `flat`; the last one has no activation."""
    pairs, layers = list(zip(policy.critics.weights, policy.critics.biases, strict=True)), []
    for number, (weight, bias) in enumerate(pairs, 1):
        activation = policy.activation if number < len(pairs) else IDENTITY
        (inputs, outputs), offsets = weight[c].shape, (start_of(weight[c], flat), start_of(bias[c], flat))
        layers.append(Layer(number - 2, inputs, outputs, *offsets, activation, transposed=True))
    return layers


_learners: Bound[Learner] = Bound()
CLASSES = (ActorQ, Critics, MLP, Readout, Adam)  # whose methods this was written after


def kept_of(*optimizers: Adam) -> tuple[object, ...]:
    """What a Learner keeps of its optimizers: where their parameters lie, and their epsilons."""
    return tuple(part for optimizer in optimizers for part in (optimizer.flat, optimizer.eps))


def _learner(networks: Networks, batches: Batch, temperature: Adam | None = None) -> Learner:
    shape = (batches.reward.shape[0], batches.reward.shape[1])
    kept = kept_of(networks.actor_optimizer, networks.critic_optimizer)
    others = (networks.target_critics, shape, temperature and temperature.flat)
    depends_on = (last_examined(networks.policy), *kept, *others)
    return _learners.get(lambda: Learner(networks, shape, temperature), networks.policy, *depends_on)


def serves(networks: Networks, *call: Adam | Batch | Tensor | int | OffPolicyConfig | Reduce) -> bool | str:
    """Whether the kernel knows these networks and their optimizers; else the reason."""
    policy, optimizers = networks.policy, [x for x in call if isinstance(x, Adam)]
    if any(size_of(x) > 1 for x in call[-1:] if callable(x)):
        return SEVERAL_LEARNERS
    known = knows(networks, *optimizers)
    if known is not True:
        return known
    batches, random = next(x for x in call if isinstance(x, Batch)), [x for x in call if isinstance(x, Tensor)]
    draws = policy.num_draws * (1 + len(optimizers))  # SAC and TQC, which have a third: for the current actions too
    fitting = batches_fit(batches, torch.float32, policy.action_size)
    return (fitting and all(fits(x, torch.float32, *batches.reward.shape, draws) for x in random)) or MISFIT


def knows(networks: Networks, *others: Adam) -> bool | str:
    """Whether the kernel computes gradients of these networks; else the reason. others: a temperature's optimizer."""
    policy, own = networks.policy, (networks.actor_optimizer, networks.critic_optimizer)
    if networks.actor_optimizer.flat.device.type != "cpu":
        return False
    if reason := verdict(policy).learning:
        return reason
    if policy.atoms is not None:
        return AsChosen("atoms are learned by programs that are made of their loss")
    if len(policy.actor.norms):
        return AsChosen("it is written for an actor without layer normalisation")
    if reason := next(filter(None, (*map(why_not_adam, own), *map(why_not_temperature, others))), None):
        return reason
    if any(optimizer.flat.dtype != torch.float32 for optimizer in (*own, *others)):
        return "it is written for parameters in float32"
    return why_not_copies(networks) or True


def normals(policy: ActorQ, random: Tensor) -> Tensor:
    """Normal draws [G, 2 B, K] from uniform ones [G, B, 2 D]: for the next actions, then for the current ones."""
    steps, rows, draws = random.shape
    uniform = random.view(steps, rows, 2, draws // 2).transpose(1, 2).reshape(-1, draws // 2)
    return box_muller(uniform.t(), policy.action_size).t().reshape(steps, 2 * rows, -1)


def target_smoothing(policy: ActorQ, random: Tensor, config: TD3Config) -> Tensor:
    """Clipped noise [G, B, K] on the target's actions, from uniform draws [G, B, num_draws]."""
    steps, rows, draws = random.shape
    normal = box_muller(random.reshape(-1, draws).t(), policy.action_size).t().reshape(steps, rows, -1)
    return normal.mul(config.target_noise).clamp_(-config.target_noise_clip, config.target_noise_clip)


def delay_of(config: OffPolicyConfig) -> int:
    """Gradient steps of the critics for one of the actor."""
    return getattr(config, "policy_delay", 1)


def entropic_settings(
    policy: ActorQ, optimizers: tuple[Adam, Adam, Adam], config: EntropyConfig, delay: int, since: int, tau: float
) -> Settings:
    """Of the next call of SAC, TQC or CrossQ. optimizers: of actor, critics and temperature."""
    actor, critics, temperature = optimizers
    counts, rates = (float(x.steps) for x in optimizers), (float(x.learning_rate) for x in optimizers)
    entropy = -policy.action_size if config.target_entropy is None else config.target_entropy
    kept = 0
    if isinstance(config, TQCConfig):
        kept = policy.critics.number * (policy.critics.weights[-1].shape[2] - config.dropped_quantiles)
    of_temperature = (float(entropy), int(config.learn_temperature), float(temperature.eps))
    numbers: Any = (*counts, *rates, *of_temperature, 0, kept, float(actor.beta1), float(critics.beta1))
    return Settings(delay, since, tau, *numbers)


def sac_settings(networks: Networks, temperature_optimizer: Adam, config: SACConfig | TQCConfig) -> Settings:
    """Of SAC's or TQC's next call."""
    optimizers = (networks.actor_optimizer, networks.critic_optimizer, temperature_optimizer)
    return entropic_settings(networks.policy, optimizers, config, 1, 0, float(config.tau))


def td_settings(networks: Networks, since: int, config: TD3Config | DDPGConfig) -> Settings:
    """Of TD3's or DDPG's next call. since: gradient steps since the actor's last."""
    actor, critics = networks.actor_optimizer, networks.critic_optimizer
    counts = (float(actor.steps), float(critics.steps), 0.0)
    rates = (float(actor.learning_rate), float(critics.learning_rate), 0.0)
    invert = int(config.invert_gradients)
    return Settings(delay_of(config), since, float(config.tau), *counts, *rates, invert_gradients=invert)


def _learn_entropic(
    networks: Networks, temperature: Adam, batches: Batch, random: Tensor, config: SACConfig | TQCConfig
) -> dict[str, Tensor]:
    """SAC's or TQC's gradient steps."""
    policy, _, actor, critics, *_ = networks
    learner, steps = _learner(networks, batches, temperature), len(random)
    settings = sac_settings(networks, temperature, config)
    found = learner.learn(policy, batches, normals(policy, random), settings)
    actor.steps += steps
    critics.steps += steps
    temperature.steps += steps if config.learn_temperature else 0
    return dict(zip(METRICS, found.mean(0), strict=True))


@register("sac.learn", serves, DIGESTS["sac.learn"], CLASSES)
@torch.no_grad()
def sac_learn(
    networks: Networks,
    temperature_optimizer: Adam,
    batches: Batch,
    random: Tensor,
    config: SACConfig,
    reduce: Reduce = one_learner,
) -> dict[str, Tensor]:
    """headrace.algorithms.sac.learn, with the same results within rounding."""
    return _learn_entropic(networks, temperature_optimizer, batches, random, config)


@register("tqc.learn", serves, DIGESTS["tqc.learn"], CLASSES)
@torch.no_grad()
def tqc_learn(
    networks: Networks,
    temperature_optimizer: Adam,
    batches: Batch,
    random: Tensor,
    config: TQCConfig,
    reduce: Reduce = one_learner,
) -> dict[str, Tensor]:
    """headrace.algorithms.tqc.learn, with the same results within rounding."""
    return _learn_entropic(networks, temperature_optimizer, batches, random, config)


def _follow(
    networks: Networks, batches: Batch, random: Tensor, since: int, config: TD3Config | DDPGConfig
) -> dict[str, Tensor]:
    policy, _, actor, critics, *_ = networks
    learner = _learner(networks, batches)
    found = learner.learn(policy, batches, random, td_settings(networks, since, config))
    steps, actor_steps = len(found), delayed_steps(since, len(found), delay_of(config))
    critics.steps += steps
    actor.steps += actor_steps
    return means_of_sums(found.sum(0), {"actor_loss": actor_steps, "critic_loss": steps})


@register("td3.learn", serves, DIGESTS["td3.learn"], CLASSES)
@torch.no_grad()
def td3_learn(
    networks: Networks,
    batches: Batch,
    random: Tensor,
    since: int,
    config: TD3Config,
    reduce: Reduce = one_learner,
) -> dict[str, Tensor]:
    """headrace.algorithms.td3.learn, with the same results within rounding."""
    smoothing = target_smoothing(networks.policy, random, config)
    return _follow(networks, batches, smoothing, since, config)


@register("ddpg.learn", serves, DIGESTS["ddpg.learn"], CLASSES)
@torch.no_grad()
def ddpg_learn(
    networks: Networks, batches: Batch, config: DDPGConfig, reduce: Reduce = one_learner
) -> dict[str, Tensor]:
    """headrace.algorithms.ddpg.learn, with the same results within rounding."""
    silence = torch.zeros(*batches.reward.shape, networks.policy.action_size)
    return _follow(networks, batches, silence, 0, config)
