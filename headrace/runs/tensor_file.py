"""Write and read safetensors files tensor by tensor, so that saving needs no additional memory."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from headrace.core.writing import sync

PIECE = 2**24  # bytes that are copied and written at once
MAPPED = 2**24  # bytes from which on a tensor is mapped into memory instead of read
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write tensors, sync the file to the disk, and return its SHA-256. Raises TypeError for an unsupported dtype."""
    # in the safetensors library's order, so that every tensor is aligned
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, end = {}, 0
    for name in order:
        tensor, begin = tensors[name], end
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{name} has the dtype {tensor.dtype}: a checkpoint holds {', '.join(map(str, DTYPES))}")
        end += tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    sha256 = hashlib.sha256()
    with open(path, "wb") as file:
        pieces: Iterator[bytes | memoryview] = chain.from_iterable(_pieces(tensors[name]) for name in order)
        for piece in chain((struct.pack("<Q", len(text)), text), pieces):
            file.write(piece)
            sha256.update(piece)
        file.flush()
        sync(file.fileno())
    return sha256.hexdigest()


def _pieces(tensor: Tensor) -> Iterator[memoryview]:
    """Iterate over the bytes of a tensor in row-major order. If a copy is needed, it is made a piece at a time."""
    rows = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()
    each = rows[:1].numel() * rows.element_size()
    for part in rows.split(max(1, PIECE // max(each, 1))):
        whole = part.cpu().contiguous()
        # with strides: view(-1) keeps the arbitrary stride of a single entry, which prevents a view as bytes
        yield whole.as_strided((whole.numel(),), (1,), whole.storage_offset()).view(torch.uint8).numpy().data


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy(source: Path, target: Path) -> str:
    """Copy a file, sync the copy to the disk, and return its SHA-256."""
    sha256 = hashlib.sha256()
    with open(source, "rb") as old, open(target, "wb") as new:
        while part := old.read(PIECE):
            new.write(part)
            sha256.update(part)
        new.flush()
        sync(new.fileno())
    return sha256.hexdigest()


def read(path: Path, mapped: int = MAPPED) -> dict[str, Tensor]:
    """Read the tensors of a file to the CPU. Tensors of `mapped` bytes or more are read when they are used.

    Raises ValueError for a wrong file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    return {name: x if x.nbytes >= mapped else x.clone() for name, x in tensors.items()}
