"""GPU utilisation and memory over time, from NVIDIA's management library (NVML); nothing without a GPU."""

from __future__ import annotations

import importlib
import time
from contextlib import suppress
from statistics import fmean
from types import ModuleType

from headrace.diagnose.profile.profile import SERIES_PERIOD, Series

MEGABYTE = 1e6


class GpuMonitor:
    """Readings of the first GPU. Call poll() often: it reads when that is due."""

    def __init__(self) -> None:
        self.name, self.limitation = "", ""
        self._readings: list[tuple[float, float, float]] = []  # s of time.monotonic(), % busy, MB of memory
        self._next = 0.0
        self._library: ModuleType | None = None  # None without a GPU that can be read
        try:
            library = importlib.import_module("pynvml")
        except ImportError:
            self.limitation = "GPU use was not measured: that requires the package nvidia-ml-py."
            return
        with suppress(library.NVMLError):  # no driver, no GPU
            library.nvmlInit()
            self._handle = library.nvmlDeviceGetHandleByIndex(0)
            name = library.nvmlDeviceGetName(self._handle)
            self.name = name.decode() if isinstance(name, bytes) else name
            self._library = library

    def poll(self) -> None:
        """Read, if due."""
        now = time.monotonic()
        if self._library is None or now < self._next:
            return
        self._next = now + SERIES_PERIOD
        with suppress(self._library.NVMLError):
            busy = self._library.nvmlDeviceGetUtilizationRates(self._handle).gpu
            memory = self._library.nvmlDeviceGetMemoryInfo(self._handle).used / MEGABYTE
            self._readings.append((now, float(busy), memory))

    def series(self, begin: float, end: float) -> list[Series]:
        """Readings between two moments, with times from the first moment on; [] if there are none."""
        kept = [reading for reading in self._readings if begin <= reading[0] <= end]
        times = [round(moment - begin, 3) for moment, _, _ in kept]
        columns = (("gpu busy", "%", 1), ("gpu memory", "MB", 2))
        return [Series(name, unit, times, [reading[i] for reading in kept]) for name, unit, i in columns if kept]

    def summary(self, begin: float, end: float) -> dict[str, float]:
        """nvml_busy: mean %, the share of time with at least one kernel running. memory_mb: the most memory used."""
        series = self.series(begin, end)
        return {"nvml_busy": fmean(series[0].values), "memory_mb": max(series[1].values)} if series else {}
