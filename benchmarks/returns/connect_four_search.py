"""Connect Four by alpha-beta search, and matches of a policy against it. Compiled with Numba.

A board is two whole numbers of 49 bits: bit 7 * column + row is set where a place, row 0 the lowest, has a piece of the
player who is to move (`own`), or of anybody (`all`). Row 6 stays empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit  # noqa: TID253 - nothing of the package imports this file

COLUMNS, ROWS, HEIGHT = 7, 6, 7
WIN = 10_000  # value of a win with the next move; of one that is n moves later, n less
OPENING = 4  # moves at random before a game: nobody can have won
LEAVES = ("nothing", "lines")  # what leaves of the search are valued by, where nobody has won


@njit(cache=False)
def has_won(pieces: int) -> bool:
    """Tell whether four pieces are in a line."""
    for shift in (1, HEIGHT, HEIGHT - 1, HEIGHT + 1):
        pairs = pieces & (pieces >> shift)
        if pairs & (pairs >> (2 * shift)):
            return True
    return False


@njit(cache=False)
def lines_of(own: int, other: int) -> int:
    """Value of the lines of four that the other has no piece in: 1, 4 and 16 for one, two and three own pieces."""
    value = 0
    for column in range(COLUMNS):
        for row in range(ROWS):
            for right, up in ((0, 1), (1, 0), (1, 1), (1, -1)):
                last_column, last_row = column + 3 * right, row + 3 * up
                if last_column >= COLUMNS or last_row >= ROWS or last_row < 0:
                    continue
                count, free = 0, True
                for k in range(4):
                    bit = 1 << (HEIGHT * (column + k * right) + row + k * up)
                    free = free and not (other & bit)
                    count += 1 if own & bit else 0
                if free and count:
                    value += 1 << (2 * (count - 1))
    return value


@njit(cache=False)
def value_of(own: int, everything: int, depth: int, low: int, high: int, by_lines: bool) -> int:
    """Value for the player to move: negamax with alpha-beta, Knuth & Moore 1975, doi:10.1016/0004-3702(75)90019-3."""
    if depth == 0:
        other = everything ^ own
        return lines_of(own, other) - lines_of(other, own) if by_lines else 0
    best, moves = -WIN * 2, 0
    for k in range(COLUMNS):
        column = 3 + (k // 2 + 1) * (1 if k % 2 else -1) if k else 3  # the middle first
        if everything & (1 << (HEIGHT * column + ROWS - 1)):
            continue
        moves += 1
        after = everything | (everything + (1 << (HEIGHT * column)))
        if has_won(own | (after ^ everything)):
            return WIN + depth
        value = -value_of(everything ^ own, after, depth - 1, -high, -max(low, best), by_lines)
        best = max(best, value)
        if best >= high:
            break
    return best if moves else 0


@njit(cache=False)
def best_move(own: int, everything: int, depth: int, by_lines: bool, draw: float) -> int:
    """A column with the highest value; of several the one that `draw`, in [0, 1), picks."""
    values, best = np.full(COLUMNS, -WIN * 4), -WIN * 4
    for column in range(COLUMNS):
        if everything & (1 << (HEIGHT * column + ROWS - 1)):
            continue
        after = everything | (everything + (1 << (HEIGHT * column)))
        if has_won(own | (after ^ everything)):
            values[column] = WIN + depth
        else:
            values[column] = -value_of(everything ^ own, after, depth - 1, -WIN * 2, WIN * 2, by_lines)
        best = max(best, values[column])
    found = np.nonzero(values == best)[0]
    return found[int(draw * len(found))]


@njit(cache=False)
def search_moves(own: np.ndarray, everything: np.ndarray, depth: int, by_lines: bool, draws: np.ndarray) -> np.ndarray:
    """best_move() of each board."""
    moves = np.empty(len(own), np.int64)
    for k in range(len(own)):
        moves[k] = best_move(own[k], everything[k], depth, by_lines, draws[k])
    return moves


@njit(cache=False)
def winning_columns(pieces: np.ndarray, everything: np.ndarray) -> np.ndarray:
    """1 where a piece of a player that is dropped into a column wins: float32 [boards, COLUMNS]."""
    found = np.zeros((len(pieces), COLUMNS), np.float32)
    for k in range(len(pieces)):
        for column in range(COLUMNS):
            if not everything[k] & (1 << (HEIGHT * column + ROWS - 1)):
                new = (everything[k] + (1 << (HEIGHT * column))) & ~everything[k]
                found[k, column] = has_won(pieces[k] | new)
    return found


def observation_of(own: np.ndarray, everything: np.ndarray) -> dict[str, np.ndarray]:
    """Boards as ConnectFourPlayers and its policies have them, for the player to move."""
    bits = np.array([HEIGHT * column + row for row in reversed(range(ROWS)) for column in range(COLUMNS)])
    mine, others = (((pieces[:, None] >> bits) & 1).astype(np.float32) for pieces in (own, everything ^ own))
    wins = [winning_columns(pieces, everything) for pieces in (own, everything ^ own)]
    tops = HEIGHT * np.arange(COLUMNS) + ROWS - 1
    mask = (1 - ((everything[:, None] >> tops) & 1)).astype(np.int8)
    return {"observation": np.concatenate((mine, others, *wins), 1), "action_mask": mask}


def openings(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Boards after OPENING moves at random, all different: own, all."""
    rng, found = np.random.default_rng(seed), dict[tuple[int, int], None]()
    while len(found) < number:
        own = everything = 0
        for column in rng.integers(COLUMNS, size=OPENING).tolist():
            after = everything | (everything + (1 << (HEIGHT * column)))
            own, everything = everything ^ own, after
        found[own, everything] = None
    own, everything = np.array(list(found), np.int64).T
    return own.copy(), everything.copy()


def match(policy: Any, number: int = 200, depth: int = 4, leaves: str = "nothing", seed: int = 0) -> dict[str, float]:
    """Games of a policy's likeliest actions against the search, from `number` openings with both sides each: fractions
    won, drawn and lost, and the win rate, in which a draw is half a win."""
    own, everything = (np.concatenate((board, board)) for board in openings(number, seed))
    rng, total = np.random.default_rng(seed + 1), 2 * number
    result, is_policy = np.full(total, np.nan), np.arange(total) < number  # whose move it is
    while np.isnan(result).any():
        going = np.isnan(result)
        mine, searched = (np.flatnonzero(going & who) for who in (is_policy, ~is_policy))
        move = np.zeros(total, np.int64)
        if len(mine):
            move[mine] = policy.predict(observation_of(own[mine], everything[mine]))[0]
        boards, draws = (own[searched], everything[searched]), rng.random(total)[searched]
        move[searched] = search_moves(*boards, depth, leaves == "lines", draws)
        after = everything | (everything + (1 << (HEIGHT * move)))
        moved = own | (after ^ everything)
        won = np.array([has_won(int(pieces)) for pieces in moved])
        full = np.array([int(pieces).bit_count() == COLUMNS * ROWS for pieces in after])
        result[going & won] = np.where(is_policy, 1.0, 0.0)[going & won]
        result[going & ~won & full] = 0.5
        own = np.where(going, everything ^ own, own)
        everything, is_policy = np.where(going, after, everything), is_policy ^ going
    fractions = {name: float(np.mean(result == score)) for name, score in (("won", 1.0), ("drawn", 0.5), ("lost", 0.0))}
    return {"win_rate": float(result.mean()), **fractions}
