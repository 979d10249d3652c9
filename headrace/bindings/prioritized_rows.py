"""The sum tree of prioritized replay compiled: descend() and add_up() of headrace.data.priorities."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from headrace.bindings.arguments import fits, whole
from headrace.bindings.digests import DIGESTS
from headrace.core.fused import register
from headrace.kernels.runtime.entry_points import entry
from headrace.kernels.runtime.native import Argument, SharedCall

ANNOUNCEMENT = "compiling the sum tree of prioritized replay (once, about 1 s) ..."


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
