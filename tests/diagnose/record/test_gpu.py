"""GPU figures in the profile, with stand-ins for NVML and for torch's profiler."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from headrace.diagnose.injected import cuda_kernels
from headrace.diagnose.record import gpu, run_script
from headrace.diagnose.record.gpu import GpuMonitor
from headrace.diagnose.record.run_script import measure

PRETENDER = """
def recorded():  # whether the spool file has a record about the GPU
    import json, pathlib
    folder = pathlib.Path(json.loads(os.environ["HEADRACE_DIAGNOSE"])["folder"])
    text = "".join(file.read_text() for file in folder.glob(f"{os.getpid()}-*.jsonl"))
    return '["gpu",' in text or '["limitation",' in text

import os, sys, time, types

class Event:
    def __init__(self, kind, name, start=0, end=0, metadata=""):
        self.values = kind, name, start, end, metadata
    def activity_type(self): return self.values[0]
    def name(self): return self.values[1]
    def start_ns(self): return self.values[2]
    def end_ns(self): return self.values[3]
    def metadata_json(self): return self.values[4]

began = 0.0
def enable(settings, activities):
    global began
    began = time.monotonic()
def disable():
    events = [Event("kernel", "gemm", 0, int(0.25e9 * (time.monotonic() - began)))]
    return types.SimpleNamespace(events=lambda: events + [Event("cuda_runtime", "cudaLaunchKernel")] * 500)

made = types.SimpleNamespace
profiler = made(ProfilerConfig=lambda *words: None, ProfilerState=made(KINETO=1), _ExperimentalConfig=lambda: None,
                ProfilerActivity=made(CUDA=2))
torch = types.ModuleType("torch")
torch._C, torch.get_num_threads = made(_profiler=profiler), lambda: 1
torch.get_num_interop_threads = lambda: 1
torch.autograd = made(_prepare_profiler=lambda *words: None, _enable_profiler=enable, _disable_profiler=disable,
                      profiler=made(_prepare_profiler=None))
cuda = types.ModuleType("torch.cuda")
cuda._initialized, cuda.is_current_stream_capturing = True, lambda: False
sys.modules.update({"torch": torch, "torch.cuda": cuda})
while "forever" in sys.argv or not recorded():
    sum(range(100))
"""


def event(kind: str, name: str, start: int = 0, end: int = 0, metadata: str = "") -> SimpleNamespace:
    values = {"activity_type": kind, "name": name, "start_ns": start, "end_ns": end, "metadata_json": metadata}
    return SimpleNamespace(**{key: lambda value=value: value for key, value in values.items()})


def test_kernels_that_overlap_count_once():
    events = [
        event("kernel", "one", 0, 300_000_000),
        event("kernel", "two", 200_000_000, 400_000_000),
        event("kernel", "three", 900_000_000, 1_000_000_000),
        event("cuda_runtime", "cudaLaunchKernel"),
        event("cuda_runtime", "cudaStreamSynchronize"),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", metadata='"bytes": 4000000, "stream": 7'),
        event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", metadata='"bytes": 9000000'),
    ]
    found = cuda_kernels.figures(events, 2.0)
    assert found == {
        "kernel_busy": pytest.approx(25.0),
        "kernels_per_second": 1.5,
        "launches_per_second": 0.5,
        "synchronisations_per_second": 0.5,
        "copied_mb_per_second": 2.0,
    }


def test_what_the_profiler_saw_is_in_the_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_script, "KERNELS_AFTER", 0.005)
    script = tmp_path / "run.py"
    script.write_text(PRETENDER)
    profile = measure([str(script)], seconds=60.0, skip=0.0)
    assert profile.counters["cuda"] == 1
    assert profile.gpu["kernel_busy"] > 0 and profile.gpu["launches_per_second"] > 0


@pytest.mark.slow
def test_the_profilers_figures_are_of_the_time_that_it_ran(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(PRETENDER)
    profile = measure([str(script), "forever"], seconds=6.0, skip=0.5)
    assert profile.gpu["kernel_busy"] == pytest.approx(25.0, rel=0.2)
    assert profile.gpu["launches_per_second"] == pytest.approx(500.0, rel=0.6)


def test_a_missing_profiler_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_script, "KERNELS_AFTER", 0.005)
    script = tmp_path / "run.py"
    script.write_text(PRETENDER.replace("    began = time.monotonic()", "    raise RuntimeError('already profiling')"))
    profile = measure([str(script)], seconds=60.0, skip=0.0)
    assert "kernel_busy" not in profile.gpu and profile.training_thread.total > 0
    assert any("RuntimeError: already profiling" in line for line in profile.limitations)


@pytest.mark.parametrize("first", ["diagnosis", "script"])
def test_the_scripts_own_profiler_keeps_its_events(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_initialized", True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    counter, prepare = cuda_kernels.KernelCounter(0.0, 0.0, 100.0), torch.autograd.profiler._prepare_profiler
    if first == "diagnosis":
        assert counter.poll(time.monotonic()) == {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        torch.ones(3).exp()
        if first == "script":
            with pytest.raises(RuntimeError, match="profiler of its own"):
                counter.poll(time.monotonic())
        torch.ones(3).exp()
    assert sum(event.name == "aten::exp" for event in own.events()) == 2
    assert torch.autograd.profiler._prepare_profiler is prepare
    if first == "diagnosis":
        assert counter.poll(time.monotonic() + 1e6) is None  # it has given way


def test_nvml_is_read_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 3,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}abc",
        nvmlDeviceGetName=lambda handle: b"Some GPU",
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=38 * handle),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=6e8),
    )
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)
    for visible, busy, names in (
        ("1", 38.0, ["gpu busy", "gpu memory"]),
        ("GPU-2,0", 76.0, ["gpu 0 busy", "gpu 0 memory", "gpu 1 busy", "gpu 1 memory"]),
        ("1,7,2", 38.0, ["gpu busy", "gpu memory"]),  # CUDA stops at the first that is not there
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monitor, began = GpuMonitor(), time.monotonic()
        monitor.poll()
        assert monitor.name == "Some GPU"
        assert monitor.summary(began, time.monotonic()) == {"nvml_busy": busy, "memory_mb": 600.0}
        assert [series.name for series in monitor.series(began, time.monotonic())] == names
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monitor = GpuMonitor()
    assert (monitor.name, monitor.summary(0.0, 1e9)) == ("", {}) and "CUDA_VISIBLE_DEVICES" in monitor.limitation


def test_kernels_are_counted_in_several_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.cuda", SimpleNamespace(_initialized=True, is_current_stream_capturing=bool))
    monkeypatch.setattr(cuda_kernels, "_start", lambda torch: None)
    monkeypatch.setattr(cuda_kernels, "_is_profiled", lambda torch: False)
    monkeypatch.setattr(cuda_kernels.KernelCounter, "_stop", stopped)
    monkeypatch.setattr(cuda_kernels.KernelCounter, "_give_way", lambda self, torch: None)
    counter, found, now = cuda_kernels.KernelCounter(0.0, 0.0, 0.5), [], 1.0
    for _ in range(100):
        now += 0.25
        monkeypatch.setattr(cuda_kernels, "time", SimpleNamespace(monotonic=lambda now=now: now))
        if figures := counter.poll(now):
            found.append(figures)
    assert [each["kernel_windows"] for each in found] == [1, 2, 3, 4, 5]
    assert found[-1]["kernels_per_second"] == pytest.approx(2.0)


def stopped(counter: cuda_kernels.KernelCounter, torch: object) -> SimpleNamespace:
    counter._due, counter._began = float("inf"), None
    return SimpleNamespace(events=lambda: [event("kernel", "one", 0, 1000)])


def test_the_gpu_of_the_scripts_own_processes_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: "Some GPU",
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=(2, 98)[handle]),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=6e8),
        nvmlDeviceGetComputeRunningProcesses=lambda handle: [SimpleNamespace(pid=(50, 60)[handle])],
    )
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for pids, busy, known in (({50}, 2.0, True), ({7}, 98.0, False)):
        monitor, began = GpuMonitor(), time.monotonic()
        monitor.poll(pids)
        assert monitor.summary(began, time.monotonic())["nvml_busy"] == busy
        assert (monitor.limitations == []) == known


def test_a_gpu_without_nvml_is_a_gpu_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(gpu, "DRIVER", tmp_path)
    assert (GpuMonitor().name, GpuMonitor().limitation) == ("", "")
    (tmp_path / "0000:01:00.0").mkdir()
    (tmp_path / "0000:01:00.0" / "information").write_text("Model: \t NVIDIA H100\nIRQ: 7\n")
    assert GpuMonitor().name == "NVIDIA H100" and "pip install nvidia-ml-py" in GpuMonitor().limitation
