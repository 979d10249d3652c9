"""Counts the GPU's kernels for a moment, by torch's profiler in the script's process.

Nothing is counted where torch has not used CUDA. The time for starting and stopping is not part of the samples.
"""

import json
import sys
import time

LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaLaunchKernelExC", "cuLaunchKernelEx")


class KernelCounter:
    """Counts once, for `seconds`, beginning `after` seconds after the start of the process."""

    def __init__(self, began, after, seconds):
        self._due, self._seconds = began + after, seconds
        self._began = None

    def poll(self, now):
        """Start or stop if due. Returns figures() after stopping, {} after starting, otherwise None."""
        torch, cuda = sys.modules.get("torch"), sys.modules.get("torch.cuda")
        if not torch or not cuda or not getattr(cuda, "_initialized", False) or cuda.is_current_stream_capturing():
            return None  # no CUDA, or a graph is being captured, which starting a profiler could break
        if self._began is None and now >= self._due:
            _start(torch)
            self._began = time.monotonic()
            return {}
        if self._began is not None and now >= self._began + self._seconds:
            seconds, self._began, self._due = now - self._began, None, float("inf")
            return figures(torch.autograd._disable_profiler().events(), seconds)
        return None


def figures(events, seconds):
    """% of `seconds` in which kernels ran, and kernels, launches, synchronisations and megabytes copied per second.

    events: of torch's profiler, with activity_type(), name(), start_ns(), end_ns() and metadata_json().
    """
    kernels, launches, waits, copied = [], 0, 0, 0
    for event in events:
        kind, name = event.activity_type(), event.name()
        if kind == "kernel":
            kernels.append((event.start_ns(), event.end_ns()))
        elif kind == "gpu_memcpy" and ("HtoD" in name or "DtoH" in name):
            copied += int(json.loads("{" + event.metadata_json().strip().strip("{}") + "}").get("bytes", 0))
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
    """Nanoseconds covered by at least one interval: kernels of several streams may overlap."""
    total, end = 0, 0
    for start, stop in sorted(intervals):
        total += max(stop - max(start, end), 0)
        end = max(end, stop)
    return total


def _start(torch):
    profiler = torch._C._profiler
    settings = profiler.ProfilerConfig(
        profiler.ProfilerState.KINETO, False, False, False, False, False, profiler._ExperimentalConfig()
    )
    activities = {profiler.ProfilerActivity.CUDA}
    torch.autograd._prepare_profiler(settings, activities)
    torch.autograd._enable_profiler(settings, activities)
