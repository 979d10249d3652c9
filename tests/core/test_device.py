"""Settings of the device hold inside and are as before afterwards."""

from __future__ import annotations

import torch

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
