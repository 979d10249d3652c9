"""Rows of a replay buffer in pieces, as checkpoints store them. Rows never change, so most pieces are written once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

PIECE, ROWS = 2**23, 2**16  # largest number of bytes and rows of a piece, so that it is copied in a few milliseconds
Piece = dict[str, Tensor]


class Ring(Protocol):
    """Ring buffer of rows of N environments: headrace.data.replay.Replay."""

    written: Tensor  # int64 [N]: rows of each environment since the beginning

    @property
    def steps_per_piece(self) -> int:
        """Steps of all environments in a piece."""

    def oldest(self) -> Tensor:
        """The first row of each environment that has not been overwritten, int64 [N]."""

    def read_rows(self, start: Tensor, stop: Tensor) -> Piece:
        """A copy of rows `start` to `stop` of each environment, int64 [N]."""


class Rows:
    """Rows `start` to `stop` of each environment of a ring buffer, int64 [N], as a sequence of pieces.

    Each piece is copied from the ring when it is accessed.
    """

    def __init__(self, ring: Ring, start: Tensor, stop: Tensor) -> None:
        self.ring, self.start, self.stop = ring, start, stop

    def __len__(self) -> int:
        return -(-int((self.stop - self.start).max()) // self.ring.steps_per_piece)

    def __getitem__(self, index: int) -> Piece:
        if not 0 <= index < len(self):
            raise IndexError(f"there are {len(self)} pieces, and no piece {index}")
        steps = self.ring.steps_per_piece
        start = torch.minimum(self.start + index * steps, self.stop)
        return self.ring.read_rows(start, torch.minimum(start + steps, self.stop))

    def __iter__(self) -> Iterator[Piece]:
        return (self[index] for index in range(len(self)))
