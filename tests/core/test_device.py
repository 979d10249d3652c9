"""Settings of the device hold inside and are as before afterwards."""

from __future__ import annotations

import pytest
import torch

from headrace.core import device
from headrace.core.device import torch_threads, without_denormals
from headrace.training.config import TrainConfig


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


@pytest.mark.parametrize(("collection", "actors", "threads"), [("overlapped", 2, 2), ("async", 9, 1), ("sync", 2, 4)])
def test_kernels_leave_a_core_to_each_actor_that_collects_meanwhile(monkeypatch, collection, actors, threads):
    for name in ("HEADRACE_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(device, "cores", lambda: 4)
    with device.cores_taken(TrainConfig(collection=collection, actors=actors).cores_of_actors):
        assert device.kernel_threads() == threads
        monkeypatch.setenv("HEADRACE_THREADS", "3")
        assert device.kernel_threads() == 3
        monkeypatch.delenv("HEADRACE_THREADS")
    assert device.kernel_threads() == 4
    assert TrainConfig(collection=collection, actors=actors, cluster="auto").cores_of_actors == 0
