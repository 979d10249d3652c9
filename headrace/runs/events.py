"""TensorBoard's event files, written without its library: importing that takes longer than a short training.

A file is a row of records, each with its length and CRC-32C sums; a record is an Event of TensorFlow's event.proto.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

VERSION = b"brain.Event:2"
START = b"\x08\x01"  # SessionLog.status


class EventFile:
    """One file of scalars in a folder. purge: a step from which on TensorBoard forgets what earlier files say."""

    def __init__(self, folder: Path, purge: int | None = None) -> None:
        name = f"events.out.tfevents.{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}"
        self.path = folder / name
        self._purge, self._begun = purge, False

    def write(self, rows: Sequence[tuple[float, int, Mapping[str, float]]]) -> None:
        """Append rows: time in seconds since 1970, step, and scalars by tag. Raises OSError."""
        events = [_event(moment, step, 5, _summary(tags)) for moment, step, tags in rows]
        if not self._begun:
            self._begun, now = True, time.time()
            begin = [_event(now, self._purge or 0, 3, VERSION)]
            if self._purge is not None:
                begin.append(_event(now, self._purge, 7, START))
            events = begin + events
        with open(self.path, "ab") as file:
            file.write(b"".join(map(_record, events)))


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _event(moment: float, step: int, field: int, content: bytes) -> bytes:
    """An Event whose `field` (3: version, 5: summary, 7: session_log) holds bytes."""
    return b"\x09" + struct.pack("<d", moment) + b"\x10" + _varint(step) + _bytes(field, content)


def _summary(tags: Mapping[str, float]) -> bytes:
    return b"".join(_bytes(1, _bytes(1, tag.encode()) + b"\x15" + _float(x)) for tag, x in tags.items())


def _float(number: float) -> bytes:
    try:
        return struct.pack("<f", number)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, number))


def _bytes(field: int, content: bytes) -> bytes:
    """A field of protocol buffers that holds bytes: its number and type 2, its length, the bytes."""
    return bytes([field << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _checksum(data: bytes) -> bytes:
    """CRC-32C, rotated and shifted as TensorFlow's records have it."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@cache
def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table
