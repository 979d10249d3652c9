"""Prioritized experience replay: rows drawn in proportion to their TD errors. Schaul et al. 2016, arXiv:1511.05952.

Priorities are the leaves of a sum tree: a draw descends from the root, an update ascends from the leaf, both in
log2(rows) steps, for any number of rows at once. Rows that cannot be drawn have priority 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.core.fused import fused
from headrace.core.types import StateDict
from headrace.data.replay import Batch, Replay
from headrace.data.rollout import Rollout

BYTES = 32  # of the tree per step of the replay buffer, at most
SMALLEST = 1e-6  # added to errors, so that every valid row may be drawn: epsilon in the paper


class PrioritizedReplay(Replay):
    """A Replay whose draw() samples by priority, and whose gather() gives importance-sampling weights.

    like, capacity, num_steps: as the Replay's. alpha: exponent of priorities, from 0 (uniform) to 1 (in
    proportion to the error); eq. 1 of the paper. `beta`: a scalar tensor, the exponent of the importance-sampling
    weights, from 0 to 1; the algorithm writes into it.
    """

    def __init__(self, like: Rollout, capacity: int, num_steps: int = 1, alpha: float = 0.6) -> None:
        super().__init__(like, capacity, num_steps)
        self.alpha = alpha
        self.depth = (self.length * self.num_envs - 1).bit_length()
        device = self.ring.device
        self.beta = torch.ones((), device=device)
        # node 1 is the root, nodes 2i and 2i + 1 are the children of i, and leaf r is node 2^depth + r
        self.tree = torch.zeros(2 ** (self.depth + 1), dtype=torch.float64, device=device)
        self.highest = torch.ones((), dtype=torch.float64, device=device)  # priority of new rows

    def _write(self, rollout: Rollout, env: Tensor, begin: Tensor) -> None:
        """Give rows that have become drawable the highest priority so far. Rows that were overwritten, and rows whose
        successor is not written yet, get 0."""
        super()._write(rollout, env, begin)
        ahead = self.num_steps
        times = begin + torch.arange(1 - ahead, rollout.num_steps + 1, device=begin.device).unsqueeze(1)
        rows = times % self.length * self.num_envs + env
        can = (times >= 0) & (times <= self.written[env] - ahead) & self.ring.valid.flatten()[rows]
        self._set(rows.flatten(), (self.highest * can).flatten())

    def draw(self, random: Tensor) -> Tensor:
        """Draw rows of minibatches, int64 [G, B]. random: uniform numbers [G, B, DRAWS]; the first of each row is used.

        The total is divided into B equal parts, and one row is drawn from each (the paper's appendix B.2.1).
        """
        size = random.shape[-2]
        part = torch.arange(size, device=random.device)
        left = (part + random[..., 0].double()) / size * self.tree[1]
        return descend(self.tree, self.depth, left)

    def gather(self, rows: Tensor, gamma: float) -> Batch:
        """Transitions as the Replay's, in minibatches [..., B]. Their weights are (N P(row))^-beta divided by the
        largest weight of the minibatch (section 3.4)."""
        batch = super().gather(rows, gamma)
        priority = self.tree[rows + 2**self.depth].clamp(min=torch.finfo(torch.float64).tiny)
        weight = (priority.amin(-1, keepdim=True) / priority) ** self.beta
        return batch._replace(weight=batch.weight * weight.float())

    def update(self, rows: Tensor, error: Tensor) -> None:
        """Set priorities from the errors of rows, of the same shape. For a row that occurs twice the largest error
        counts.

        Rows that cannot be drawn keep 0.
        """
        rows = rows.flatten()
        leaf = rows + 2**self.depth
        priority = (error.flatten().abs().double() + SMALLEST) ** self.alpha
        self.highest.copy_(torch.maximum(self.highest, priority.max()))
        priority = torch.where(self.tree[leaf] > 0, priority, 0.0)
        self.tree[leaf] = 0.0
        self.tree.scatter_reduce_(0, leaf, priority, "amax")
        add_up(self.tree, self.depth, rows)

    def anneal(self, start: float, progress: float | Tensor) -> None:
        """Let beta go from `start` to 1. progress: fraction of the training done, 0 .. 1."""
        self.beta.fill_(start + progress * (1 - start))

    def _set(self, rows: Tensor, priority: Tensor) -> None:
        """Write leaves, and the sums above them. A row may occur twice, with the same priority."""
        self.tree[rows + 2**self.depth] = priority
        add_up(self.tree, self.depth, rows)

    def leaves(self) -> Tensor:
        """The priority of each row, float64 [rows]: a view."""
        return self.tree[2**self.depth :][: self.length * self.num_envs]

    def state_dict(self) -> StateDict:
        """The Replay's state and a copy of the priorities, by which a step of learning can be undone."""
        return {**super().state_dict(), "leaves": self.leaves().clone(), "highest": self.highest.clone()}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict(), bit for bit. Raises ValueError for a ring of another size."""
        super().load_state_dict(state)
        leaves = state["leaves"].to(self.tree.device)
        self._set(torch.arange(len(leaves), device=leaves.device), leaves)
        self.highest.copy_(state["highest"])


@fused("priorities.descend", "headrace.bindings.prioritized_rows")
def descend(tree: Tensor, depth: int, left: Tensor) -> Tensor:
    """Find for each entry of `left` (float64, any shape) the first leaf (int64) whose cumulative sum exceeds it."""
    node = torch.ones_like(left, dtype=torch.int64)
    for _ in range(depth):
        node = node * 2
        first = tree[node]
        # sums are rounded: do not descend into a sum of 0
        right = (left >= first) & (tree[node + 1] > 0)
        left, node = left - first * right, node + right
    return node - 2**depth


@fused("priorities.add_up", "headrace.bindings.prioritized_rows")
def add_up(tree: Tensor, depth: int, rows: Tensor) -> None:
    """Write the sums above the leaves of these rows, int64 [*]."""
    node = rows + 2**depth
    for _ in range(depth):
        node = node // 2
        tree[node] = tree[2 * node] + tree[2 * node + 1]
