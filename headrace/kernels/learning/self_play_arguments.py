"""Arguments of the kernel for self-play (headrace.kernels.learning.self_play_games), made in plain Python."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Player(NamedTuple):
    """Programs of K policies that act, or evaluate, for the same columns. entries: uint64 [K], the address of each.
    slots: int64, its argument slots, `each` for each worker of each policy, flat. moving: int64 [n, 3], a slot, the
    address that it has in the first entry of the columns, and bytes from entry to entry. draws: the slot with the
    address of draws, 0 where there are none; random: int64 [2], the address of the first worker's, and bytes from
    worker to worker."""

    entries: np.ndarray
    slots: np.ndarray
    each: np.uint64
    moving: np.ndarray
    draws: np.uint64
    random: np.ndarray


class GameColumns(NamedTuple):
    """A rollout's columns, flat. plane, action_plane: how far apart the entries of an observation and of an action are.
    Of choice (int32) and action (float32) one is empty."""

    plane: np.uint64
    action_plane: np.uint64
    observation: np.ndarray
    valid: np.ndarray
    choice: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    episode_return: np.ndarray
    episode_length: np.ndarray


class GameState(NamedTuple):
    """State of N games, as SelfPlayEnv keeps it, [N]: returns and margins, float32, lengths, int32, played and rated,
    bool; opponent, int64, its place in the league; policy, int64, its number among opponents. scores, float64, and
    games, int64 [workers, opponents], are added to."""

    returns: np.ndarray
    margins: np.ndarray
    lengths: np.ndarray
    played: np.ndarray
    rated: np.ndarray
    opponent: np.ndarray
    policy: np.ndarray
    scores: np.ndarray
    games: np.ndarray


class EnvState(NamedTuple):
    """The environments' state (targets.cpu.state_layout): floats and integers, with so many rows, in blocks of
    per_block environments; arrays, uint8 [N, bytes], the first one of no bytes. mover: the row of integers that says
    which agent moves, where agents take turns."""

    floats: np.ndarray
    integers: np.ndarray
    arrays: tuple[np.ndarray, ...]
    float_rows: np.uint64
    integer_rows: np.uint64
    per_block: np.uint64
    mover: np.uint64


class GameRoom(NamedTuple):
    """Memory of each worker for a block of games. draws: of actions, float32. floats, integers,
    bytes: of the environments' state. rewards: float32 [BLOCK]. flags: bool [FLAGS, BLOCK]. stuck: int64 [3], of a game
    that cannot go on the agent that is to move and the opponent's moves since the learner's, and 1; else zeros."""

    draws: np.ndarray
    floats: np.ndarray
    integers: np.ndarray
    bytes: np.ndarray
    rewards: np.ndarray
    flags: np.ndarray
    stuck: np.ndarray


class GameNumbers(NamedTuple):
    """Sizes and settings: steps T, games N, the number of games in which the learner is the first agent, 1 where agents
    take turns, entries of an observation, numbers and draws of an action, most moves of an opponent between two of the
    learner. Seed, purpose and first step of the learner's draws, and of the opponents'. All are uint64 except the scale
    of rewards, float32."""

    steps: np.uint64
    games: np.uint64
    half: np.uint64
    turns: np.uint64
    features: np.uint64
    actions: np.uint64
    draws: np.uint64
    most_moves: np.uint64
    own_draws: tuple[np.uint64, np.uint64, np.uint64]
    their_draws: tuple[np.uint64, np.uint64, np.uint64]
    scale: np.float32


class GamesArguments(NamedTuple):
    """Arguments of play(). learner: columns [T, N]; observations and valid have a row more. both: columns [2, 2 N] of
    both agents; observations and valid have a row more, and their first row has the observations before the next step.
    own, opponents, last: players. own acts for the learner in its columns; opponents act for the learner (number 0) and
    its opponents in the columns of both; last evaluates the learner's last observations. step, steps, spent: as in
    rows.targets.cpu_arguments.Collecting."""

    own: Player
    opponents: Player
    last: Player
    learner: GameColumns
    both: GameColumns
    state: GameState
    env: EnvState
    room: GameRoom
    numbers: GameNumbers
    step: tuple[np.uint64, np.uint64]
    steps: np.ndarray
    spent: np.ndarray
