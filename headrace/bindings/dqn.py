"""DQN's learning call by the CPU's kernel: all gradient steps of an iteration in one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from headrace.algorithms.adam import Adam
from headrace.algorithms.dqn import DQNConfig, Networks
from headrace.algorithms.reduce import Reduce, one_learner, size_of
from headrace.bindings.arguments import MISFIT, batches_fit, fits
from headrace.bindings.bound import Bound
from headrace.bindings.digests import DIGESTS
from headrace.bindings.eligibility import SEVERAL_LEARNERS, why_not_adam, why_not_copies, why_not_learn
from headrace.bindings.off_policy_acting import layers_of, parts_of
from headrace.bindings.replay_batches import WORTH_HELP, count, encode, lay, mean_weights
from headrace.bindings.replay_batches import weights as weights_of
from headrace.core.device import kernel_threads
from headrace.core.fused import register
from headrace.data.replay import Batch
from headrace.kernels.nn.layer_table import NOWHERE
from headrace.kernels.nn.layout import BLOCK, WIDTH, WORKERS, Layer, aligned
from headrace.kernels.nn.stepwise_layout import gradient_scratch_size, stepwise_table, weight_chunks
from headrace.kernels.off_policy import dqn_arguments as slots
from headrace.kernels.off_policy.dqn_arguments import SHARES, DQNArguments, Settings
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Call
from headrace.kernels.runtime.thread_pool import WorkQueue, queue_state
from headrace.policies.examination import last_examined
from headrace.policies.networks import MLP, Readout
from headrace.policies.q_network import QNetwork

ANNOUNCEMENT = "compiling DQN's learning call (once, about 7 s) ..."
MANY_WEIGHTS = 128 * 128  # of a layer, from which a minibatch of one block is shared by rows of layers


class Learner:
    """Learns from `steps` batches of `rows`; shape: (steps, rows)."""

    def __init__(self, policy: QNetwork, slow: Tensor, optimizer: Adam, shape: tuple[int, int], double: bool) -> None:
        (steps, rows), block = shape, int(BLOCK)
        blocks, features, actions = count(rows), policy.encoder.size, policy.out.weight.shape[0]
        layers, state_value = layers_of(parts_of(policy), policy.activation, optimizer.flat)
        by_rows = state_value is None and _rows_pay(layers, rows)
        lanes = _lanes(rows, 1 if by_rows else kernel_threads())
        table, place, _ = stepwise_table(layers, 0, features * lanes, lanes=lanes)
        of_now, of_next = (torch.zeros(steps, blocks, features, block) for _ in range(2))
        columns = [torch.zeros(steps, blocks, 1, block) for _ in range(6)]
        self.given, self.found = (of_now, of_next, *columns[:4]), columns[4:]
        self.numbers, chunks = np.zeros(16, np.float32), weight_chunks([table])
        self.numbers[slots.EPS] = optimizer.eps
        fields: Any = (
            *(np.uint64(x) for x in (double, blocks, lanes, -(-rows // lanes), features, actions)),
            *(table, NOWHERE if state_value is None else np.uint64(state_value), chunks, weights_of(optimizer, slow)),
            *(x.view(-1).numpy() for x in self.given),
            *(aligned(optimizer.flat.numel()), aligned(3 if by_rows else blocks * block // lanes + WORKERS, place)),
            aligned(2 * int(SHARES), max(3 * actions, *policy.hidden) * lanes if by_rows else 1),
            aligned(WORKERS, gradient_scratch_size([table])),
            *(np.zeros(len(chunks), np.float32), self.numbers, np.zeros(8, np.int64)),
            *(x.view(-1).numpy() for x in self.found),
        )
        self.follow, settings = torch.zeros(steps), Settings(0.0, 0.0, 0.0)
        arguments = (0, queue_state(), DQNArguments(*fields), settings, self.follow.numpy())
        self.call = Call(entry(f"off_policy.dqn{'_rows' * by_rows}", "learn", arguments, ANNOUNCEMENT), arguments)
        self.place, self.work_queue = self.call.slot(3), WorkQueue()
        self.operations = 8 * steps * rows * optimizer.flat.numel()

    def learn(self, policy: QNetwork, batches: Batch, follow: Tensor, settings: Settings) -> tuple[Tensor, Tensor]:
        """Values of the actions taken, and their errors, [G, B] each."""
        of_now, of_next, *columns = self.given
        steps, rows = batches.reward.shape
        for target, part in ((of_now, batches.observation), (of_next, batches.next_observation)):
            lay(target, encode(policy, part, (steps, rows)))
        weight = mean_weights(batches.weight)
        given = (batches.action - policy.start, batches.reward, batches.discount, weight)
        for target, column in zip(columns, given, strict=True):
            lay(target, column.unsqueeze(2))
        self.follow.copy_(follow)
        self.call.put(self.place, settings)
        self.work_queue.run(self.call, self.threads())
        value, error = (x.view(steps, -1)[:, :rows].clone() for x in self.found)
        return value, error

    def threads(self, calls: int = 1) -> int:
        """The number of cores where so many calls one after another are worth waking other threads, else 1."""
        return min(kernel_threads(), WORKERS) if self.operations * calls > WORTH_HELP else 1


def _rows_pay(layers: Sequence[Layer], rows: int) -> bool:
    """Whether parts are rows of layers, and not samples: for a minibatch of one block and layers whose weights are most
    of what threads would exchange."""
    plain = all(layer.norm is None for layer in layers)
    most = max((layer.inputs * layer.outputs for layer in layers[:-1]), default=0)
    return plain and rows <= int(BLOCK) and most >= MANY_WEIGHTS


def _lanes(rows: int, threads: int) -> int:
    """Samples of a part: so few that each thread has one, and that few of the last part's are missing."""
    lanes = int(BLOCK)
    while lanes > int(WIDTH) and (rows <= lanes // 2 or -(-rows // lanes) < threads):
        lanes //= 2
    return lanes


_learners: Bound[Learner] = Bound()
CLASSES = (QNetwork, MLP, Readout, Adam)  # whose methods this was written after


def knows(networks: Networks) -> bool | str:
    """Whether the kernel computes gradients of these networks; else the reason."""
    policy, _, _, optimizer = networks
    if optimizer.flat.device.type != "cpu":
        return False
    return why_not_adam(optimizer) or why_not_learn(policy, optimizer) or why_not_copies(networks) or True


def serves(
    networks: Networks, batches: Batch, follow: Tensor, config: DQNConfig, reduce: Reduce = one_learner
) -> bool | str:
    """Whether the kernel knows these networks and their optimizer; else the reason."""
    if size_of(reduce) > 1:
        return SEVERAL_LEARNERS
    known = knows(networks)
    if known is not True:
        return known
    fitting = batches_fit(batches, torch.int32) and fits(follow, torch.float32, len(batches.reward))
    return (fitting and _are_choices(networks.policy, batches.action)) or MISFIT


def _are_choices(policy: QNetwork, action: Tensor) -> bool:
    lowest, highest = action.aminmax()
    return policy.start <= int(lowest) and int(highest) < policy.start + len(policy.out.bias)


def settings_of(optimizer: Adam, config: DQNConfig) -> Settings:
    """Of the next call."""
    return Settings(float(optimizer.steps), float(optimizer.learning_rate), float(config.max_grad_norm))


@register("dqn.learn", serves, DIGESTS["dqn.learn"], CLASSES)
@torch.no_grad()
def learn(
    networks: Networks, batches: Batch, follow: Tensor, config: DQNConfig, reduce: Reduce = one_learner
) -> tuple[dict[str, Tensor], Tensor]:
    """headrace.algorithms.dqn.learn, with the same results within rounding."""
    policy, _, slow, optimizer = networks
    shape = (batches.reward.shape[0], batches.reward.shape[1])
    depends_on = (last_examined(policy), optimizer.flat, optimizer.eps, slow, shape, config.double)
    learner = _learners.get(lambda: Learner(policy, slow, optimizer, shape, config.double), policy, *depends_on)
    value, error = learner.learn(policy, batches, follow, settings_of(optimizer, config))
    optimizer.steps += shape[0]
    weight = mean_weights(batches.weight)
    loss = smooth_l1_loss(error, torch.zeros_like(error), reduction="none")
    return {name: (x * weight).sum(1).mean() for name, x in (("loss", loss), ("q_value", value))}, error
