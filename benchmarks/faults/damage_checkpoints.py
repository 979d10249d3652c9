"""Damaged checkpoints: every read gives what was saved, or the checkpoint before it and a warning, or an error that
names the damage; never anything else.

    python -m benchmarks.faults.damage_checkpoints     # 10,000 damages, about five minutes
"""

from __future__ import annotations

import copy
import hashlib
import json
import random
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.faults import reliability

FORGED_EVERY = 5  # one in five is a manifest whose checksum fits
# of a manifest that somebody made up: it is damaged, of another format, or lacks a state
REFUSALS = ("DamagedCheckpoint", "ValueError", "FileNotFoundError")
ODD = (
    None,
    True,
    -1,
    2**70,
    1e308,
    "",
    "$tensor",
    "policy#1",
    [],
    {},
    [[]],
    {"$tensor": "x"},
    {"$items": 3},
    {"$float": "zz"},
)


def flip(data: bytes, chance: random.Random) -> bytes:
    """One bit is another."""
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << chance.randrange(8)]) + data[place + 1 :]


def cut(data: bytes, chance: random.Random) -> bytes:
    """The end is missing."""
    return data[: chance.randrange(len(data))]


def blank(data: bytes, chance: random.Random) -> bytes:
    """A block is zeros, as after a crash of a machine."""
    begin = chance.randrange(len(data))
    size = min(chance.choice((16, 512, 4096)), len(data) - begin)
    return data[:begin] + bytes(size) + data[begin + size :]


def lengthened(data: bytes, chance: random.Random) -> bytes:
    """Append bytes that do not belong there."""
    return data + chance.randbytes(chance.choice((1, 100)))


def moved(data: bytes, chance: random.Random) -> bytes:
    """Two halves have changed places."""
    place = chance.randrange(1, len(data))
    return data[place:] + data[:place]


KINDS: tuple[Callable[[bytes, random.Random], bytes], ...] = (flip, cut, blank, lengthened, moved)


def forge(manifest: bytes, chance: random.Random) -> bytes:
    """A manifest of which one entry, at any depth, is another or missing, with a checksum that fits."""
    body = json.loads(manifest)
    del body["sha256"]
    node: Any = body
    while True:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key = chance.choice(list(keys))
        if isinstance(node[key], dict | list) and node[key] and chance.random() < 0.7:
            node = node[key]
            continue
        break
    if chance.random() < 0.3:
        del node[key]
    else:
        node[key] = copy.deepcopy(chance.choice(ODD))
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({"sha256": digest, **body}).encode()


def same(a: Any, b: Any) -> bool:
    """Tell whether two states are equal, tensors bit for bit."""
    import torch

    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.numpy().tobytes() == b.numpy().tobytes()
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and repr(a) == repr(b)


class Victim:
    """A run's checkpoints, whole, and what was saved in them."""

    def __init__(self, folder: Path) -> None:
        import headrace as hr
        from headrace.data import pieces
        from headrace.runs import checkpoint, recorder

        recorder.SAVE_EVERY, recorder.SAVE_SHARE, pieces.ROWS = 0.0, 1e9, 64
        options = {"num_envs": 4, "hidden": (8,), "learning_starts": 100, "buffer_size": 800, "progress": "none"}
        self.run = hr.train("sac", "Pendulum-v1", total_steps=400, log_folder=str(folder), **options).path
        self.read = checkpoint.read
        self.states = {
            (place, state): checkpoint.load(self.run / place, state)
            for place in ("last", "last.previous")
            for state in ("policy", "training")
        }
        self.contents = {path: path.read_bytes() for path in (self.run / "last").iterdir()}

    def outcome(self, path: Path, damaged: bytes | None, state: str, earlier: bool) -> str:
        """Read a state while a file holds something else (None: is missing), and name the outcome."""
        previous, hidden = self.run / "last.previous", self.run / "hidden"
        if not earlier:
            previous.rename(hidden)
        path.unlink() if damaged is None else path.write_bytes(damaged)
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                folder, _, found = self.read(self.run, "last", state=state)
            if folder == self.run / "last" and same(found, self.states["last", state]):
                return "as saved"
            if folder == previous and said and same(found, self.states["last.previous", state]):
                return "the one before, with a warning"
            return "something else"
        except Exception as error:
            return type(error).__name__
        finally:
            path.write_bytes(self.contents[path])
            if not earlier:
                hidden.rename(previous)


def main() -> None:
    """Damage, read, and count."""
    flags = common.parser(__doc__ or "")
    flags.add_argument("--damages", type=int, default=10_000, help="how many files are damaged")
    flags.add_argument("--seed", type=int, default=None, help="of the damages; by default each run draws others")
    options = flags.parse_args()
    damages = 50 if options.quick else options.damages
    chance = random.Random(options.seed)
    names = {True: "forged manifests read", False: "damaged checkpoints read"}
    rows = {forged: reliability.empty(name) for forged, name in names.items()}
    with tempfile.TemporaryDirectory() as name:
        victim = Victim(Path(name))
        files = sorted(victim.contents)
        manifest = next(path for path in files if path.name == "manifest.json")
        for number in range(damages):
            forged = number % FORGED_EVERY == 0
            earlier = not forged and chance.random() < 0.5
            path = manifest if forged else chance.choice(files)
            kind = forge if forged else chance.choice((*KINDS, None))
            damaged = kind and kind(victim.contents[path], chance)
            state = chance.choice(("policy", "training"))
            outcome = victim.outcome(path, damaged, state, earlier)
            wrong = "" if fits(outcome, forged, earlier) else outcome
            what = kind.__name__ if kind else "removed"
            attempt = f"{path.name}, {what}, {state}, damage {number}"
            reliability.count(rows[forged], attempt, wrong, outcomes=outcome)
    for row in rows.values():
        print(row["fault"], row["outcomes"])
    reliability.finish("damage_checkpoints", list(rows.values()), options.results)


def fits(outcome: str, forged: bool, earlier: bool) -> bool:
    """Tell whether an outcome is as it should be. A forged state is another one; blanks in a manifest may change."""
    if forged:
        return outcome in (*REFUSALS, "as saved", "something else")
    return outcome in ("as saved", "the one before, with a warning" if earlier else "DamagedCheckpoint")


if __name__ == "__main__":
    main()
