"""Checkpoints: folders of safetensors and one JSON manifest with a SHA-256 of every file. No pickle anywhere.

A checkpoint is written whole or not at all: to a temporary folder, synced to the disk and renamed; the one it replaces
stays as NAME.previous. The tensors of a nested state are in NAME.safetensors; its numbers, strings and structure in the
manifest.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from headrace.core.packages import installed
from headrace.core.types import Json, StateDict
from headrace.data.rollout import Group
from headrace.runs.logs import writing

State: TypeAlias = Any  # a tree of mappings, lists and tuples of tensors, numbers, strings and None
FORMAT = 1
MANIFEST = "manifest.json"


class DamagedCheckpoint(RuntimeError):
    """A file of a checkpoint is missing or was changed."""


def save(folder: str | Path, states: StateDict, **facts: State) -> None:
    """Write a checkpoint to `folder`, replacing one that is there, which stays as `folder`.previous.

    states: name -> nested dicts, lists and tuples of tensors, numbers, strings and None; NAME.safetensors each.
    facts: other entries of the manifest, in JSON's types.
    Raises TypeError for anything else in a state; OSError, naming the folder, where it cannot be written.
    """
    folder = Path(folder)
    contents, structure = {}, {}
    for name, state in states.items():
        tensors: dict[str, Tensor] = {}
        structure[name] = _encode(state, name, tensors)
        contents[f"{name}.safetensors"] = _to_bytes(tensors)
    body = {
        "format": FORMAT,
        "versions": versions(),
        **facts,
        "files": {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()},
        "states": structure,
    }
    contents[MANIFEST] = json.dumps({"sha256": _digest(body), **body}, indent=1).encode()
    with writing(folder, "the checkpoint"):
        _replace_folder(folder, contents)


def read_manifest(folder: str | Path) -> Json:
    """The manifest of a checkpoint. Raises DamagedCheckpoint, FileNotFoundError."""
    path = Path(folder) / MANIFEST
    if not path.exists():
        raise FileNotFoundError(f"{folder} is no checkpoint: it has no {MANIFEST}")
    try:
        manifest = json.loads(path.read_bytes())
        digest = manifest.pop("sha256")
    except (ValueError, KeyError, AttributeError) as error:
        raise DamagedCheckpoint(_damage(path, "it is not valid JSON, or lacks its checksum")) from error
    if _digest(manifest) != digest:
        raise DamagedCheckpoint(_damage(path, "its checksum does not match"))
    if manifest["format"] != FORMAT:
        raise ValueError(f"{path} has format {manifest['format']}, this version of headrace reads format {FORMAT}")
    return manifest


def load(folder: str | Path, name: str) -> State:
    """The state saved under `name`, tensors on the CPU. Raises DamagedCheckpoint, FileNotFoundError."""
    from safetensors.torch import load as from_bytes

    manifest = read_manifest(folder)
    if name not in manifest["states"]:
        raise FileNotFoundError(f"the checkpoint {folder} holds {', '.join(manifest['states'])}, but no {name!r}")
    path = Path(folder) / f"{name}.safetensors"
    if not path.exists():
        raise DamagedCheckpoint(_damage(path, "it is missing"))
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != manifest["files"][path.name]:
        raise DamagedCheckpoint(_damage(path, "its checksum does not match"))
    return _decode(manifest["states"][name], from_bytes(data))


def find(path: str | Path, *names: str) -> Path:
    """The first of the checkpoints `names` in a run's folder, or `path` itself where it is one.

    Where a crash fell between two renames, the one before stands in. Raises FileNotFoundError.
    """
    path = Path(path)
    for folder in (path, *(path / name for name in names)):
        for candidate in (folder, previous(folder)):
            if (candidate / MANIFEST).exists():
                return candidate
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}")
    raise FileNotFoundError(f"{path} is neither a checkpoint nor a run with one ({', '.join(names)})")


def previous(folder: Path) -> Path:
    """Where the checkpoint before the one in `folder` is kept."""
    return folder.with_name(folder.name + ".previous")


def versions() -> dict[str, str]:
    """Versions on which bit-equal results depend."""
    return {
        "headrace": installed("headrace", otherwise="unknown"),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
    }


def write_file(path: Path, data: bytes) -> None:
    """Write one file and sync it to the disk."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _replace_folder(folder: Path, contents: Mapping[str, bytes]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        for name, data in contents.items():
            write_file(fresh / name, data)
        _sync_folder(fresh)
        if folder.exists():
            shutil.rmtree(previous(folder), ignore_errors=True)
            os.replace(folder, previous(folder))
        os.replace(fresh, folder)
        _sync_folder(folder.parent)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open folders, and needs no such sync
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _encode(value: State, path: str, tensors: dict[str, Tensor]) -> State:
    """`value` in JSON's types; its tensors go to `tensors`. What JSON cannot say is an object with one key "$kind"."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    if isinstance(value, Tensor):
        name = path if path not in tensors else f"{path}#{len(tensors)}"
        tensors[name] = value
        return {"$tensor": name}
    if isinstance(value, Group):
        return {"$group": _encode(dict(value), path, tensors)}
    if isinstance(value, Mapping):
        items = [(key, _encode(member, f"{path}.{key}", tensors)) for key, member in value.items()]
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return dict(items)
        return {"$items": [[_encode(key, f"{path}.key", tensors), member] for key, member in items]}
    if isinstance(value, list | tuple):
        items = [_encode(member, f"{path}.{i}", tensors) for i, member in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    raise TypeError(f"{path} is a {type(value).__name__}: a checkpoint holds tensors, numbers, strings and None")


def _decode(value: State, tensors: Mapping[str, Tensor]) -> State:
    if isinstance(value, list):
        return [_decode(member, tensors) for member in value]
    if not isinstance(value, dict):
        return value
    kind: str = next(iter(value), "")
    inner: State = value.get(kind)
    match kind:
        case "$float":
            return struct.unpack(">d", bytes.fromhex(inner))[0]
        case "$tensor":
            return tensors[inner]
        case "$group":
            return Group(_decode(inner, tensors))
        case "$items":
            return {_decode(key, tensors): _decode(member, tensors) for key, member in inner}
        case "$tuple":
            return tuple(_decode(member, tensors) for member in inner)
    return {key: _decode(member, tensors) for key, member in value.items()}


def _to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    from safetensors.torch import save as to_bytes

    # copies, because safetensors takes neither views nor two tensors of one memory
    return to_bytes({name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()})


def _digest(body: Json) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _damage(path: Path, what: str) -> str:
    before = previous(path.parent)
    earlier = f"the checkpoint before it is in {before}" if before.exists() else "there is no earlier one beside it"
    return f"{path} is damaged: {what}; {earlier}"
