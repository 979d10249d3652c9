"""Checkpoints: folders of safetensors and one JSON manifest with a SHA-256 of every file. No pickle anywhere.

A checkpoint is written to a temporary folder, synced to the disk and renamed; where the file system cannot rename a
folder, it is copied. The checkpoint that it replaces stays as NAME.previous, which is read if NAME is damaged or not
whole. The tensors of a nested state are in
NAME.safetensors (see headrace.runs.tensor_file), its numbers, strings and structure in the manifest. Rows of replay
buffers are in files of their own, replay_0.*.safetensors, which checkpoints of a run share (see
headrace.runs.replay_files).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
import struct
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from headrace.core.packages import commit, installed
from headrace.core.text import printable
from headrace.core.types import Json, StateDict
from headrace.core.writing import check_file, sync, writing
from headrace.data.pieces import Rows
from headrace.data.rollout import Group
from headrace.runs import tensor_file
from headrace.runs.moving import move, replacing_folder

State: TypeAlias = Any  # a tree of mappings, lists, tuples of tensors, arrays, Rows of a replay, numbers, strings, None
Files: TypeAlias = dict[str, Callable[[Path], str]]  # by name: writes and syncs a file, returns its SHA-256
FORMAT = 2  # raised with each change of the manifest; earlier formats are read with defaults for missing entries
MANIFEST = "manifest.json"
LAST, BEST = "last", "best"  # checkpoints of a run
# exceptions of reading contents that this code does not expect
WRONG: tuple[type[Exception], ...] = (KeyError, IndexError, TypeError, AttributeError, RecursionError, struct.error)
# exceptions of making objects from undamaged contents of another version
UNFIT: tuple[type[Exception], ...] = (*WRONG, ImportError, RuntimeError, ValueError)


class DamagedCheckpoint(RuntimeError):
    """A file of a checkpoint is missing or was changed."""


@contextmanager
def reading(path: Path, wrong: str, *others: type[Exception]) -> Iterator[None]:
    """Raise DamagedCheckpoint if a file's contents are not what this code expects. others: more such exceptions."""
    try:
        yield
    except (*WRONG, *others) as error:
        raise DamagedCheckpoint(_damage(path, f"{wrong} ({type(error).__name__}: {error})")) from error


class OtherVersion(ValueError):
    """A whole checkpoint that this version cannot use, because another version has written it."""


@contextmanager
def using(folder: Path, manifest: Json, wrong: str) -> Iterator[None]:
    """Raise OtherVersion if the objects of a manifest cannot be made and another version or commit has written it,
    DamagedCheckpoint if this one has."""
    by, path = written_by(manifest), folder / MANIFEST
    if by == written_by({"versions": versions()}):
        with reading(path, wrong):
            yield
        return
    try:
        yield
    except (DamagedCheckpoint, OtherVersion):
        raise
    except UNFIT as error:
        raise other_version(folder, manifest, f"{wrong} ({type(error).__name__}: {error})") from error


def other_version(folder: Path, manifest: Json, why: str) -> OtherVersion:
    """Make the error that names the version of a checkpoint, and the remedy."""
    mine = written_by({"versions": versions()})
    return OtherVersion(f"{folder} is of {written_by(manifest)}, and cannot be used by this {mine}: {why}")


def written_by(manifest: Json) -> str:
    """The version and commit of Headrace that has written a checkpoint."""
    found = manifest.get("versions")
    found = found if isinstance(found, dict) else {}
    commit_of = found.get("commit", "an earlier commit" if manifest.get("format") == 1 else "")
    return f"headrace {found.get('headrace', 'unknown')}" + (f" ({commit_of})" if commit_of else "")


class Contents(NamedTuple):
    """The contents of a checkpoint."""

    structure: StateDict  # the states in JSON's types
    files: Files


def contents(states: StateDict, keep: Callable[[int, Rows], Files] | None = None) -> Contents:
    """Prepare states for save(): name -> nested dicts, lists and tuples of tensors, arrays, numbers, strings, None.

    keep: returns the files of the rows of a replay buffer, by its number in order of occurrence. With keep the contents
    are a copy, which may be written while the states change.
    Raises TypeError for anything else in a state.
    """
    files: Files = {}
    structure, rows = {}, list[Rows]()
    for name, state in states.items():
        tensors: dict[str, Tensor] = {}
        structure[name] = _encode(state, name, tensors, rows)
        if keep:
            tensors = {path: x.detach().to("cpu", copy=True) for path, x in tensors.items()}
        files[f"{name}.safetensors"] = partial(tensor_file.write, tensors=tensors)
    for number, each in enumerate(rows):
        files |= (keep or _pieces)(number, each)
    return Contents(structure, files)


def _pieces(number: int, rows: Rows) -> Files:
    def write(path: Path, index: int) -> str:
        return tensor_file.write(path, rows[index])

    return {piece_file(number, index): partial(write, index=index) for index in range(len(rows))}


def piece_file(replay: int, piece: int) -> str:
    """The name of the file of a piece of a replay buffer. Names sort in the order of the pieces."""
    return f"{ring_name(replay)}{piece:09d}.safetensors"


def ring_name(replay: int) -> str:
    """The beginning of the names of a replay buffer's files."""
    return f"replay_{replay}."


def save(folder: str | Path, states: StateDict | Contents, keep_previous: bool = True, **facts: State) -> None:
    """Write a checkpoint to `folder`. An earlier one there stays as `folder`.previous.

    states: see contents(). keep_previous: False removes the earlier one. facts: other entries of the manifest, in
    JSON's types.
    Raises TypeError for what cannot be saved; FileExistsError for a folder of other files; OSError, naming the folder,
    where it cannot be written.
    """
    folder = Path(folder)
    if folder.is_dir() and not _is_checkpoint(folder) and any(folder.iterdir()):
        raise FileExistsError(
            f"{folder.resolve()} holds other files, which a checkpoint would replace: give a new folder"
        )
    structure, writers = states if isinstance(states, Contents) else contents(states)
    with writing(folder, "the checkpoint"), replacing_folder(folder, previous(folder), keep_previous) as fresh:
        files = {file: write(fresh / file) for file, write in writers.items()}
        body = {"format": FORMAT, "versions": versions(), **facts, "files": files, "states": structure}
        write_file(fresh / MANIFEST, json.dumps({"sha256": _digest(body), **body}, indent=1).encode())


def copied(source: Path, target: Path, **facts: State) -> None:
    """Copy a checkpoint to `target`, with other entries of the manifest. Replaces an earlier one there.

    Raises DamagedCheckpoint for a damaged source, OSError if the copy cannot be written."""
    body = {**read_manifest(source), **facts}
    with writing(target, "the checkpoint"), replacing_folder(target, previous(target), False) as fresh:
        for file, digest in body["files"].items():
            if tensor_file.copy(source / file, fresh / file) != digest:
                raise DamagedCheckpoint(_damage(source / file, "its checksum does not match"))
        write_file(fresh / MANIFEST, json.dumps({"sha256": _digest(body), **body}, indent=1).encode())


def read_manifest(folder: str | Path) -> Json:
    """The manifest of a checkpoint. Raises DamagedCheckpoint, FileNotFoundError."""
    path = Path(folder) / MANIFEST
    if not path.exists():
        if _is_checkpoint(path.parent):
            raise DamagedCheckpoint(_damage(path, "it is missing"))
        raise FileNotFoundError(f"{folder} is no checkpoint: it has no {MANIFEST}")
    with reading(path, "it is not valid JSON, or lacks its checksum", ValueError):
        manifest = json.loads(check_file(path).read_bytes())
        digest = manifest.pop("sha256")
        matches = _digest(manifest) == digest
    if not matches:
        raise DamagedCheckpoint(_damage(path, "its checksum does not match"))
    number = manifest.get("format")
    if not isinstance(number, int) or not 1 <= number <= FORMAT:
        by = f"{written_by(manifest)} has written it, and formats up to {FORMAT} are read here: use that version"
        raise OtherVersion(f"{path} has format {number}: {by}")
    if not all(isinstance(manifest.get(name), dict) for name in ("files", "states")):
        raise DamagedCheckpoint(_damage(path, "it lacks its files or states"))
    return manifest


def load(folder: str | Path, name: str) -> State:
    """Read the state saved under `name`, with tensors on the CPU. Raises DamagedCheckpoint, FileNotFoundError."""
    return _state(Path(folder), read_manifest(folder), name)


def _state(folder: Path, manifest: Json, name: str) -> State:
    if name not in manifest["states"]:
        raise FileNotFoundError(f"the checkpoint {folder} holds {', '.join(manifest['states'])}, but no {name!r}")
    path = _whole(folder, manifest, f"{name}.safetensors")

    def rows(ring: str) -> list[dict[str, Tensor]]:
        files = sorted(file for file in manifest["files"] if file.startswith(ring))
        return [tensor_file.read(_whole(folder, manifest, file), mapped=0) for file in files]

    with reading(path, "it is not what the manifest describes", ValueError):
        return _decode(manifest["states"][name], tensor_file.read(path), rows)


def _whole(folder: Path, manifest: Json, file: str) -> Path:
    """The path of a file of a checkpoint. Raises DamagedCheckpoint, naming the file, if it was changed."""
    path = folder / file
    if not path.exists():
        raise DamagedCheckpoint(_damage(path, "it is missing"))
    if tensor_file.digest(check_file(path)) != manifest["files"].get(file):
        raise DamagedCheckpoint(_damage(path, "its checksum does not match"))
    return path


def read(path: str | Path, *names: str, state: str = "") -> tuple[Path, Json, State]:
    """Read the first of the checkpoints `names` in a run's folder, or `path` itself if it is a checkpoint. Returns the
    folder, the manifest and the state, which is None if there is none of that name.

    If a checkpoint is damaged, the one before it is used, with a warning. It is used without one if a crash happened
    between two renames, so that the newer one is not there.
    Raises FileNotFoundError, and DamagedCheckpoint if all are damaged.
    """
    path, damage = Path(path), None
    path = path if path.name.strip(".") else path.resolve()  # "." and ".." have no name to which to add .previous
    folders = [path, *(path / name for name in names)]
    for candidate in (candidate for folder in folders for candidate in (folder, previous(folder))):
        if not _is_checkpoint(candidate):
            continue
        try:
            manifest = read_manifest(candidate)
            found = _state(candidate, manifest, state) if state in manifest["states"] else None
        except DamagedCheckpoint as error:
            damage = damage or error
            continue
        if damage:
            warnings.warn(printable(f"{damage}. Taking {candidate}"), stacklevel=2)
        return candidate, manifest, found
    if damage:
        raise damage
    if not path.exists():
        raise FileNotFoundError(f"there is no file or folder {path}")
    raise FileNotFoundError(f"{path} is neither a checkpoint nor a run with one ({', '.join(names)})")


def _is_checkpoint(folder: Path) -> bool:
    return (folder / MANIFEST).exists() or any(folder.glob("*.safetensors"))


def clean_up(folder: Path) -> None:
    """Remove files that killed processes have left in a run's folder. No other process may be writing to it."""
    for path in folder.glob(".*.*"):
        if re.fullmatch(r"\.(last|best|replay|step_\d+)\.\w+", path.name):
            shutil.rmtree(path, ignore_errors=True)


def set_aside(taken: Path, folder: Path) -> None:
    """Rename a damaged `folder` to NAME.damaged if `taken` was read instead. The next save would otherwise move the
    damaged folder over `taken`."""
    if taken == previous(folder) and folder.exists():
        damaged = folder.with_name(folder.name + ".damaged")
        shutil.rmtree(damaged, ignore_errors=True)
        move(folder, damaged)


def previous(folder: Path) -> Path:
    """The path of the checkpoint before the one in `folder`."""
    return folder.with_name(folder.name + ".previous")


def versions() -> dict[str, str]:
    """Versions and the kind of processor, on which bit-equal results depend."""
    from headrace.kernels.runtime.native import processor

    return {
        "headrace": installed("headrace", otherwise="unknown"),
        "commit": commit(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "processor": processor()[0],
    }


def other_versions(manifest: Json) -> str:
    """The versions and processor of a checkpoint, as far as results depend on them; empty if they are the same here."""
    before, now = manifest.get("versions", {}), versions()
    found = [by] if (by := written_by(manifest)) != written_by({"versions": now}) else []
    others = [name for name in now if name not in ("headrace", "commit") and before.get(name, now[name]) != now[name]]
    return ", ".join([*found, *(f"{name} {before[name]}" for name in others)])


def write_file(path: Path, data: bytes) -> None:
    """Write one file and sync it to the disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        sync(file.fileno())


def _encode(value: State, path: str, tensors: dict[str, Tensor], rows: list[Rows]) -> State:
    """Convert `value` to JSON's types. Its tensors are added to `tensors`, rows of replay buffers to `rows`.

    A value that JSON does not have becomes an object with one key "$kind".
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        array = torch.from_numpy(np.array(value, value.dtype.newbyteorder("="), order="C"))
        kind = "$array" if isinstance(value, np.ndarray) else "$scalar"
        return {kind: _encode(array, path, tensors, rows)["$tensor"]}
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if isinstance(value, Tensor):
        name = path if path not in tensors else f"{path}#{len(tensors)}"
        tensors[name] = value
        return {"$tensor": name}
    if isinstance(value, Rows):
        rows.append(value)
        return {"$rows": ring_name(len(rows) - 1)}
    if isinstance(value, Group):
        return {"$group": _encode(dict(value), path, tensors, rows)}
    if isinstance(value, Mapping):
        items = [(key, _encode(member, f"{path}.{key}", tensors, rows)) for key, member in value.items()]
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return dict(items)
        return {"$items": [[_encode(key, f"{path}.key", tensors, rows), member] for key, member in items]}
    if isinstance(value, list | tuple):
        items = [_encode(member, f"{path}.{i}", tensors, rows) for i, member in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    raise TypeError(f"{path} is a {type(value).__name__}: a checkpoint holds tensors, arrays, numbers, strings, None")


def _decode(value: State, tensors: Mapping[str, Tensor], rows: Callable[[str], list[dict[str, Tensor]]]) -> State:
    if isinstance(value, list):
        return [_decode(member, tensors, rows) for member in value]
    if not isinstance(value, dict):
        return value
    kind: str = next(iter(value), "")
    inner: State = value.get(kind)
    match kind:
        case "$float":
            return struct.unpack(">d", bytes.fromhex(inner))[0]
        case "$tensor":
            return tensors[inner]
        case "$array" | "$scalar":
            array = tensors[inner].clone().numpy()
            return array if kind == "$array" else array[()]
        case "$rows":
            return rows(inner)
        case "$group":
            return Group(_decode(inner, tensors, rows))
        case "$items":
            return {_decode(key, tensors, rows): _decode(member, tensors, rows) for key, member in inner}
        case "$tuple":
            return tuple(_decode(member, tensors, rows) for member in inner)
    return {key: _decode(member, tensors, rows) for key, member in value.items()}


def _digest(body: Json) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _damage(path: Path, what: str) -> str:
    before = previous(path.parent)
    earlier = f"the checkpoint before it is in {before}" if before.exists() else "there is no earlier one beside it"
    return f"{path} is damaged: {what}; {earlier}"
