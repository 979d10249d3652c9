"""Counted draws whose counter is on the device, as in a captured graph."""

from __future__ import annotations

import pytest
import torch

from headrace.core import rng
from headrace.core.device import known


def test_a_counter_on_the_device_gives_the_same_draws():
    for steps in (0, 77, 2**33 + 5):
        counted = rng.uniform(5, rng.Purpose.ACTION, torch.tensor(steps), 6, 10, 3, "cpu")
        assert torch.equal(counted, rng.uniform(5, rng.Purpose.ACTION, steps, 6, 10, 3, "cpu"))


@pytest.mark.parametrize("bijection", ["0", "1"])
def test_permutations_are_permutations_and_depend_on_everything(bijection, monkeypatch):
    monkeypatch.setenv("HEADRACE_BIJECTION", bijection)
    everything = torch.arange(1000).expand(3, 1000)
    drawn = [
        rng.permutations(seed, purpose, torch.tensor(counter), 3, 1000)
        for seed, purpose, counter in [(1, 3, 0), (2, 3, 0), (1, 4, 0), (1, 3, 1), (1, 3, 2**32)]
    ]
    for order in drawn:
        assert torch.equal(order.sort(1).values, everything)
        assert (order[0] != order[1]).any() and (order[1] != order[2]).any()
    for k, order in enumerate(drawn):
        assert all((order != other).any() for other in drawn[:k])
    # no place is favoured: each number's mean place over many permutations is near the middle
    many = rng.permutations(0, 3, torch.tensor(9), 2000, 10).float()
    assert (many.mean(0) - 4.5).abs().max() < 0.3


@pytest.mark.parametrize("size", [1, 2, 3, 64, 100, 257])
def test_bijections_are_of_any_size_and_favour_no_place(size, monkeypatch):
    monkeypatch.setenv("HEADRACE_BIJECTION", "1")
    drawn = rng.permutations(5, 3, torch.tensor(0), 4000, size)
    assert torch.equal(drawn.sort(1).values, torch.arange(size).expand(4000, size)) and drawn.is_contiguous()
    for number in {0, size // 2, size - 1}:  # each is in each place equally often: chi-square, 5 deviations
        counts = (drawn == number).sum(0).double()
        excess = (counts - 4000 / size).square().sum() / (4000 / size) - (size - 1)
        assert abs(excess) <= 5 * (2 * size) ** 0.5
    if size > 60:  # neighbours stay apart as often as by chance
        apart = (drawn[:, 1:] - drawn[:, :-1] == 1).double().mean()
        assert abs(apart - 1 / size) < 5 * (1 / size / 4000 / size) ** 0.5


def test_permutations_on_the_cpu_are_torchs():
    source = rng.generator(1, 3, 7)
    expected = torch.stack([torch.randperm(20, generator=source) for _ in range(2)])
    assert torch.equal(rng.permutations(1, 3, 7, 2, 20), expected)


def test_a_flag_is_known_on_the_cpu_alone():
    assert known(torch.ones(())) and not known(torch.zeros(()))
    assert not known(torch.ones((), device="meta"))


@pytest.mark.parametrize("seed", [1.5, "3", None, -1, 2**32])
def test_a_seed_is_a_whole_number_of_32_bits(seed):
    with pytest.raises(ValueError, match=r"a seed must be a whole number from 0 to 2\^32 - 1 = 4294967295, got "):
        rng.word(seed)
