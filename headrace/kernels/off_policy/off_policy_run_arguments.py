"""Arguments of the kernels that step environments, fill a replay buffer and learn from it, for off-policy algorithms.

Arrays are flat; T steps of N environments, observations of F numbers, actions of K numbers or one choice.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from headrace.kernels.nn.layout import Normalizer, ScratchOffsets
from headrace.kernels.off_policy.off_policy_arguments import Batches

# kinds of policies: values of choices, an actor, an actor of mean and log standard deviation
CHOICES, DETERMINISTIC, STOCHASTIC = (np.uint64(i) for i in range(3))
ACT, STEP, APPEND, LEARN = 1, 2, 4, 8  # flags of what run_steps does
# indices in Steps.span, int64: the first step and the last + 1, flags, gradient steps before the next one
FIRST, LAST, FLAGS, UPDATES = (np.uint64(i) for i in range(4))
METRICS = 4  # of the algorithms with an actor
PARTS = 3  # numbers in Steps.spent: ticks of acting, environments, learning


class ActorArguments(NamedTuple):
    """A policy that acts. kind: see above. layers, parameters: as of kernels.nn.mlp. offsets: logits are the outputs of
    the last layer; values, of a dueling network, those of the layer with the state's value, else 0; samples are rows
    for the draws, then for two results. center, half_range: float32 [K]. start: number of the first of `choices`.
    exploration: float32 [1 or N]; random: float32 [1], 1 where actions are uniform."""

    kind: np.uint64
    layers: np.ndarray
    offsets: ScratchOffsets
    parameters: np.ndarray
    normalizer: Normalizer
    center: np.ndarray
    half_range: np.ndarray
    start: np.int64
    choices: np.uint64
    exploration: np.ndarray
    random: np.ndarray


class Columns(NamedTuple):
    """Columns of a rollout. Entry (t, n) is at t * N + n; number f of an observation `plane` further for each f, of an
    action `action_plane`. Of action (float32) and choice (int32) one is empty."""

    observation: np.ndarray
    valid: np.ndarray
    action: np.ndarray
    choice: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    plane: np.uint64
    action_plane: np.uint64


class Priorities(NamedTuple):
    """Of prioritized replay (headrace.data.priorities). depth: of its tree, float64 [2^(depth + 1)]; 0 where rows are
    drawn uniformly. ahead: rows of an n-step return. beta: float32 [1]; highest: float64 [1]. rows, found: memory for
    the rows of G minibatches, int64, and their new priorities, float64."""

    depth: np.uint64
    ahead: np.uint64
    tree: np.ndarray
    alpha: float
    beta: np.ndarray
    highest: np.ndarray
    rows: np.ndarray
    found: np.ndarray


class Ring(NamedTuple):
    """A replay buffer (headrace.data.replay): columns [length, N, ...], and written, int64 [N]."""

    observation: np.ndarray
    valid: np.ndarray
    action: np.ndarray
    choice: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    written: np.ndarray
    length: np.uint64
    envs: np.uint64
    features: np.uint64
    actions: np.uint64
    priorities: Priorities


class Minibatches(NamedTuple):
    """How G minibatches of `rows` rows are drawn, and where they go: targets, as the learning call reads them.

    in_blocks: 1 where the numbers of 64 rows lie side by side, encoded, actions normalised, with normal noise; 0 where
    rows follow each other as they are in the ring, with the uniform draws in place of the noise, and choices in
    `choice`, int32. Either way there is room for `blocks` blocks of 64 rows in each minibatch.
    seed: of the draws. n_steps, gamma: of the returns. draws: uniform numbers for one action's noise, of which there
    are `noises` (0 to 2) in a row; it is scaled by `noise` and clipped to +-clip. center, half_range: of the actions'
    space; empty for choices, which are counted from `start`. scratch: float32, rows of 64 for the draws.
    """

    steps: np.uint64
    rows: np.uint64
    blocks: np.uint64
    seed: np.uint64
    n_steps: np.uint64
    gamma: np.float32
    draws: np.uint64
    noises: np.uint64
    noise: np.float32
    clip: np.float32
    normalizer: Normalizer
    center: np.ndarray
    half_range: np.ndarray
    start: np.int64
    targets: Batches
    scratch: np.ndarray
    in_blocks: np.uint64
    choice: np.ndarray


class Learning(NamedTuple):
    """The learning call of G gradient steps: (kernels.runtime.native) its entry point, its argument slots, a run of
    `slots` for each worker, as uint64 and the same memory as float64; its work queue's state.

    since: the slot of its gradient steps since the actor's last step, of `delay` each; 0 for none. counts: slots of
    Adam's steps, that of the actor first, which takes one of every `delay`. follow: float32 [G], how far the target
    moves after each step: tau after every `interval`; empty where the call does it itself. metrics: float32 [G, M],
    0 where one was not measured; empty for DQN's kernel, which has value, error, float32 [G, blocks, 64]. sums: float64
    [M + 1], means over the gradient steps are added, last how many they are.
    """

    entry: np.uint64
    slots: np.uint64
    words: np.ndarray
    floats: np.ndarray
    state: np.ndarray
    since: np.uint64
    delay: np.int64
    counts: np.ndarray
    follow: np.ndarray
    tau: np.float32
    interval: np.int64
    metrics: np.ndarray
    value: np.ndarray
    error: np.ndarray
    sums: np.ndarray


class Steps(NamedTuple):
    """T steps. span: int64 [4], see above. every: steps from learning to learning. actor, actor_words: entry point and
    argument slots of the call that acts for a row of environments; moving: int64 [n, 3], a slot of it, the address that
    it has in the first row, and bytes from row to row. entry, words: of the environments' step, whose last slot is the
    time. spent: uint64 [PARTS], see above."""

    span: np.ndarray
    every: np.int64
    actor: np.uint64
    actor_words: np.ndarray
    moving: np.ndarray
    entry: np.uint64
    words: np.ndarray
    spent: np.ndarray
