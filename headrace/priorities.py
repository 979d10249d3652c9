"""Rows of a replay drawn by how wrong their last prediction was. Schaul et al. 2016, arXiv:1511.05952.

Priorities lie in the leaves of a binary tree whose nodes are sums: a draw goes down from the root, a change goes up
from the leaf, both in log2(rows) steps, for any number of rows at once. Rows that cannot be drawn have priority 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.replay import Replay

BYTES = 16  # of the tree, for each step of the replay, at least; at most twice that
SMALLEST = 1e-6  # added to errors, so that no live row is never drawn: the paper's epsilon


class Priorities:
    """Priorities of a replay's rows.

    alpha: how much they count, from 0 (all rows alike) to 1 (in proportion to the error); eq. 1 of the paper.
    """

    def __init__(self, replay: Replay, alpha: float) -> None:
        self.replay, self.alpha = replay, alpha
        self.depth = (replay.length * replay.num_envs - 1).bit_length()
        device = replay.ring.device
        # node 1 is the root, nodes 2i and 2i + 1 are the children of i, and leaf r is node 2^depth + r
        self.tree = torch.zeros(2 ** (self.depth + 1), dtype=torch.float64, device=device)
        self.highest = torch.ones((), dtype=torch.float64, device=device)  # priority that new rows get

    def admit(self, steps: int) -> None:
        """Take in the `steps` rows that have just been appended: those that can now be drawn, with the highest priority
        so far; those that were written over, and not yet can be, with 0."""
        replay, device = self.replay, self.tree.device
        first = replay.written - steps - replay.num_steps + 1
        times = first + torch.arange(steps + replay.num_steps, device=device)
        rows = (times % replay.length).unsqueeze(1) * replay.num_envs + torch.arange(replay.num_envs, device=device)
        rows = rows.flatten()
        can = (times >= 0) & (times <= replay.written - replay.num_steps)
        live = can.repeat_interleave(replay.num_envs) & replay.ring.valid.flatten()[rows]
        self._set(rows, self.highest * live)

    def draw(self, noise: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        """Rows of minibatches [G, B], by uniform draws of that shape, and the weights that make up for drawing some
        more often than others: int64 and float32 [G, B].

        The total is cut into B equal parts, and one row drawn from each (the paper's appendix B.2.1). Weights are
        (N P(row))^-beta over the largest of their minibatch (section 3.4).
        """
        size = noise.shape[-1]
        part = torch.arange(size, device=noise.device)
        # below the total even where the last part is rounded up to it
        left = ((part + noise.double()) / size).clamp(max=1 - 1e-12) * self.tree[1]
        node = torch.ones_like(left, dtype=torch.int64)
        for _ in range(self.depth):
            node = node * 2
            first = self.tree[node]
            # a sum is rounded: never go where there is nothing
            right = (left >= first) & (self.tree[node + 1] > 0)
            left, node = left - first * right, node + right
        priority = self.tree[node].clamp(min=torch.finfo(torch.float64).tiny)
        weight = (priority.amin(-1, keepdim=True) / priority) ** beta
        return node - 2**self.depth, weight.float()

    def update(self, rows: Tensor, error: Tensor) -> None:
        """Set priorities by the absolute errors of rows, both of one shape; the largest of a row that comes twice.

        Dead rows keep 0.
        """
        rows = rows.flatten()
        leaf = rows + 2**self.depth
        priority = (error.flatten().abs().double() + SMALLEST) ** self.alpha
        self.highest.copy_(torch.maximum(self.highest, priority.max()))
        priority = torch.where(self.tree[leaf] > 0, priority, 0.0)
        self.tree[leaf] = 0.0
        self.tree.scatter_reduce_(0, leaf, priority, "amax")
        self._add_up(rows)

    def _set(self, rows: Tensor, priority: Tensor) -> None:
        """Write leaves, each row once, and the sums above them."""
        self.tree[rows + 2**self.depth] = priority
        self._add_up(rows)

    def _add_up(self, rows: Tensor) -> None:
        node = rows + 2**self.depth
        for _ in range(self.depth):
            node = node // 2
            self.tree[node] = self.tree[2 * node] + self.tree[2 * node + 1]

    def state_dict(self) -> dict[str, Any]:
        """The leaves, and the highest priority."""
        rows = self.replay.length * self.replay.num_envs
        return {"leaves": self.tree[2**self.depth :][:rows].clone(), "highest": self.highest.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from state_dict(), bit for bit."""
        leaves = state["leaves"].to(self.tree.device)
        self._set(torch.arange(len(leaves), device=leaves.device), leaves)
        self.highest.copy_(state["highest"])
