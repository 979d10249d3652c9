"""Sums over learners that have a GPU each (algorithms.reduce.Reduce): by NCCL, in the order of the GPU's queue.

The host does not wait for the sums, so that a CUDA graph can contain them together with the work before and after.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic, sleep
from typing import Any

import torch
from torch import Tensor

from headrace.core.device import copy_all, queue_end
from headrace.parallel.learners import RankLost

NAP = 50e-6  # s between two checks whether the GPU is done
LEAVING = 5.0  # s for closing a communicator, which NCCL may never finish if another rank is gone


class DeviceSum:
    """A Reduce: tensors on `device` are added by a process group, those of the CPU by `host`, another Reduce.

    group: has allreduce() of torch.distributed, on tensors of the device. With NCCL the host continues at once.
    timeout: s that wait() lets the GPU wait for other ranks.
    watch: called by wait() from time to time; what it raises ends the wait.
    Raises RankLost if the group finds that another rank is gone.
    """

    def __init__(self, host: Any, group: Any, device: torch.device, timeout: float) -> None:
        self.host, self.group, self.device, self.timeout = host, group, device, timeout
        self.rank, self.size = host.rank, host.size
        self.watch: Callable[[], None] = lambda: None
        self.lost = False  # whether a wait was given up

    @property
    def columns(self) -> Sequence[int]:
        """The number of columns of each rank."""
        return self.host.columns  # type: ignore[no-any-return]

    @torch.no_grad()
    def __call__(self, *tensors: Tensor) -> None:
        """Replace the tensors by their sums over all ranks."""
        here = [tensor.detach() for tensor in tensors if tensor.device.type == self.device.type]
        for dtype in dict.fromkeys(tensor.dtype for tensor in here):
            self._add([tensor for tensor in here if tensor.dtype == dtype])
        others = [tensor for tensor in tensors if tensor.device.type != self.device.type]
        if others:
            self.host(*others)

    def _add(self, tensors: list[Tensor]) -> None:
        """Add tensors of one dtype in one sum: in place, or in a copy of all of them."""
        alone = len(tensors) == 1 and tensors[0].is_contiguous()
        flat = tensors[0] if alone else torch.cat([tensor.flatten() for tensor in tensors])
        try:
            self.group.allreduce([flat]).wait()  # lets the GPU's queue wait, not the host
        except RuntimeError as error:
            raise RankLost(f"a rank was lost, as rank {self.rank} has noticed: {error}") from error
        if not alone:
            parts = flat.split([tensor.numel() for tensor in tensors])
            copy_all(tensors, [part.view(tensor.shape) for tensor, part in zip(tensors, parts, strict=True)])

    def wait(self) -> None:
        """Wait until the device has finished what is queued. Sums in a graph have no timeout; this wait has one.

        Raises RankLost if another rank's part does not arrive in time, and what `watch` raises.
        """
        done, began = queue_end(self.device), monotonic()
        try:
            while not done():
                self.host.beat()
                self.watch()
                if monotonic() - began > self.timeout:
                    raise RankLost(
                        f"the GPU of rank {self.rank} has waited {self.timeout:g} s for the sums of other ranks: one "
                        "of them is gone or hangs"
                    )
                sleep(NAP)
        except BaseException:
            self.lost = True
            raise
        self.host.beat()

    def close(self) -> None:
        """Leave the group, even if other ranks are gone. Graphs that contain its sums must be freed before: NCCL waits
        for that.

        A second call does nothing.
        """
        group, self.group = self.group, None
        if group is None:
            return
        leaving = threading.Thread(target=group.abort, daemon=True)
        leaving.start()
        leaving.join(LEAVING)


def nccl_group(path: str, rank: int, size: int, timeout: float) -> Any:
    """NCCL's process group of ranks on one machine, which find each other by a file.

    path: of a file in a folder that only they use. timeout: s for which a sum may wait for another rank.
    """
    from torch.distributed import FileStore, ProcessGroupNCCL  # type: ignore[attr-defined]

    on_loopback()
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout)
    return ProcessGroupNCCL(FileStore(path, size), rank, size, options)


def on_loopback() -> None:
    """Let NCCL's ranks, all on this machine, use the loopback interface, unless NCCL_SOCKET_IFNAME names another."""
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")


def check_gpus(number: int, what: str, fewer: str) -> None:
    """Raise ValueError if this machine lacks GPUs, or this torch lacks NCCL, for `number` learners.

    what: the setting that asks for them; fewer: the text that asks for fewer, followed by a number.
    """
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found < number:
        near = f"{fewer}{found}, or device='cpu'" if found > 1 else "device='cpu', or one learner"
        raise ValueError(f"{what} need a GPU each, and torch {torch.__version__} finds {found} here: give {near}")
    from torch.distributed import is_nccl_available

    if not is_nccl_available():
        raise ValueError(
            f"{what} add their sums by NCCL, which torch {torch.__version__} was built without: install a build "
            "with it, or give device='cpu'"
        )
