"""The compiled rng.uniform gives the bits of the plain one."""

from __future__ import annotations

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
    monkeypatch.setattr(rng_returns_cpu, "_fill", lambda: lambda out, *args: called.append(args[:2]))
    rng.uniform(1, 2, 0, 4, 8, 6, torch.device("cpu"))
    assert called == [(2, 0)]
    assert rng.uniform(1, 2, 0, 4, 8, 0, "cpu").shape == (4, 8, 0)


def test_draws_do_not_depend_on_the_block_they_are_asked_in():
    whole = rng.uniform(3, 2, 10, 8, 40, 6, "cpu")
    assert torch.equal(whole[3:5, :20, :3], rng.uniform(3, 2, 13, 2, 20, 3, "cpu"))
    assert torch.equal(whole[:, 7:30], rng.uniform(3, 2, 10, 8, 23, 6, "cpu", first_env=7))
    assert torch.equal(whole[:, 7:30, :5], rng.uniform.plain(3, 2, 10, 8, 23, 5, "cpu", first_env=7))
    assert not torch.equal(whole, rng.uniform(4, 2, 10, 8, 40, 6, "cpu"))
    assert not torch.equal(whole, rng.uniform(3, 1, 10, 8, 40, 6, "cpu"))
    assert whole.min() >= 0 and whole.max() < 1
