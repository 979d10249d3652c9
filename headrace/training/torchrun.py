"""Whether torchrun has started this process. Imports no torch."""

from __future__ import annotations

import os

STARTED_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def started_by_torchrun() -> tuple[int, int] | None:
    """The rank of this process and their number, where torchrun has started several; None elsewhere."""
    if not all(name in os.environ for name in STARTED_BY_TORCHRUN) or int(os.environ["WORLD_SIZE"]) < 2:
        return None
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
