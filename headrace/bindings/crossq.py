"""The learning call of CrossQ by the CPU's kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.config_bases import OffPolicyConfig
from headrace.algorithms.crossq import CrossQConfig
from headrace.algorithms.off_policy import delayed_steps, means_of_sums
from headrace.bindings.arguments import MISFIT, batches_fit, fits
from headrace.bindings.bound import Bound, place
from headrace.bindings.digests import DIGESTS
from headrace.bindings.eligibility import verdict, why_not_adam, why_not_temperature
from headrace.bindings.replay_batches import WORTH_HELP, blocks_of, count, lay_blocks, weights
from headrace.bindings.sac_tqc_td3_ddpg import critic_layers, entropic_settings, kept_of, normals
from headrace.core.device import kernel_threads
from headrace.core.fused import register
from headrace.data.replay import Batch
from headrace.kernels.nn.activation_table import IDENTITY
from headrace.kernels.nn.layout import BLOCK, WORKERS, Layer, aligned
from headrace.kernels.nn.stepwise_layout import gradient_scratch_size, stepwise_table, weight_chunks
from headrace.kernels.off_policy import off_policy_arguments as slots
from headrace.kernels.off_policy.batch_renorm_layout import Renorm, insert_norms
from headrace.kernels.off_policy.crossq_arguments import CrossQArguments, Nets
from headrace.kernels.off_policy.off_policy_arguments import Batches, Settings
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Call
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state
from headrace.policies.actor_q import ActorQ
from headrace.policies.critics import Critics, RenormCritics
from headrace.policies.examination import last_examined
from headrace.policies.networks import MLP, Dense, Readout, RenormMLP
from headrace.policies.normalization import BatchRenorm, BatchRenormFunction

ANNOUNCEMENT = "compiling CrossQ's learning call (once, about 15 s) ..."


class Norms:
    """The norms of one network, or of several side by side, and their moments in the kernel's layout."""

    def __init__(self, modules: Sequence[BatchRenorm]) -> None:
        self.modules = modules
        widths = [2 * module.mean.numel() for module in modules]
        self.moments, self.batches = torch.zeros(sum(widths)), torch.zeros(len(modules))
        self.limits = np.zeros((len(modules), 5), np.float32)
        self.offsets = [sum(widths[:k]) for k in range(len(widths))]
        self.parts = [part.view(2, -1) for part in self.moments.split(widths)]

    def renorm(self) -> Renorm:
        """What the kernel reads and writes."""
        found = np.zeros(2 * len(self.moments), np.float32)
        return Renorm(self.moments.numpy(), found, self.batches.numpy(), self.limits)

    def take(self) -> None:
        """Take over the modules' moments and settings."""
        for part, batches, limits, module in zip(self.parts, self.batches, self.limits, self.modules, strict=True):
            part[0], part[1] = module.mean.view(-1), module.std.view(-1)
            batches.copy_(module.batches)
            limits[:] = module.eps, 1 - module.keep, module.r_max, module.d_max, module.warm_up

    def give(self) -> None:
        """Hand the moments back."""
        for part, batches, module in zip(self.parts, self.batches, self.modules, strict=True):
            module.mean.view(-1).copy_(part[0])
            module.std.view(-1).copy_(part[1])
            module.batches.copy_(batches)


class Learner:
    """Learns from `steps` batches of `rows`; shape: (steps, rows)."""

    def __init__(self, policy: ActorQ, optimizers: dict[str, Adam], shape: tuple[int, int]) -> None:
        steps, rows = shape
        self.blocks, block = count(rows), int(BLOCK)
        features, actions, number = policy.encoder.size, policy.action_size, policy.critics.number
        self.norms = {"actor": Norms(policy.actor.norms), "critics": Norms(policy.critics.norms)}  # type: ignore[arg-type]
        self.given = blocks_of(steps, self.blocks, features, actions)
        self.metrics = torch.zeros(steps, slots.METRICS)
        self.numbers = np.zeros(16, np.float32)
        actor, critics = optimizers["actor"], optimizers["critics"]
        self.numbers[int(slots.ACTOR_EPS)], self.numbers[int(slots.CRITICS_EPS)] = actor.eps, critics.eps
        end = (features + actions) * block  # of the inputs, in a block's scratch
        layers = [_actor_layers(policy, actor.flat)]
        actors, end = _nets(layers, actor, self.norms["actor"], end, self.blocks, 1.0)
        layers = [critic_layers(policy, c, critics.flat) for c in range(number)]
        pair, end = _nets(layers, critics, self.norms["critics"], end, 2 * self.blocks, 0.5)
        weight_row = end + (2 * actions + 1 + number) * block
        sizes = (np.uint64(x) for x in (1, 1, self.blocks, features, actions, end, weight_row))
        fields: Any = (
            *(*sizes, actors.layers[0], pair.layers, actors, pair),
            Batches(*(x.view(-1).numpy() for x in self.given)),
            aligned(2 * self.blocks, weight_row + block),
            aligned(WORKERS, gradient_scratch_size([*actors.layers, *pair.layers])),
            *(np.zeros(((number + 1) * self.blocks, 16), np.float32), self.numbers, np.zeros(8, np.int64)),
        )
        metrics, third = self.metrics.view(-1).numpy(), weights(optimizers["temperature"])
        arguments = (0, queue_state(), CrossQArguments(*fields), Settings(), third, metrics)
        self.call = Call(entry("off_policy.crossq", "learn", arguments, ANNOUNCEMENT), arguments)
        self.place, self.work_queue = self.call.slot(3), WorkQueue()
        self.operations = 12 * steps * rows * len(critics.flat)

    def learn(self, policy: ActorQ, batches: Batch, normal: Tensor, settings: Settings) -> Tensor:
        """Metrics [G, METRICS]. normal: [G, 2 B, K]."""
        lay_blocks(self.given, policy, batches, normal)
        for norms in self.norms.values():
            norms.take()
        self.call.put(self.place, settings)
        threads = min(kernel_threads(), WORKERS) if self.operations > WORTH_HELP else 1
        self.work_queue.run(self.call, threads)
        for norms in self.norms.values():
            norms.give()
        return self.metrics


def _nets(
    networks: list[list[Layer]], optimizer: Adam, norms: Norms, offset: int, blocks: int, factor: float
) -> tuple[Nets, int]:
    """Networks of one shape, and where what they need in a block's scratch ends."""
    tables, norm_tables = [], []
    for c, layers in enumerate(networks):
        table, offset, _ = stepwise_table(layers, 0, offset)
        starts = [
            (_start(norm.weight, c, len(networks), optimizer), _start(norm.bias, c, len(networks), optimizer))
            for norm in norms.modules
        ]
        norm_table, offset = insert_norms(table, offset, starts, norms.offsets, c, len(networks))
        tables.append(table)
        norm_tables.append(norm_table)
    gradient = np.zeros(optimizer.flat.numel(), np.float32)
    buffers = (weight_chunks(tables), weights(optimizer), norms.renorm(), gradient)
    return Nets(np.stack(tables), np.stack(norm_tables), *buffers, np.uint64(blocks), np.float32(factor)), offset


def _start(parameter: Tensor, c: int, number: int, optimizer: Adam) -> int:
    """Where network c's part of a parameter that several share begins in the optimizer's buffer."""
    return place(parameter.view(number, -1)[c], optimizer.flat)


def _actor_layers(policy: ActorQ, flat: Tensor) -> list[Layer]:
    """The actor's layers, whose parameters are views of `flat`; the last one has no activation."""
    found: list[Layer] = []
    for part in (*policy.actor.layers, policy.actor_out):
        assert isinstance(part, Dense)
        outputs, inputs = part.weight.shape
        activation = IDENTITY if part is policy.actor_out else policy.activation
        offsets = place(part.weight, flat), place(part.bias, flat)
        found.append(Layer(len(found) - 1, inputs, outputs, *offsets, activation))
    return found


_learners: Bound[Learner] = Bound()
# whose methods this was written after
CLASSES = (ActorQ, RenormCritics, Critics, RenormMLP, MLP, BatchRenorm, BatchRenormFunction, Readout, Adam)


def serves(
    policy: ActorQ, optimizers: dict[str, Adam], batches: Batch, random: Tensor, *_: int | OffPolicyConfig
) -> bool | str:
    """Whether the kernel knows these networks and their optimizers; else the reason."""
    if random.device.type != "cpu":
        return False
    if reason := verdict(policy).learning:
        return reason
    if type(policy.actor) is not RenormMLP or type(policy.critics) is not RenormCritics:
        return "it is written for networks with batch renormalisation"
    for name, optimizer in optimizers.items():
        temperature = name == "temperature"
        reason = why_not_temperature(optimizer) if temperature else why_not_adam(optimizer, any_beta1=True)
        if reason:
            return reason
    if any(optimizer.flat.dtype != torch.float32 for optimizer in optimizers.values()):
        return "it is written for parameters in float32"
    fitting = batches_fit(batches, torch.float32, policy.action_size)
    return (fitting and fits(random, torch.float32, *batches.reward.shape, 2 * policy.num_draws)) or MISFIT


@register("crossq.learn", serves, DIGESTS["crossq.learn"], CLASSES)
@torch.no_grad()
def learn(
    policy: ActorQ,
    optimizers: dict[str, Adam],
    batches: Batch,
    random: Tensor,
    since: int,
    config: CrossQConfig,
) -> dict[str, Tensor]:
    """headrace.algorithms.crossq.learn, with the same results within rounding."""
    actor, critics, temperature = (optimizers[name] for name in ("actor", "critics", "temperature"))
    shape = (batches.reward.shape[0], batches.reward.shape[1])
    depends_on = (last_examined(policy), *kept_of(actor, critics), temperature.flat, shape)
    learner = _learners.get(lambda: Learner(policy, optimizers, shape), policy, *depends_on)
    taken = delayed_steps(since, shape[0], config.policy_delay)
    settings = entropic_settings(policy, (actor, critics, temperature), config, config.policy_delay, since, 0.0)
    found = learner.learn(policy, batches, normals(policy, random), settings)
    critics.steps += shape[0]
    actor.steps += taken
    temperature.steps += taken if config.learn_temperature else 0
    counts = {"actor_loss": taken, "critic_loss": shape[0], "ent_coef": shape[0], "ent_coef_loss": taken}
    return means_of_sums(found.sum(0), counts)
