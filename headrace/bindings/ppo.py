"""PPO's learning call by the CPU's kernels. The plain one is headrace.algorithms.ppo.learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.on_policy import Targets, normalized
from headrace.algorithms.ppo import METRICS, PPOConfig
from headrace.algorithms.reduce import Reduce, number_of_minibatches, one_learner, size_of
from headrace.bindings.actor_critic_layout import CLASSES, Encoded, compiled, encoded
from headrace.bindings.arguments import MISFIT, fits
from headrace.bindings.bound import Bound
from headrace.bindings.digests import DIGESTS
from headrace.bindings.eligibility import why_not_learn
from headrace.core.device import kernel_threads
from headrace.core.fused import register
from headrace.data.rollout import Rollout, flatten
from headrace.kernels.learning.ppo_arguments import (
    ADDED_BY_OTHERS,
    DONE,
    PART,
    PARTS,
    STEPS,
    SUMS,
    TASK,
    Columns,
    Loss,
    PPOArguments,
)
from headrace.kernels.nn.layout import DISCRETE, WORKERS, aligned, rounded
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Argument, Call
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import Policy
from headrace.policies.examination import last_examined
from headrace.policies.heads import GaussianHead

WORTH_HELP = 1e8  # floating-point operations below which waking another thread costs more than it saves
NO_CHOICE, NO_NUMBER = np.empty(0, np.int32), np.empty(0, np.float32)
ANNOUNCEMENT = "compiling PPO's learning call (once, about 4 s) ..."


class _Learner:
    """Learns for one policy, as long as its parameters lie where they lay."""

    def __init__(self, policy: ActorCritic, optimizer: Adam) -> None:
        self.tables = compiled(policy, optimizer.flat)
        flat = (optimizer.flat, optimizer.mean, optimizer.square)
        self.arrays = (
            *(*(x.numpy() for x in flat), aligned(optimizer.flat.numel())),
            aligned(WORKERS, rounded(self.tables.scratch)),
            aligned(PARTS, self.tables.network.gradient),
            aligned(PARTS * len(self.tables.subnetworks), SUMS),
            aligned(8),
        )
        self.flat = torch.from_numpy(self.arrays[3])
        self.batch = np.zeros(8, np.int64)
        self.work_queue = WorkQueue()
        self.bound: tuple[Any, ...] = ()  # what the buffers and the call were made for

    def learn(
        self,
        policy: ActorCritic,
        optimizer: Adam,
        rollout: Rollout,
        targets: Targets,
        order: Tensor,
        number: int,
        config: PPOConfig,
        reduce: Reduce,
    ) -> Tensor:
        """Sums over each of `number` minibatches an epoch, float32 [minibatches, SUMS]."""
        seen = encoded(policy, flatten(rollout.observation[: rollout.num_steps]))
        memory, stride, (center, scale, limit) = seen
        places = (x.ctypes.data for x in (memory, center, scale))
        several = size_of(reduce) > 1
        bound = (*places, float(limit), len(memory), stride, *rollout.reward.shape, *order.shape, number, several)
        if self.bound != bound:
            self._bind(policy, seen, rollout.reward.numel(), order, number, several, config)
            self.bound = bound
        self._take(rollout, targets, config, reduce)
        self.order.copy_(order)
        self.batch[:] = 0
        self.call.put(self.loss_place, self._loss(policy, config))
        self.call.put(self.settings_place, self._settings(optimizer, config))
        threads = self._threads(order.numel(), order.shape[1] // number)
        if several:
            self._weigh(targets.valid, number, reduce)
        self.work_queue.run(self.call, threads)
        while several and self.batch[TASK] == ADDED_BY_OTHERS:
            reduce(self.flat, self.sums[self.batch[DONE] - 1])
            self.work_queue.run(self.call, threads)
        optimizer.steps += int(self.batch[STEPS])
        return self.sums[: self.batch[DONE]]

    def _weigh(self, valid: Tensor, number: int, reduce: Reduce) -> None:
        """The weight of a row in each minibatch, from the number of valid rows that it has at all learners."""
        size = self.order.shape[1] // number
        rows = flatten(valid)[self.order[:, : size * number]].view(-1, size).sum(1, dtype=torch.float32)
        reduce(rows)
        torch.div(1, rows.clamp(min=1), out=self.weights)

    def _bind(
        self,
        policy: ActorCritic,
        seen: Encoded,
        rows: int,
        order: Tensor,
        number: int,
        several: bool,
        config: PPOConfig,
    ) -> None:
        """Make buffers for the columns and minibatches of a rollout, and the calls that work on them."""
        tables = self.tables
        rest = torch.zeros(len(Columns._fields) - 3, rows)
        observation, stride, normalizer = seen
        action = np.zeros((len(tables.start), rows), np.float32)
        columns = Columns(observation, np.uint64(stride), action, *rest.numpy())
        self.order = torch.zeros(order.shape, dtype=torch.int64)
        self.weights = torch.zeros(len(order) * number if several else 0)
        self.sums = torch.zeros(len(order) * number, SUMS)
        kernel_arguments = PPOArguments(
            *(tables.network.layers, tables.subnetworks, tables.ranges, tables.head, tables.offsets),
            *(self._loss(policy, config), normalizer),
            columns,
            *(self.order.numpy(), *self.arrays, self.batch, self.weights.numpy()),
        )
        arguments = (0, queue_state(), kernel_arguments, number, (0.0,) * 5, self.sums.view(-1).numpy())
        self.call = Call(entry("learning.ppo", "learn", arguments, ANNOUNCEMENT), arguments)
        self.loss_place, self.settings_place = self.call.slot(2, PPOArguments._fields.index("loss")), self.call.slot(4)

        discrete = int(tables.head.kind) == DISCRETE
        taken = np.zeros(action.size, np.int32 if discrete else np.float32)
        chosen = (taken, NO_NUMBER) if discrete else (NO_CHOICE, taken)
        kinds = (np.float32, np.float32, np.bool_, np.float32, np.float32)
        collected = (np.zeros(rows, kind) for kind in kinds)  # each call points to a rollout's own
        raw: tuple[Argument, ...] = ((*chosen, np.uint64(rows)), tables.start[:, 0].numpy(), *collected, 0, columns)
        announcement = "compiling PPO's columns (once, about 1 s) ..."
        self.taking = Call(entry("learning.ppo_rows", "take", raw, announcement), raw)
        self.given_places = [self.taking.slot(0, 0 if discrete else 1), *(self.taking.slot(n) for n in range(2, 7))]

    def _take(self, rollout: Rollout, targets: Targets, config: PPOConfig, reduce: Reduce) -> None:
        """Copy the columns of a rollout and its targets to where the call reads them."""
        normalize = config.normalize_advantage
        if normalize and size_of(reduce) > 1:  # by the moments of all learners
            targets = targets._replace(advantage=normalized(targets.advantage, targets.valid, reduce))
            normalize = False
        action = flatten(rollout.action).reshape(rollout.reward.numel(), -1).t()
        given = (action, rollout.log_prob, rollout.value[: rollout.num_steps], targets.valid, *targets[:2])
        columns = [column.contiguous() for column in given]
        for slot, column in zip(self.given_places, columns, strict=True):
            self.taking.point(slot, column.data_ptr())
        self.taking.put(self.taking.slot(7), int(normalize))
        self.taking()

    def _threads(self, samples: int, size: int) -> int:
        """As many as there are cores, and parts in a minibatch of this size; one for little work."""
        if 6 * len(self.arrays[0]) * samples < WORTH_HELP:
            return 1
        parts = min(PARTS, -(-size // PART)) * len(self.tables.subnetworks)
        return min(kernel_threads(), WORKERS, parts)

    def _loss(self, policy: ActorCritic, config: PPOConfig) -> Loss:
        normalizer = policy.return_normalizer
        units = (0.0, 1.0) if normalizer is None else (normalizer.center.item(), normalizer.scale.item())
        coefficients = (config.clip, config.value_clip, config.value_coef, config.entropy_coef)
        return Loss(*map(np.float32, (*coefficients, *units)))

    def _settings(self, optimizer: Adam, config: PPOConfig) -> tuple[float, ...]:
        at = (float(optimizer.steps), float(optimizer.learning_rate))
        return (*at, float(optimizer.eps), float(config.max_grad_norm), float(config.target_kl))


_learners: Bound[_Learner] = Bound()


def _fit(policy: ActorCritic, rollout: Rollout, targets: Targets, order: Tensor) -> bool:
    """Whether the columns of a rollout are what the kernel reads, and the order has rows of it alone."""
    shape, rows = rollout.reward.shape, rollout.reward.numel()
    number, kind = (1, torch.float32) if isinstance(policy.head, GaussianHead) else (0, torch.int32)
    floats = (rollout.log_prob, rollout.value[: rollout.num_steps], targets.advantage, targets.returns)
    components = policy.head.num_parameters if number else len(getattr(policy.head, "sizes", (0,)))
    fitting = all(fits(x, torch.float32, *shape) for x in floats) and fits(targets.valid, torch.bool, *shape)
    action = rollout.action.dtype == kind and rollout.action.numel() == rows * components
    ordered = order.dim() == 2 and fits(order, torch.int64, len(order), rows) and order.numel() > 0
    if not (fitting and action and ordered):
        return False
    lowest, highest = order.aminmax()
    return int(lowest) >= 0 and int(highest) < rows


def serves(
    policy: Policy,
    optimizer: Adam,
    rollout: Rollout,
    targets: Targets,
    order: Tensor,
    config: PPOConfig,
    reduce: Reduce = one_learner,
) -> bool | str:
    """Whether the kernel knows this policy and optimizer; else the reason."""
    if rollout.device.type != "cpu":
        return False
    if type(optimizer) is not Adam:
        return f"{type(optimizer).__name__} is not the Adam it was written for"
    if reason := why_not_learn(policy, optimizer):
        return reason
    return _fit(policy, rollout, targets, order) or MISFIT  # type: ignore[arg-type]


@register("ppo.learn", serves, DIGESTS["ppo.learn"], (*CLASSES, Adam))
@torch.no_grad()
def learn(
    policy: ActorCritic,
    optimizer: Adam,
    rollout: Rollout,
    targets: Targets,
    permutation: Tensor,
    config: PPOConfig,
    reduce: Reduce = one_learner,
) -> dict[str, Tensor]:
    """headrace.algorithms.ppo.learn, with the same results within rounding."""
    depends_on = (last_examined(policy), optimizer.flat, optimizer.mean, optimizer.square)
    learner = _learners.get(lambda: _Learner(policy, optimizer), policy, *depends_on)
    number = number_of_minibatches(permutation.shape[1], config.minibatch_size, 1, reduce)
    sums = learner.learn(policy, optimizer, rollout, targets, permutation, number, config, reduce)
    return _metrics(sums, number, config)


def _metrics(sums: Tensor, number: int, config: PPOConfig) -> dict[str, Tensor]:
    """As the plain function's, from sums over each minibatch."""
    of_minibatches = sums.numpy()
    policy_loss, value_loss, entropy, _, clip_fraction = (np.add.reduce(of_minibatches) / len(sums))[:5].tolist()
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    kl = float(np.add.reduce(of_minibatches[-number:, 3]) / len(of_minibatches[-number:]))
    means = torch.tensor((policy_loss, value_loss, -entropy, loss, clip_fraction, kl)).unbind()
    return dict(zip((*METRICS, "clip_fraction", "approx_kl"), means, strict=True))
