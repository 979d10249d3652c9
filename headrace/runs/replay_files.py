"""The rows of a run's replay buffers on the disk: written once, as they are collected, and shared by its checkpoints.

Rows go into pieces, files of a few megabytes. A piece that is full is written while the training goes on, to a folder
that ends with the process; checkpoints have hard links to it, so that each can be copied and deleted alone. What
follows the last full piece is written again with each checkpoint. A piece that a checkpoint has and the next one in
its place too is on the disk twice, so that no damage is to both.
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

EVERY = 0.1  # s between two looks for full pieces
WAITING = 2  # pieces that wait for the disk; further rows stay in the ring until then, or until they are overwritten


class ReplayFiles:
    """Writes the rows of replay buffers in pieces.

    folder: the run's. state: a tree with the Rows of each buffer, whose ring is followed from then on.
    """

    def __init__(self, folder: Path, saver: Saver, state: State) -> None:
        self.folder = folder / f".replay.{os.getpid()}"
        self.saver = saver
        self.rings = [_Ring(rows.ring, number, self.folder) for number, rows in enumerate(rows_in(state))]
        self._copy = 0  # which copy of the pieces the next checkpoint has
        self._looked = 0.0
        shutil.rmtree(self.folder, ignore_errors=True)

    def adopt(self, folder: Path) -> None:
        """Continue from a checkpoint, of which the buffers have been loaded: its full pieces are not written again."""
        digests = checkpoint.read_manifest(folder)["files"]
        for ring in self.rings:
            self.saver.submit(ring.link, ring.adopt(folder, digests))
        self._copy = 1  # the next checkpoint may replace that one, which then stays beside it

    def follow(self) -> None:
        """Hand full pieces over to be written, where the disk is ready for them."""
        if monotonic() - self._looked < EVERY:
            return
        self._looked = monotonic()
        with torch_threads(1):  # several gain nothing in a copy, and wait for each other where a core is taken
            for ring in self.rings:
                while self.saver.waiting < WAITING and ring.is_full():
                    self.saver.submit(ring.write, *ring.cut())

    def keep(self, number: int, rows: Rows) -> Files:
        """The files of a checkpoint that is made now, for replay buffer `number`."""
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
        """A checkpoint has been made that the next one keeps as the one before: let that have the other copies."""
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
        """Where a copy of the file is, 0 or 1."""
        return self.folder / f"{self.name}.{copy}"

    def link(self, copy: int, target: Path) -> str:
        """Make a copy of the file appear under `target` too; give its SHA-256."""
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
        """Whether there are rows for a full piece. The last row is none: append() may still truncate its episode."""
        self.start = torch.maximum(self.start, self.ring.oldest())
        return int((self.ring.written - 1 - self.start).max()) >= self.ring.steps_per_piece

    def cut(self) -> tuple[_PieceFile, Piece]:
        """The next piece, and its rows."""
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
        """Pieces whose rows have all been overwritten in the ring: no checkpoint from now on has them."""
        oldest = self.ring.oldest()
        old = [piece for piece in self.pieces if bool((piece.stop <= oldest).all())]
        self.pieces = [piece for piece in self.pieces if piece not in old]
        return old

    def adopt(self, folder: Path, digests: Mapping[str, str]) -> list[tuple[Path, Path]]:
        """Take over the full pieces of a checkpoint. Returns the path of each, and where link() has to put it."""
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
        """Make files appear under other paths."""
        with writing(self.folder, "the replay buffer"):
            self.folder.mkdir(exist_ok=True)
            for path, target in links:
                link(path, target)


def rows_in(state: State) -> Iterator[Rows]:
    """The rows of replay buffers in a tree, in the order in which a checkpoint has them."""
    if isinstance(state, Rows):
        yield state
    elif isinstance(state, Mapping):
        for member in state.values():
            yield from rows_in(member)
    elif isinstance(state, list | tuple):
        for member in state:
            yield from rows_in(member)


def link(path: Path, target: Path) -> None:
    """Make a file appear under another path: as a hard link, or as a copy where the file system has none."""
    try:
        os.link(path, target)
    except OSError:
        tensor_file.copy(path, target)


def _on_host(piece: Piece) -> Piece:
    return {name: x.cpu() for name, x in piece.items()}
