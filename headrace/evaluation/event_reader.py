"""Read scalars and texts from TensorBoard's event files.

A record is the length of its message, a checksum, the message (an Event), and a checksum.
"""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.core.text import printable
from headrace.core.writing import check_file

HEAD, TAIL = 12, 4  # bytes of a record before and after its message


@dataclass
class Scalars:
    """Contents of event files, in the order of their times."""

    began: float  # seconds since 1970 of the first event
    scalars: dict[str, list[tuple[int, float, float]]] = field(default_factory=dict)  # tag -> step, seconds, value
    texts: dict[str, str] = field(default_factory=dict)  # by tag: the last one


def read_events(paths: list[Path]) -> Scalars:
    """Read event files. Times are seconds since the first event.

    Records after a damaged one are left out, with a warning. Raises ValueError without any record.
    """
    events = sorted((event for path in paths for event in _events(path)), key=lambda event: event.wall_time)
    if not events:
        raise ValueError(f"{paths[0]} has no events yet")
    found = Scalars(events[0].wall_time)
    for event in events:
        for value in event.summary.value:
            text = value.tensor.string_val
            if text:
                found.texts[value.tag] = text[0].decode(errors="replace")
            elif (number := _number(value)) is not None:
                row = (event.step, event.wall_time - found.began, number)
                found.scalars.setdefault(value.tag, []).append(row)
    return found


def _number(value: Any) -> float | None:
    """The number of a summary's value, which is simple or a tensor with one entry; None for anything else."""
    if value.WhichOneof("value") == "simple_value":
        return float(value.simple_value)
    entries = [*value.tensor.float_val, *value.tensor.double_val]
    if not entries and len(value.tensor.tensor_content) == 4:
        entries = [*struct.unpack("<f", value.tensor.tensor_content)]
    return entries[0] if len(entries) == 1 else None


def _events(path: Path) -> Iterator[Any]:
    """Iterate over the events of a file that may still be written to. An incomplete last one is left out."""
    from google.protobuf.message import DecodeError
    from tensorboardX.proto.event_pb2 import Event

    data, place = check_file(path).read_bytes(), 0
    while place + HEAD <= len(data):
        (length,) = struct.unpack_from("<Q", data, place)
        end = place + HEAD + length + TAIL
        if end > len(data):  # it is being written, or its length is damaged
            return
        try:
            yield Event.FromString(data[place + HEAD : end - TAIL])
        except DecodeError:
            warnings.warn(printable(f"{path}, byte {place} is damaged: what follows is left out"), stacklevel=2)
            return
        place = end
