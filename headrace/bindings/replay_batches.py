"""What the compiled learning calls of off-policy algorithms share: batches in blocks of 64 rows, optimizers' buffers.

And the sum tree of prioritized replay: descend() and add_up() of headrace.data.priorities."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from headrace.algorithms.adam import Adam
from headrace.bindings.arguments import fits, whole
from headrace.bindings.digests import DIGESTS
from headrace.core.fused import register
from headrace.data.replay import Batch
from headrace.data.rollout import flatten
from headrace.kernels.nn.layout import BLOCK, aligned
from headrace.kernels.off_policy.off_policy_arguments import Weights
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Argument, SharedCall
from headrace.policies.actor_q import ActorQ
from headrace.policies.q_network import QNetwork

WORTH_HELP = 6e6  # floating-point operations below which waking another thread costs more than it saves
ANNOUNCEMENT = "compiling the sum tree of prioritized replay (once, about 1 s) ..."


def count(rows: int) -> int:
    """Blocks that so many rows fill."""
    return -(-rows // int(BLOCK))


def encode(policy: ActorQ | QNetwork, observation: Tensor, shape: Sequence[int]) -> Tensor:
    """Observations [G, B, ...] as the policy's layers read them: float32 [G, B, F]. shape: [G, B]."""
    return policy.encoder(flatten(observation)).view(*shape, -1)  # type: ignore[no-any-return]


def mean_weights(weight: Tensor) -> Tensor:
    """Weights [G, B] of the mean over the rows of a batch whose weight is not 0."""
    return weight / weight.count_nonzero(1).clamp(min=1).unsqueeze(1)


def lay(target: Tensor, column: Tensor) -> None:
    """Copy rows [G, R, W] to blocks [G, B, W, 64]; what is left of the last one is 0."""
    steps, rows, _ = column.shape
    left = target.shape[1] * int(BLOCK) - rows
    column = pad(column, (0, 0, 0, left)) if left else column
    target.copy_(column.reshape(steps, target.shape[1], int(BLOCK), -1).transpose(2, 3))


def blocks_of(steps: int, blocks: int, features: int, actions: int) -> list[Tensor]:
    """Room for the fields of off_policy_arguments.Batches."""
    block = int(BLOCK)
    return [
        *(torch.zeros(steps, blocks, width, block) for width in (features, features, actions)),
        *(torch.zeros(steps, blocks, 1, block) for _ in range(3)),
        torch.zeros(steps, 2 * blocks, actions, block),
    ]


def lay_blocks(given: list[Tensor], policy: ActorQ, batches: Batch, normal: Tensor) -> None:
    """Lay batches [G, B] into blocks_of(), encoded and with actions normalised. normal: draws [G, R, K], R twice the
    batch, or once."""
    now, later, action, *columns, random = given
    rows, blocks = batches.reward.shape[1], now.shape[1]
    for target, part in ((now, batches.observation), (later, batches.next_observation)):
        lay(target, encode(policy, part, batches.reward.shape))
    lay(action, policy.normalize_action(batches.action))
    for target, column in zip(columns, (batches.reward, batches.discount, mean_weights(batches.weight)), strict=True):
        lay(target, column.unsqueeze(2))
    for half in range(normal.shape[1] // rows):
        lay(random[:, half * blocks : (half + 1) * blocks], normal[:, half * rows : (half + 1) * rows])


def weights(optimizer: Adam, target: Tensor | None = None, words: int = 0) -> Weights:
    """An optimizer's buffers, those of its target network, if any, and scratch for packed factors: `words` of each."""
    buffers = (optimizer.flat, optimizer.mean, optimizer.square, optimizer.flat if target is None else target)
    arrays = (*(x.numpy() for x in buffers), aligned(words), aligned(words))
    return Weights(*arrays)


def _is_tree(tree: Tensor, depth: int) -> bool:
    return whole(depth) and fits(tree, torch.float64, 2 << depth) and tree.is_contiguous()


def _descends(tree: Tensor, depth: int, left: Tensor) -> bool:
    return _is_tree(tree, depth) and fits(left, torch.float64, *left.shape)


@register("priorities.descend", _descends, DIGESTS["priorities.descend"])
def descend(tree: Tensor, depth: int, left: Tensor) -> Tensor:
    """headrace.data.priorities.descend, with the same rows."""
    left, rows = left.contiguous(), torch.empty(left.shape, dtype=torch.int64)
    _call("descend")(depth, left.numel(), tree.data_ptr(), left.data_ptr(), rows.data_ptr())
    return rows


def _adds_up(tree: Tensor, depth: int, rows: Tensor) -> bool:
    if not _is_tree(tree, depth) or not fits(rows, torch.int64, *rows.shape):
        return False
    return not rows.numel() or int(rows.numpy().view(np.uint64).max()) < 1 << depth  # a negative number is a large one


@register("priorities.add_up", _adds_up, DIGESTS["priorities.add_up"])
def add_up(tree: Tensor, depth: int, rows: Tensor) -> None:
    """headrace.data.priorities.add_up, with the same bits."""
    rows = rows.contiguous()
    _call("add_up")(depth, rows.numel(), tree.data_ptr(), rows.data_ptr())


@cache
def _call(function: str) -> SharedCall:
    tree, left, rows = np.zeros(2), np.zeros(1), np.zeros(1, np.int64)
    example: tuple[Argument, ...] = (0, 0, tree, left, rows) if function == "descend" else (0, 0, tree, rows)
    return SharedCall(entry("off_policy.sum_tree", function, example, ANNOUNCEMENT), example)
