"""The compiled rng.uniform gives the bits of the plain one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from headrace.bindings import rng_returns_cpu
from headrace.core import rng

BLOCKS = [  # seed, purpose, first step, steps, envs, draws
    (0, 0, 0, 1, 1, 1),
    (1, 2, 0, 32, 256, 1),
    (7, 2, 12345, 5, 33, 2),
    (2**32 - 1, 5, 2**32 - 3, 7, 17, 4),
    (2**31, 3, 2**45 + 11, 3, 64, 5),
    (9, 1, 2**33, 2, 100, 11),
]


@pytest.mark.parametrize("block", BLOCKS)
def test_bits_equal_the_plain_function(block):
    kernel = rng_returns_cpu.uniform(*block, "cpu")
    plain = rng.uniform.plain(*block, "cpu")
    assert kernel.shape == plain.shape and kernel.dtype == plain.dtype == torch.float32
    assert torch.equal(kernel, plain)
    assert kernel.shape[1] == 1 or kernel.stride(1) == 1  # envs lie side by side


def test_registered_for_the_cpu(monkeypatch):
    called = []
    monkeypatch.setattr(rng_returns_cpu, "_fill", lambda *shape: lambda *args: called.append((*shape, *args[1:3])))
    rng.uniform(1, 2, 0, 4, 8, 6, torch.device("cpu"))
    assert called == [(4, 8, 8, 2, 0)]
    assert rng.uniform(1, 2, 0, 4, 8, 0, "cpu").shape == (4, 8, 0)


def test_draws_do_not_depend_on_the_block_they_are_asked_in():
    whole = rng.uniform(3, 2, 10, 8, 40, 6, "cpu")
    assert torch.equal(whole[3:5, :20, :3], rng.uniform(3, 2, 13, 2, 20, 3, "cpu"))
    assert torch.equal(whole[:, 7:30], rng.uniform(3, 2, 10, 8, 23, 6, "cpu", first_env=7))
    assert torch.equal(whole[:, 7:30, :5], rng.uniform.plain(3, 2, 10, 8, 23, 5, "cpu", first_env=7))
    assert not torch.equal(whole, rng.uniform(4, 2, 10, 8, 40, 6, "cpu"))
    assert not torch.equal(whole, rng.uniform(3, 1, 10, 8, 40, 6, "cpu"))
    assert whole.min() >= 0 and whole.max() < 1


@pytest.mark.parametrize("seed", [0, 1, 2**31 + 5, 2**32 - 1, 2**32 + 1, 2**63 - 1])
@pytest.mark.parametrize("number, size", [(1, 1), (1, 2), (20, 256), (3, 625), (3, 700), (2, 5_000)])
def test_permutations_are_those_of_torch(seed, number, size):
    shuffled = rng_returns_cpu.shuffled(seed, number, size)
    assert shuffled.dtype == torch.int64 and torch.equal(shuffled, rng.shuffled.plain(seed, number, size))


def test_the_remainder_by_float64_is_exact():
    generator = np.random.default_rng(0)
    divisors = np.concatenate((generator.integers(1, 2**32, 50_000), np.arange(1, 300), 2**32 - np.arange(1, 300)))
    multiples = divisors * (generator.integers(0, 2**32, len(divisors)) // divisors)
    for x in (multiples, multiples - 1, multiples + 1, np.full(len(divisors), 2**32 - 1)):
        words, by = x.clip(0, 2**32 - 1).astype(np.uint32), divisors.astype(np.uint32)
        quotient = (words.astype(np.float64) / by.astype(np.float64)).astype(np.uint32)  # as the kernel's
        assert np.array_equal(words - quotient * by, words % by)


def test_permutations_of_many_threads_at_once():
    def shuffle(seed):
        return rng.shuffled(seed, 4, 300)

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(shuffle, range(400)))
    assert all(torch.equal(order, rng.shuffled.plain(seed, 4, 300)) for seed, order in enumerate(found))


def test_another_shuffle_of_torch_is_followed(monkeypatch):
    def reversed_order(size, generator):
        return torch.arange(size - 1, -1, -1)

    monkeypatch.setattr(torch, "randperm", reversed_order)
    rng_returns_cpu._shuffles_as_torch.cache_clear()
    try:
        assert rng.permutations(1, 2, 3, 1, 4).tolist() == [[3, 2, 1, 0]]
    finally:
        rng_returns_cpu._shuffles_as_torch.cache_clear()
