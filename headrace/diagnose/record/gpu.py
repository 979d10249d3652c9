"""GPU utilisation and memory over time, from NVIDIA's management library (NVML); nothing without a GPU."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from headrace.diagnose.profile.profile import SERIES_PERIOD, Series

MEGABYTE = 1e6
DRIVER = Path("/proc/driver/nvidia/gpus")
HIDDEN = "CUDA_VISIBLE_DEVICES hides this machine's GPUs from the script."


@dataclass
class _Gpu:
    """One GPU and its readings."""

    label: str  # "" for the only one, otherwise " 0", " 1", ...
    handle: Any
    own: bool = False  # whether a process of the script was seen on it
    readings: list[tuple[float, float, float]] = field(default_factory=list)  # s of time.monotonic(), % busy, MB


class GpuMonitor:
    """Readings of the GPUs that CUDA_VISIBLE_DEVICES leaves to the script. Call poll() often: it reads when due."""

    def __init__(self) -> None:
        self.name, self.limitation = "", ""
        self._gpus: list[_Gpu] = []
        self._next = 0.0
        try:
            self._library = importlib.import_module("pynvml")
        except ImportError:
            self.name = _name_from_driver()
            if self.name:
                self.limitation = "GPU use was not measured: `pip install nvidia-ml-py`."
            return
        with suppress(self._library.NVMLError):  # no driver, no GPU
            self._library.nvmlInit()
            self._find()

    def _find(self) -> None:
        library, visible = self._library, os.environ.get("CUDA_VISIBLE_DEVICES")
        handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
        if visible is not None and handles:
            handles = self._chosen(handles, visible)
            if not handles:
                self.limitation = HIDDEN
        self._gpus = [_Gpu(f" {number}" if len(handles) > 1 else "", each) for number, each in enumerate(handles)]
        if handles:
            name = library.nvmlDeviceGetName(handles[0])
            self.name = name.decode() if isinstance(name, bytes) else name

    def _chosen(self, handles: list[Any], visible: str) -> list[Any]:
        """The handles that the variable names, by index or beginning of a UUID; like CUDA, until one is wrong."""
        chosen = []
        for word in filter(None, (word.strip() for word in visible.split(","))):
            if word.isdecimal() and int(word) < len(handles):
                chosen.append(handles[int(word)])
                continue
            if word.startswith("MIG-"):  # NVML's list has whole GPUs: the part is of one of them
                return handles
            known = [handle for handle in handles if self._uuid(handle).startswith(word)]
            if not known:
                break
            chosen.append(known[0])
        return chosen

    def _uuid(self, handle: Any) -> str:
        found = self._library.nvmlDeviceGetUUID(handle)
        return found.decode() if isinstance(found, bytes) else found

    def poll(self, pids: Collection[int] = ()) -> None:
        """Read, if due. pids: of the script's processes, which show the GPUs in use among all that it may use."""
        now = time.monotonic()
        if not self._gpus or now < self._next:
            return
        self._next = now + SERIES_PERIOD
        for gpu in self._gpus:
            with suppress(self._library.NVMLError):
                busy = self._library.nvmlDeviceGetUtilizationRates(gpu.handle).gpu
                memory = self._library.nvmlDeviceGetMemoryInfo(gpu.handle).used / MEGABYTE
                gpu.readings.append((now, float(busy), memory))
            with suppress(self._library.NVMLError, AttributeError):
                using = self._library.nvmlDeviceGetComputeRunningProcesses(gpu.handle)
                gpu.own = gpu.own or any(process.pid in pids for process in using)

    def series(self, begin: float, end: float) -> list[Series]:
        """Readings between two moments, with times from the first moment on; [] if there are none."""
        return [series for gpu in self._gpus for series in _series(gpu, begin, end)]

    def summary(self, begin: float, end: float) -> dict[str, float]:
        """nvml_busy, mean % of time with a kernel running, and memory_mb, the most used, of its busiest GPU."""
        found = [(fmean(busy.values), max(memory.values)) for busy, memory in self._pairs(begin, end)]
        busy, memory = max(found, default=(0.0, 0.0))
        return {"nvml_busy": busy, "memory_mb": memory} if found else {}

    def _pairs(self, begin: float, end: float) -> list[list[Series]]:
        own = [gpu for gpu in self._gpus if gpu.own] or self._gpus  # a container may hide the processes' pids
        return [pair for gpu in own if (pair := _series(gpu, begin, end))]

    @property
    def limitations(self) -> list[str]:
        """Sentences on what is not known of the GPUs."""
        found = [self.limitation] if self.limitation else []
        if len(self._gpus) > 1 and not any(gpu.own for gpu in self._gpus):
            found.append(f"Which of {len(self._gpus)} GPUs the script uses is not known: NVML names no process of it.")
        if self._gpus and not any(gpu.readings for gpu in self._gpus):
            found.append("NVML does not tell how busy the GPU is, as of a part of one (MIG).")
        return found


def _series(gpu: _Gpu, begin: float, end: float) -> list[Series]:
    kept = [reading for reading in gpu.readings if begin <= reading[0] <= end]
    times = [round(moment - begin, 3) for moment, _, _ in kept]
    columns = ((f"gpu{gpu.label} busy", "%", 1), (f"gpu{gpu.label} memory", "MB", 2))
    return [Series(name, unit, times, [reading[i] for reading in kept]) for name, unit, i in columns if kept]


def _name_from_driver() -> str:
    """The first GPU's name as NVIDIA's driver tells it without NVML; "" without a GPU."""
    with suppress(OSError):
        for folder in sorted(DRIVER.iterdir()):
            for line in (folder / "information").read_text().splitlines():
                if line.startswith("Model:"):
                    return line.partition(":")[2].strip()
    return ""
