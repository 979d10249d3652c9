"""Detect processes started by torchrun. Imports no torch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.training.config import TrainConfig
    from headrace.training.distributed import TorchrunRanks

STARTED_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def started_by_torchrun() -> tuple[int, int] | None:
    """The rank of this process and the number of processes, if torchrun has started several; otherwise None."""
    if not all(name in os.environ for name in STARTED_BY_TORCHRUN) or int(os.environ["WORLD_SIZE"]) < 2:
        return None
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def local_rank() -> tuple[int, int]:
    """The number of this process among torchrun's processes on this machine, and how many there are."""
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    return int(os.environ.get("LOCAL_RANK", rank)), int(os.environ.get("LOCAL_WORLD_SIZE", size))


def torchrun_ranks(config: TrainConfig) -> TorchrunRanks | None:
    """Make the ranks of this process if torchrun has started it; None otherwise."""
    started = started_by_torchrun()
    if started is None:
        return None
    from headrace.training.distributed import TorchrunRanks

    return TorchrunRanks(*started, local_rank(), config)
