"""Random numbers, permutations and advantages on CUDA, in Numba's simulator: as the plain functions."""

from __future__ import annotations

import pytest
import torch
from helpers import simulator
from helpers.ptx import assert_lean, to_ptx

from headrace.core import rng
from headrace.core.returns import gae
from headrace.kernels.targets.cuda import random_and_gae

in_simulator = pytest.mark.skipif(not simulator.SIMULATED, reason="runs in the process that test_simulator starts")
without_gpu = pytest.mark.skipif(simulator.SIMULATED or not torch.cuda.is_available(), reason="needs a GPU")
BLOCKS = [(1, 2, 0, 3, 5, 1), (7, 2, 12345, 2, 3, 2), (2**32 - 1, 3, 2**33 - 1, 2, 4, 7), (5, 0, 2**45, 1, 2, 4)]


@pytest.mark.skipif(simulator.SIMULATED, reason="is the simulator")
def test_simulator():
    """The tests marked in_simulator, in a process of their own: Numba reads the setting when it is imported."""
    simulator.assert_passes(__file__)


def assert_draws_are_the_plain_ones(block, device):
    seed, purpose, first_step, *sizes = block
    expected = rng.uniform.plain(*block, "cpu")
    for counter in (first_step, torch.tensor(first_step, device=device)):
        drawn = random_and_gae.uniform(seed, purpose, counter, *sizes, device)
        assert torch.equal(drawn.cpu(), expected)
        *rest, num_envs, num_draws = sizes
        part = random_and_gae.uniform(seed, purpose, counter, *rest, num_envs - 1, num_draws, device, first_env=1)
        assert torch.equal(part.cpu(), expected[:, 1:])


def assert_advantages_are_the_plain_ones(num_steps, num_envs, device):
    generator = torch.Generator().manual_seed(0)
    columns = [torch.randn(num_steps, num_envs, generator=generator) for _ in range(2)]
    edge = torch.randn(num_steps + 1, num_envs, generator=generator)
    columns[1:] = [edge[:-1], edge[1:]]
    columns += [torch.rand(num_steps, num_envs, generator=generator) < 0.2 for _ in range(2)]
    found = random_and_gae.gae(*(x.to(device) for x in columns), 0.97, 0.9).cpu()
    torch.testing.assert_close(found, gae.plain(*columns, 0.97, 0.9), rtol=1e-5, atol=1e-5)


@in_simulator
@pytest.mark.parametrize("block", BLOCKS)
def test_simulated_draws_are_bit_equal(block):
    assert_draws_are_the_plain_ones(block, "cpu")


def assert_permutations_are_the_plain_ones(device, *sizes):
    for counter in (5, torch.tensor(2**33 + 1, device=device)):
        found = random_and_gae.scattered(2**32 - 1, rng.Purpose.SHUFFLE, counter, *sizes, device)
        assert torch.equal(found.cpu(), rng.scattered.plain(2**32 - 1, rng.Purpose.SHUFFLE, counter, *sizes, "cpu"))


@in_simulator
@pytest.mark.parametrize("digits", [0, 1, 2, 5, 8])
def test_simulated_permutations_are_bit_equal(digits):
    assert_permutations_are_the_plain_ones("cpu", 2, digits)


@in_simulator
def test_simulated_advantages_agree():
    assert_advantages_are_the_plain_ones(7, 5, "cpu")


@pytest.mark.gpu
@without_gpu
@pytest.mark.parametrize("block", BLOCKS)
def test_gpu_draws_are_bit_equal(block):
    assert_draws_are_the_plain_ones(block, "cuda")


@pytest.mark.gpu
@without_gpu
@pytest.mark.parametrize("digits", [0, 7, 20])
def test_gpu_permutations_are_bit_equal(digits):
    assert_permutations_are_the_plain_ones("cuda", 4, digits)


@pytest.mark.gpu
@without_gpu
def test_gpu_advantages_agree():
    assert_advantages_are_the_plain_ones(40, 1000, "cuda")


@pytest.mark.skipif(simulator.SIMULATED, reason="the simulator makes no PTX")
@pytest.mark.parametrize("kernel", ["fill", "scatter", "advantages"])
def test_ptx_has_no_doubles_and_spills_nothing(monkeypatch, tmp_path, kernel):
    pytest.importorskip("numba_cuda")
    from numba import types

    column, flags = types.float32[:, ::1], types.boolean[:, ::1]
    signature = {
        "fill": (types.float32[:, :, ::1], types.int64[::1], *[types.int64] * 3),
        "scatter": (types.int64[:, ::1], types.int64[::1], *[types.int64] * 3),
        "advantages": (*[column] * 4, flags, flags, types.float32, types.float32),
    }[kernel]
    assert_lean(to_ptx(monkeypatch, getattr(random_and_gae._module(), kernel).py_func, signature), tmp_path)
