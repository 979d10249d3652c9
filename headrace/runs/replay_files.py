"""Rows of a run's replay buffers on the disk. They are written once, as they are collected, and checkpoints share them.

Rows are written in pieces, files of a few megabytes. A full piece is written while the training continues, to a folder
that is removed at the end of the process. Checkpoints have hard links to it, so that each can be copied and deleted
alone. Rows after the last full piece are written again with each checkpoint. A piece that both a checkpoint and its
predecessor contain is on the disk twice, so that no damage can affect both.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic

import torch
from torch import Tensor

from headrace.core.device import torch_threads
from headrace.core.writing import writing
from headrace.data.pieces import Piece, Ring, Rows
from headrace.runs import checkpoint, tensor_file
from headrace.runs.checkpoint import Files, State, piece_file, ring_name
from headrace.runs.saver import Saver

EVERY = 0.1  # s between two searches for full pieces
WAITING = 2  # most pieces that wait for the disk; further rows wait in the ring, and may be overwritten there


class ReplayFiles:
    """Writes the rows of replay buffers in pieces.

    folder: the run's. state: a tree with the Rows of each buffer. Later rows are read from their rings.
    """

    def __init__(self, folder: Path, saver: Saver, state: State) -> None:
        self.folder = folder / f".replay.{os.getpid()}"
        self.saver = saver
        self.rings = [_Ring(rows.ring, number, self.folder) for number, rows in enumerate(rows_in(state))]
        self._copy = 0  # number of the pieces' copy that the next checkpoint gets, 0 or 1
        self._looked = 0.0
        shutil.rmtree(self.folder, ignore_errors=True)

    def adopt(self, folder: Path) -> None:
        """Continue from a checkpoint whose buffers have been loaded: its full pieces are not written again."""
        digests = checkpoint.read_manifest(folder)["files"]
        for ring in self.rings:
            self.saver.submit(ring.link, ring.adopt(folder, digests))
        self._copy = 1  # the next checkpoint may replace this one, which then stays as the previous one

    def follow(self) -> None:
        """Hand full pieces to the saver, if the disk is ready for them."""
        if monotonic() - self._looked < EVERY:
            return
        self._looked = monotonic()
        with torch_threads(1):  # several threads do not speed up a copy, and wait for each other if a core is busy
            for ring in self.rings:
                while self.saver.waiting < WAITING and ring.is_full():
                    self.saver.submit(ring.write, *ring.cut())

    def keep(self, number: int, rows: Rows) -> Files:
        """The files of replay buffer `number` for a checkpoint made now."""
        ring = self.rings[number]
        while ring.is_full():
            self.saver.wait(WAITING)
            self.saver.submit(ring.write, *ring.cut())
        rest = rows.ring.read_rows(torch.maximum(ring.start, rows.start), rows.stop)
        for piece in ring.overwritten():
            self.saver.submit(piece.remove)
        files: Files = {piece.name: partial(piece.link, self._copy) for piece in ring.pieces}
        return files | {f"{ring_name(number)}rest.safetensors": partial(tensor_file.write, tensors=_on_host(rest))}

    def replaced(self) -> None:
        """Let the next checkpoint use the other copies, since it keeps the one just made as its predecessor."""
        self._copy = 1 - self._copy

    def close(self) -> None:
        """Remove the folder; checkpoints keep their links. The saver must have been closed."""
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass
class _PieceFile:
    """A full piece: rows up to `stop`, int64 [N]; its digest once it has been written."""

    name: str  # in checkpoints
    stop: Tensor
    folder: Path
    sha256: str = ""

    def path(self, copy: int) -> Path:
        """The path of copy 0 or 1 of the file."""
        return self.folder / f"{self.name}.{copy}"

    def link(self, copy: int, target: Path) -> str:
        """Link a copy of the file to `target` too. Returns its SHA-256."""
        path = self.path(copy)
        if not path.exists() and tensor_file.copy(self.path(1 - copy), path) != self.sha256:
            raise OSError(errno.EIO, "what was read is not what was written", str(self.path(1 - copy)))
        link(path, target)
        return self.sha256

    def remove(self) -> None:
        """Remove the file; checkpoints keep their links."""
        for copy in (0, 1):
            self.path(copy).unlink(missing_ok=True)


class _Ring:
    """The pieces of one ring buffer."""

    def __init__(self, ring: Ring, number: int, folder: Path) -> None:
        self.ring, self.number, self.folder = ring, number, folder
        self.start = torch.zeros_like(ring.written)  # rows before these are in full pieces
        self.pieces: list[_PieceFile] = []
        self._next = 0  # number of the next piece

    def is_full(self) -> bool:
        """Tell whether there are rows for a full piece, without the last one, whose episode append() may truncate."""
        self.start = torch.maximum(self.start, self.ring.oldest())
        return int((self.ring.written - 1 - self.start).max()) >= self.ring.steps_per_piece

    def cut(self) -> tuple[_PieceFile, Piece]:
        """Cut off the next piece. Returns it and its rows."""
        end = torch.maximum(self.ring.written - 1, self.start)
        stop = torch.minimum(self.start + self.ring.steps_per_piece, end)
        rows = _on_host(self.ring.read_rows(self.start, stop))
        piece = _PieceFile(piece_file(self.number, self._next), stop, self.folder)
        self.pieces.append(piece)
        self.start, self._next = stop, self._next + 1
        return piece, rows

    def write(self, piece: _PieceFile, rows: Piece) -> None:
        """Write a piece to the disk."""
        with writing(self.folder, "the replay buffer"):
            self.folder.mkdir(exist_ok=True)
            piece.sha256 = tensor_file.write(piece.path(0), rows)

    def overwritten(self) -> list[_PieceFile]:
        """Remove and return pieces whose rows have all been overwritten in the ring: no later checkpoint needs them."""
        oldest = self.ring.oldest()
        old = [piece for piece in self.pieces if bool((piece.stop <= oldest).all())]
        self.pieces = [piece for piece in self.pieces if piece not in old]
        return old

    def adopt(self, folder: Path, digests: Mapping[str, str]) -> list[tuple[Path, Path]]:
        """Take over the full pieces of a checkpoint. Returns the path of each, and its target for link()."""
        links, last = [], (self.ring.written - 1).clamp(min=0)
        for path in sorted(folder.glob(f"{ring_name(self.number)}[0-9]*.safetensors")):
            stop = tensor_file.read(path, mapped=0)["stop"].to(self.start.device)
            if (stop > last).any():  # not a full piece: further rows follow, or may be truncated
                break
            piece = _PieceFile(path.name, stop, self.folder, digests[path.name])
            links.append((path, piece.path(0)))
            self.pieces.append(piece)
            self.start, self._next = stop, int(path.name.split(".")[1]) + 1
        return links

    def link(self, links: list[tuple[Path, Path]]) -> None:
        """Link files to other paths."""
        with writing(self.folder, "the replay buffer"):
            self.folder.mkdir(exist_ok=True)
            for path, target in links:
                link(path, target)


def rows_in(state: State) -> Iterator[Rows]:
    """Iterate over the rows of replay buffers in a tree, in a checkpoint's order."""
    if isinstance(state, Rows):
        yield state
    elif isinstance(state, Mapping):
        for member in state.values():
            yield from rows_in(member)
    elif isinstance(state, list | tuple):
        for member in state:
            yield from rows_in(member)


def link(path: Path, target: Path) -> None:
    """Make a hard link to a file, or a copy if the file system has no links."""
    try:
        os.link(path, target)
    except OSError:
        tensor_file.copy(path, target)


def _on_host(piece: Piece) -> Piece:
    return {name: x.cpu() for name, x in piece.items()}
