"""What a GPU did for a moment, kernel by kernel: torch's own profiler, started and stopped in the script's process.

Nothing happens where torch has not used CUDA. The time that starting and stopping take is no part of the samples.
"""

import json
import sys
import time
from typing import Any

LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaLaunchKernelExC", "cuLaunchKernelEx")


class KernelCounter:
    """Watches once: from `after` seconds after the process began, for `seconds`."""

    def __init__(self, began, after, seconds):
        self._due, self._seconds = began + after, seconds
        self._began = None

    def poll(self, now):
        """Start or stop, where that is due: figures() after stopping, {} after starting, else None."""
        torch: Any = sys.modules.get("torch")
        cuda: Any = sys.modules.get("torch.cuda")
        if not getattr(cuda, "_initialized", False) or cuda.is_current_stream_capturing():
            return None  # nothing to see, or a graph is being recorded, which starting a profiler could spoil
        if self._began is None and now >= self._due:
            _start(torch)
            self._began = time.monotonic()
            return {}
        if self._began is not None and now >= self._began + self._seconds:
            seconds, self._began, self._due = now - self._began, None, float("inf")
            return figures(_stop(torch), seconds)
        return None


def figures(events, seconds):
    """Of `seconds` s: kernels' share of it in %, and launches, synchronisations and megabytes copied a second.

    events: torch's, with activity_type(), name(), start_ns(), end_ns() and metadata_json().
    """
    kernels, launches, waits, copied = [], 0, 0, 0
    for event in events:
        kind, name = event.activity_type(), event.name()
        if kind == "kernel":
            kernels.append((event.start_ns(), event.end_ns()))
        elif kind == "gpu_memcpy" and ("HtoD" in name or "DtoH" in name):
            copied += _bytes(event)
        elif name in LAUNCHES:
            launches += 1
        elif name.startswith("cuda") and name.endswith("Synchronize"):
            waits += 1
    return {
        "kernel_busy": min(100.0 * _covered(kernels) / (1e9 * seconds), 100.0),
        "kernels_per_second": len(kernels) / seconds,
        "launches_per_second": launches / seconds,
        "synchronisations_per_second": waits / seconds,
        "copied_mb_per_second": copied / 1e6 / seconds,
    }


def _covered(intervals):
    """Nanoseconds in which at least one of the intervals lies: kernels of several streams may overlap."""
    total, end = 0, 0
    for start, stop in sorted(intervals):
        total += max(stop - max(start, end), 0)
        end = max(end, stop)
    return total


def _bytes(event):
    metadata = json.loads("{" + event.metadata_json().strip().strip("{}") + "}")
    return int(metadata.get("bytes", 0))


def _start(torch):
    profiler = torch._C._profiler
    settings = profiler.ProfilerConfig(
        profiler.ProfilerState.KINETO, False, False, False, False, False, profiler._ExperimentalConfig()
    )
    activities = {profiler.ProfilerActivity.CUDA}
    torch.autograd._prepare_profiler(settings, activities)
    torch.autograd._enable_profiler(settings, activities)


def _stop(torch):
    return torch.autograd._disable_profiler().events()
