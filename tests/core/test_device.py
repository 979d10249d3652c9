"""Settings of the device hold inside and are as before afterwards."""

from __future__ import annotations

import torch

from headrace.core import device
from headrace.core.device import torch_threads, without_denormals


def halved() -> float:
    return float(torch.full((), 2e-40) / 2)


def test_numbers_too_small_for_float32_count_as_nothing_inside_alone():
    assert halved() > 0
    with without_denormals():
        assert halved() == 0
        with without_denormals():
            assert halved() == 0
        assert halved() == 0
    assert halved() > 0


def test_torch_has_as_many_threads_as_before():
    before = torch.get_num_threads()
    with torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def test_kernels_have_all_cores_and_know_who_computes_unless_the_user_gives_a_number(monkeypatch):
    for name in ("HEADRACE_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(device, "cores", lambda: 4)
    with device.cores_taken(lambda: [7, 8]):
        assert device.kernel_threads() == 4 and device.processes_computing() == [7, 8]
        for name in ("OMP_NUM_THREADS", "HEADRACE_THREADS"):
            monkeypatch.setenv(name, "3")
            assert device.kernel_threads() == 3 and not device.processes_computing()
            monkeypatch.delenv(name)
    assert device.kernel_threads() == 4 and not device.processes_computing()
