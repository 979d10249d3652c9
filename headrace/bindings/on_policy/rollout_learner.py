"""Learning from rollouts by the CPU's kernel (headrace.kernels.learning.rollouts): buffers, columns and threads.

What is learned is a Loss and the tables of a network; ppo.py, policy_gradient.py, pqn.py and trpo.py have them.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.on_policy import Targets, normalized
from headrace.algorithms.reduce import Reduce, size_of
from headrace.bindings.actor_critic_layout import Compiled, Encoded, encoded_rows, laid_out
from headrace.bindings.arguments import MISFIT, fits
from headrace.bindings.bound import Bound
from headrace.bindings.eligibility import why_not_adam, why_not_learn
from headrace.core.device import Device, kernel_threads
from headrace.data.rollout import Rollout, flatten
from headrace.kernels.learning.rollouts_arguments import (
    ADDED_BY_OTHERS,
    DONE,
    PART,
    PARTS,
    SHUFFLE_WORDS,
    STEPS,
    SUMS,
    TASK,
    Collected,
    Columns,
    Loss,
    RolloutArguments,
)
from headrace.kernels.nn.layout import CHOICES, WORKERS, aligned, rounded
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Call
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.examination import last_examined
from headrace.policies.heads import BernoulliHead, GaussianHead
from headrace.policies.networks import VectorEncoder
from headrace.policies.q_network import QNetwork

WORTH_HELP = 1e8  # floating-point operations below which waking another thread costs more than it saves
NO_CHOICE, NO_NUMBER, NO_MOMENTS = np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.float32)
ANNOUNCEMENT = "compiling the learning call for rollouts (once, about 4 s) ..."

Learned: TypeAlias = ActorCritic | QNetwork

NO_STEP = (0.0,) * 6  # settings of a call that computes a gradient alone
_SETTINGS = Struct(f"{len(NO_STEP)}d")  # as they lie among the slots


class Objective(NamedTuple):
    """What a call learns. settings: see kernels.learning.rollouts.learn(). normalize: advantages to mean 0 and
    variance 1."""

    loss: Loss
    settings: tuple[float, ...]
    normalize: bool = False


class RolloutLearner:
    """Learns for one policy, as long as its parameters lie where they lay.

    flat: the parameters. moments: Adam's; none where gradients alone are computed.
    """

    def __init__(self, tables: Compiled, flat: Tensor, moments: tuple[Tensor, ...] = ()) -> None:
        self.tables = tables
        self.arrays = (
            *(flat.numpy(), *(x.numpy() for x in moments or (torch.empty(0),) * 2), aligned(flat.numel())),
            aligned(WORKERS, rounded(tables.scratch)),
            aligned(PARTS, tables.network.gradient),
            aligned(PARTS * len(tables.subnetworks), SUMS),
            aligned(16),
        )
        self.flat = torch.from_numpy(self.arrays[3])
        self.batch = np.zeros(8, np.int64)
        self.work_queue = WorkQueue()
        self.seen: tuple[Any, Tensor] = (None, self.flat)  # the column of observations of the last call, and its rows
        self.collected: dict[str, Tensor] = {}  # what the call reads, kept until the next ones
        self.bound: tuple[Any, ...] = ()  # what the buffers and the call were made for
        self.loss: Loss  # of the last call

    def learn(
        self,
        policy: Learned,
        rollout: Rollout,
        targets: Targets,
        order: Tensor,
        number: int,
        objective: Objective,
        optimizer: Adam,
        reduce: Reduce,
    ) -> Tensor:
        """Steps on each of `number` minibatches an epoch; sums over each of them, float32 [minibatches, SUMS]."""
        several = size_of(reduce) > 1
        threads = self._begin(policy, rollout, targets, order, number, objective, reduce, several)
        if several:
            self._weigh(targets.valid, number, reduce)
        self.work_queue.run(self.call, threads)
        while several and self.batch[TASK] == ADDED_BY_OTHERS:
            reduce(self.flat, self.sums[self.batch[DONE] - 1])
            self.work_queue.run(self.call, threads)
        optimizer.steps += self.steps
        return self.sums[: self.batch[DONE]]

    @property
    def steps(self) -> int:
        """Of the optimizer, that the last call has taken."""
        return int(self.batch[STEPS])

    def gradient(
        self, policy: Learned, rollout: Rollout, targets: Targets, objective: Objective, reduce: Reduce
    ) -> Tensor:
        """This learner's part of the gradient over all rows, in `flat`, and of the sums, float32 [SUMS]."""
        count = targets.valid.sum()
        reduce(count)
        if objective.normalize:  # in torch for one process too: an actor's gradient then has the same bits
            targets = targets._replace(advantage=normalized(targets.advantage, targets.valid, reduce))
            objective = objective._replace(normalize=False)
        order = torch.arange(rollout.reward.numel()).unsqueeze(0)
        threads = self._begin(policy, rollout, targets, order, 1, objective, reduce, several=True)
        self.weights[0] = 1 / max(float(count), 1.0)
        self.work_queue.run(self.call, threads)
        return self.sums[0]

    def _begin(
        self,
        policy: Learned,
        rollout: Rollout,
        targets: Targets,
        order: Tensor,
        number: int,
        objective: Objective,
        reduce: Reduce,
        several: bool,
    ) -> int:
        """Fill in the arguments of a call; returns the number of threads that it is worth.

        several: the call returns between a minibatch's gradient and its step."""
        seen = self._rows_of(policy, rollout)
        bound = (seen.data_ptr(), *seen.shape, seen.stride(0), *order.shape, number, several)
        if self.bound != bound:
            self._bind(laid_out(policy, seen), (len(order), order.shape[1]), number, several, objective.loss)
            self.bound = bound
        self._take(rollout, targets, objective.normalize, reduce)
        self.order = order.contiguous()
        self.call.point(self.places["order"], self.order.data_ptr())
        self._begin_call(objective.loss, objective.settings)
        return self.threads(order.numel(), order.shape[1] // number)

    def _begin_call(self, loss: Loss, settings: tuple[float, ...]) -> None:
        self.batch[:] = 0
        if loss != self.loss:
            self.call.put(self.loss_place, loss)
            self.loss = loss
        _SETTINGS.pack_into(self.settings, 0, *settings)

    def follow(self, policy: ActorCritic, rollout: Rollout, epochs: int, number: int, loss: Loss) -> None:
        """From now on update() learns from this rollout, each time as it has been collected by then."""
        seen = laid_out(policy, self._rows_of(policy, rollout))
        self._bind(seen, (epochs, rollout.reward.numel()), number, False, loss)
        names = ("log_prob", "value", "valid", "reward", "terminated", "truncated")
        columns = self._actions(rollout) | {name: getattr(rollout, name) for name in names}
        self.read(columns, estimate=1, envs=rollout.num_envs)

    def update(self, loss: Loss, settings: tuple[float, ...], counter: int, threads: int) -> list[list[float]]:
        """Advantages, returns, the order of rows, and steps on all minibatches of the rollout that follow() was given;
        RolloutArguments.summary."""
        self._begin_call(loss, settings)
        self.call.slots[self.places["counter"]] = counter
        self.work_queue.run(self.call, threads)
        return self.summary.tolist()

    def _rows_of(self, policy: Learned, rollout: Rollout) -> Tensor:
        """encoded_rows() of a rollout's observations, in the same memory as before where that is possible."""
        known, rows = self.seen
        if (
            rollout.observation is known
            and type(policy.encoder) is VectorEncoder
            and rows.data_ptr() == known.data_ptr()
        ):
            return rows
        found = encoded_rows(policy, flatten(rollout.observation[: rollout.num_steps]))
        if type(policy.encoder) is not VectorEncoder:
            found = rows.copy_(found) if rows.shape == found.shape else found.clone()
        self.seen = rollout.observation, found
        return found

    def _weigh(self, valid: Tensor, number: int, reduce: Reduce) -> None:
        """The weight of a row in each minibatch, from the number of valid rows that it has at all learners."""
        size = self.order.shape[1] // number
        rows = flatten(valid)[self.order[:, : size * number]].view(-1, size).sum(1, dtype=torch.float32)
        reduce(rows)
        torch.div(1, rows.clamp(min=1), out=self.weights)

    def _bind(self, seen: Encoded, shape: tuple[int, int], number: int, several: bool, loss: Loss) -> None:
        """Make buffers for the columns and minibatches of a rollout, and the call that works on them. shape: epochs and
        rows."""
        tables, (epochs, rows) = self.tables, shape
        rest = torch.zeros(len(Columns._fields) - 3, rows)
        self.returns = rest[3]
        observation, stride, normalizer = seen
        action = np.zeros((len(tables.start), rows), np.float32)
        columns = Columns(observation, np.uint64(stride), action, *rest.numpy())
        self.weights = torch.zeros(epochs * number if several else 0)
        self.sums, self.summary = torch.zeros(epochs * number, SUMS), np.zeros((3, SUMS), np.float32)
        kernel_arguments = RolloutArguments(
            *(tables.network.layers, tables.subnetworks, tables.ranges, tables.head, tables.offsets),
            *(loss, normalizer),
            columns,
            *(np.zeros(shape, np.int32), *self.arrays, self.batch, self.weights.numpy(), self.summary),
        )
        collected = _nothing_collected(tables)
        arguments = (0, queue_state(), kernel_arguments, collected, number, NO_STEP, self.sums.view(-1).numpy())
        self.call = Call(entry("learning.rollouts", "learn", arguments, ANNOUNCEMENT), arguments)
        self.loss = loss
        self.loss_place, place = self.call.slot(2, RolloutArguments._fields.index("loss")), self.call.slot(5)
        self.settings = self.call.slots[place : place + len(NO_STEP)].data.cast("B")
        self.places = dict(zip(Collected._fields, self.call.parts(3), strict=True))

    def _take(self, rollout: Rollout, targets: Targets, normalize: bool, reduce: Reduce) -> None:
        """Point the call to the columns of a rollout and its targets."""
        if normalize and size_of(reduce) > 1:  # by the moments of all learners
            targets = targets._replace(advantage=normalized(targets.advantage, targets.valid, reduce))
            normalize = False
        # of an algorithm that does not collect log-probabilities or values, the loss does not read them
        columns = {
            **self._actions(rollout),
            "log_prob": rollout.log_prob if "log_prob" in rollout.columns else targets.returns,
            "value": rollout.value[: rollout.num_steps],
            **{"valid": targets.valid, "advantage": targets.advantage, "returns": targets.returns},
        }
        self.read(columns, normalize=int(normalize), estimate=0)

    def _actions(self, rollout: Rollout) -> dict[str, Tensor]:
        """The column of actions, [K, T * N], under the name that it has in Collected."""
        name = "choice" if int(self.tables.head.kind) in CHOICES else "number"
        return {name: flatten(rollout.action).reshape(rollout.reward.numel(), -1).t()}

    def read(self, columns: dict[str, Tensor], **numbers: int | float) -> None:
        """Let the call read these fields of Collected."""
        for name, column in columns.items():
            self.collected[name] = column.contiguous()
            self.call.point(self.places[name], self.collected[name].data_ptr())
        for name, number in numbers.items():
            self.call.put(self.places[name], number)

    def threads(self, samples: int, size: int) -> int:
        """As many as there are cores, and parts in a minibatch of this size; one for little work."""
        if 6 * len(self.arrays[0]) * samples < WORTH_HELP:
            return 1
        parts = min(PARTS, -(-size // PART)) * len(self.tables.subnetworks)
        return min(kernel_threads(), WORKERS, parts)


def _nothing_collected(tables: Compiled) -> Collected:
    """In place of what each call is pointed to."""
    discrete, words = int(tables.head.kind) in CHOICES, np.zeros(SHUFFLE_WORDS, np.uint32)
    actions = (NO_CHOICE, np.zeros(1, np.float32)) if not discrete else (np.zeros(1, np.int32), NO_NUMBER)
    column, flag, zero, order = np.zeros(1, np.float32), np.zeros(1, np.bool_), np.uint64(0), np.zeros(1, np.int64)
    return Collected(
        *(*actions, tables.start, column, column, flag, column, column, order, column, flag, flag),
        *(zero, zero, zero, 0.0, 0.0, zero, zero, zero, words),
    )


def learner_of(
    learners: Bound[RolloutLearner], policy: Learned, optimizer: Adam, tables: Callable[[], Compiled]
) -> RolloutLearner:
    """What takes this optimizer's steps, made again where the policy has changed. tables: its network's."""
    flat, moments = optimizer.flat, (optimizer.mean, optimizer.square)
    return learners.get(
        lambda: RolloutLearner(tables(), flat, moments), *(policy, last_examined(policy), flat, *moments)
    )


def why_not_steps(policy: Any, optimizer: Adam, rollout: Rollout) -> bool | str | None:
    """Why the kernel takes no steps of this optimizer, whatever is learned: False on another device; None where it
    may."""
    if rollout.device.type != "cpu":
        return False
    return why_not_adam(optimizer, any_beta2=True) or why_not_learn(policy, optimizer)


def all_fit(policy: Any, rollout: Rollout, valid: Tensor, order: Tensor, *columns: Tensor) -> bool | str:
    """Whether everything that a call is given is what the kernel reads; else MISFIT."""
    fitting = fits(valid, torch.bool, *rollout.reward.shape) and columns_fit(policy, rollout, *columns)
    return (fitting and order_fits(order, rollout.reward.numel())) or MISFIT


def settings_of(optimizer: Adam, max_grad_norm: float, target_kl: float = 0.0) -> tuple[float, ...]:
    """The settings of the next call that takes steps of this optimizer."""
    at = (float(optimizer.steps), float(optimizer.learning_rate))
    return (*at, float(optimizer.eps), float(optimizer.beta2), float(max_grad_norm), float(target_kl))


def columns_fit(policy: Learned, rollout: Rollout, *columns: Tensor, device: Device = "cpu") -> bool:
    """Whether the columns [T, N], and the actions of this policy, are what a kernel for the device reads."""
    shape, rows = rollout.reward.shape, rollout.reward.numel()
    head: Any = getattr(policy, "head", None)
    kind = torch.float32 if isinstance(head, GaussianHead) else torch.int32
    floats = all(fits(x, torch.float32, *shape, device=device) for x in (*columns, rollout.value[: rollout.num_steps]))
    several = isinstance(head, GaussianHead | BernoulliHead)
    components = head.num_parameters if several else len(getattr(head, "sizes", (0,)))
    return floats and rollout.action.dtype == kind and rollout.action.numel() == rows * components


def order_fits(order: Tensor, rows: int) -> bool:
    """Whether an order is int64 [epochs, R] and has rows 0 to R - 1 alone."""
    if not (isinstance(order, Tensor) and order.dim() == 2 and order.numel() > 0):
        return False
    if not fits(order, torch.int64, len(order), rows):
        return False
    highest = order.numpy().view(np.uint64).max()  # so a negative number is a large one
    return int(highest) < rows
