"""Counts the GPU's kernels for a few short intervals, by torch's profiler in the script's process.

Nothing is counted where torch has not used CUDA, or where the script runs a profiler itself: torch allows one at a
time. The time for starting and stopping the profiler is not part of the samples.
"""

import gc
import json
import sys
import time

LAUNCHES = ("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch", "cudaLaunchKernelExC", "cuLaunchKernelEx")


WINDOWS, PAUSE = 5, 1.7  # intervals of counting, and s between them: one may hold nothing but data collection


class KernelCounter:
    """Counts several times, for `seconds` each, beginning `after` seconds after the start of the process."""

    def __init__(self, began, after, seconds):
        self._due, self._seconds, self._found = began + after, seconds, []
        self._began = None
        self._prepare = None  # torch's function that prepares a profiler, while it is replaced

    def poll(self, now):
        """Start or stop if due. Returns the mean of all figures() after stopping, {} after starting, otherwise None."""
        torch, cuda = sys.modules.get("torch"), sys.modules.get("torch.cuda")
        if not torch or not cuda or not getattr(cuda, "_initialized", False) or cuda.is_current_stream_capturing():
            return None  # no CUDA, or a graph is being captured, which starting a profiler could break
        if self._began is None and now >= self._due:
            if self._found and _is_profiled(torch):
                self._due = float("inf")
                return None
            if _is_profiled(torch):
                raise RuntimeError("the script has a profiler of its own")
            _start(torch)
            self._began = time.monotonic()
            self._give_way(torch)
            return {}
        if self._began is not None and now >= self._began + self._seconds:
            seconds = now - self._began
            self._found.append(figures(self._stop(torch).events(), seconds))
            if len(self._found) < WINDOWS:
                self._due = now + PAUSE
            mean = {key: sum(each[key] for each in self._found) / len(self._found) for key in self._found[0]}
            return dict(mean, kernel_windows=len(self._found))
        return None

    def _give_way(self, torch):
        """Stop when the script starts a profiler, which would find this one's state instead of its own."""
        module = torch.autograd.profiler
        self._prepare = getattr(module, "_prepare_profiler", None)

        def prepare(*words, **more):
            self._stop(torch)
            return module._prepare_profiler(*words, **more)

        module._prepare_profiler = prepare

    def _stop(self, torch):
        """Stop for good; return what was profiled."""
        self._due = float("inf")
        self._began, torch.autograd.profiler._prepare_profiler = None, self._prepare
        return torch.autograd._disable_profiler()


def figures(events, seconds):
    """% of `seconds` in which kernels ran, and kernels, launches, synchronisations and megabytes copied per second.

    events: objects of torch's profiler with activity_type(), name(), start_ns(), end_ns() and metadata_json().
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


def _is_profiled(torch):
    """Tell whether the script has a profiler, running, prepared or waiting for its step in a schedule."""
    modules = torch.autograd.profiler, getattr(torch, "profiler", None)
    kinds = {kind for kind in (getattr(module, "profile", None) for module in modules) if kind is not None}
    running = getattr(torch.autograd, "_profiler_enabled", lambda: False)()
    return running or any(type(each) in kinds for each in gc.get_objects())


def _start(torch):
    profiler = torch._C._profiler
    settings = profiler.ProfilerConfig(
        profiler.ProfilerState.KINETO, False, False, False, False, False, profiler._ExperimentalConfig()
    )
    activities = {profiler.ProfilerActivity.CUDA}
    torch.autograd._prepare_profiler(settings, activities)
    torch.autograd._enable_profiler(settings, activities)
