"""What NVIDIA's management library says of the GPU: how busy, how much memory. Nothing where there is none."""

from __future__ import annotations

import importlib
import time
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from headrace.diagnose.profile.profile import SERIES_PERIOD, Series

MEGABYTE = 1e6


@dataclass
class _Readings:
    times: list[float] = field(default_factory=list)  # s of time.monotonic()
    busy: list[float] = field(default_factory=list)  # %
    memory: list[float] = field(default_factory=list)  # MB


class GpuMonitor:
    """Readings of the first GPU. Call look() often: it reads when that is due."""

    def __init__(self) -> None:
        self.name, self.limitation = "", ""
        self._readings = _Readings()
        self._next = 0.0
        self._library, self._handle = self._open()

    def poll(self) -> None:
        """Read, where that is due."""
        now = time.monotonic()
        if self._handle is None or now < self._next:
            return
        self._next = now + SERIES_PERIOD
        with suppress(self._library.NVMLError):
            busy = self._library.nvmlDeviceGetUtilizationRates(self._handle).gpu
            memory = self._library.nvmlDeviceGetMemoryInfo(self._handle).used / MEGABYTE
            self._readings.times.append(now)
            self._readings.busy.append(float(busy))
            self._readings.memory.append(memory)

    def series(self, begin: float, end: float) -> list[Series]:
        """What was read between two moments, its times counted from the first."""
        kept = [index for index, moment in enumerate(self._readings.times) if begin <= moment <= end]
        times = [round(self._readings.times[index] - begin, 3) for index in kept]
        columns = ("gpu busy", "%", self._readings.busy), ("gpu memory", "MB", self._readings.memory)
        return [Series(name, unit, times, [values[i] for i in kept]) for name, unit, values in columns] if kept else []

    def summary(self, begin: float, end: float) -> dict[str, float]:
        """nvml_busy: mean %, the share of time with at least one kernel at work. memory_mb: the most that was used."""
        series = self.series(begin, end)
        return {"nvml_busy": fmean(series[0].values), "memory_mb": max(series[1].values)} if series else {}

    def _open(self) -> tuple[Any, Any]:
        try:
            library = importlib.import_module("pynvml")
        except ImportError:
            self.limitation = "The GPU, if there is one, was not watched: that needs the package nvidia-ml-py."
            return None, None
        try:
            library.nvmlInit()
            handle = library.nvmlDeviceGetHandleByIndex(0)
            name = library.nvmlDeviceGetName(handle)
            self.name = name.decode() if isinstance(name, bytes) else name
            return library, handle
        except library.NVMLError:  # no driver, no GPU
            return None, None
