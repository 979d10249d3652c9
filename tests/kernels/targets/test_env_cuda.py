"""The CUDA backend: in Numba's simulator against the CPU kernel, its PTX, and on a GPU where there is one."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from helpers import simulator
from helpers.entity_envs import Ring
from helpers.kernel_envs import BRANCH_FREE, Medley, assert_steps_agree, rollout
from helpers.ptx import assert_lean, to_ptx

from headrace.envs.builtin.cartpole import CartPole
from headrace.envs.builtin.catch import Catch
from headrace.envs.builtin.grid_world import GridWorld
from headrace.envs.builtin.pendulum import Pendulum
from headrace.envs.builtin.pixel_pendulum import PixelPendulum
from headrace.envs.builtin.pursuit import Pursuit
from headrace.kernels.language.read import read
from headrace.kernels.runtime import cache
from headrace.kernels.targets.cpu.env import CpuEnvs
from headrace.kernels.targets.cuda.codegen_cuda import cuda_module
from headrace.kernels.targets.cuda.codegen_entities_cuda import entity_cuda_module
from headrace.kernels.targets.cuda.codegen_pixels_cuda import cuda_pixel_module
from headrace.kernels.targets.cuda.env import NUMBERS, CudaEnvs
from headrace.kernels.targets.random_actions import random_actions
from tests.kernels.targets.test_multi_agent_kernels import Duel, Herd, assert_agents_agree
from tests.kernels.targets.test_pixels import Chequered, Colours

in_simulator = pytest.mark.skipif(not simulator.SIMULATED, reason="runs in the process that test_simulator starts")
without_gpu = pytest.mark.skipif(simulator.SIMULATED or not torch.cuda.is_available(), reason="needs a GPU")


def on_gpu(test):
    """Marks a test that needs a GPU, and skips it without."""
    return pytest.mark.gpu(without_gpu(test))


@pytest.mark.skipif(simulator.SIMULATED, reason="is the simulator")
def test_simulator():
    """The tests marked in_simulator, in a process of their own: Numba reads the setting when it is imported."""
    simulator.assert_passes(__file__)


@in_simulator
@pytest.mark.parametrize("cls", [CartPole, Pendulum, Medley, GridWorld])
def test_simulated_steps_agree_with_the_cpu_kernel(cls):
    ir, num_envs = read(cls), 5
    ends = assert_steps_agree(CudaEnvs(ir, num_envs, block=4), CpuEnvs(ir, num_envs, threads=1), 11, seed=3)
    assert ends > 0 or cls is not Medley


@in_simulator
@pytest.mark.parametrize("cls", [CartPole, Medley, GridWorld])
def test_simulated_resets_are_bit_equal(cls):
    ir = read(cls)
    envs, reference = CudaEnvs(ir, 7, first_env=2), CpuEnvs(ir, 7, threads=1, first_env=2)
    envs.reset(rollout(ir, 1, 7), 2**32 - 5)
    reference.reset(rollout(ir, 1, 7), 2**32 - 5)
    for ours, theirs in zip(envs.state().values(), reference.state().values(), strict=True):
        assert torch.equal(ours.double(), theirs.double())


@in_simulator
@pytest.mark.parametrize("drift", [0.5, np.linspace(0.0, 1.0, 5)])
def test_simulated_parameters_of_all_or_of_each_world(drift):
    ir, params = read(Medley), {"drift": drift, "lanes": 5, "mirrored": True}
    assert_steps_agree(CudaEnvs(ir, 5, params), CpuEnvs(ir, 5, params, threads=1), 6, seed=1)


@in_simulator
def test_simulated_worlds_go_on_from_a_saved_state():
    ir = read(Medley)
    envs, columns = CudaEnvs(ir, 4), rollout(ir, 6, 4)
    envs.reset(columns, 3)
    for t in range(3):
        envs.step(columns, t)
    saved = envs.state_dict()
    for t in range(3, 6):
        envs.step(columns, t)
    wanted = columns.observation.clone()
    other = CudaEnvs(ir, 4)
    other.load_state_dict(saved)
    for t in range(3, 6):
        other.step(columns, t)
    assert torch.equal(columns.observation, wanted)
    other.set_state(envs.state())
    for ours, theirs in zip(envs.state().values(), other.state().values(), strict=True):
        assert torch.equal(ours, theirs)


def assert_same(ours, theirs):
    """All columns and the whole state of two environments, bit for bit."""
    (envs, columns), (others, wanted) = ours, theirs
    for name in columns.columns:
        assert torch.equal(getattr(columns, name), getattr(wanted, name)), name
    for mine, its in zip(envs.state_dict().values(), others.state_dict().values(), strict=True):
        assert torch.equal(torch.as_tensor(mine), torch.as_tensor(its))


def stepped_and_run(cls, num_copies, num_steps, device="cpu"):
    """The same environments twice: stepped one by one, and run in two launches."""
    ir = read(cls)
    both = []
    for one_by_one in (True, False):
        columns = rollout(ir, num_steps, num_copies * ir.num_agents, device)
        envs = CudaEnvs(ir, num_copies, device=device)
        envs.reset(columns, 5)
        if one_by_one:
            for t in range(num_steps):
                envs.step(columns, t)
        else:
            envs.run(columns, 0, 3)
            envs.run(columns, 3, num_steps)
        both.append((envs, columns))
    return both


def randomly_run(cls, num_copies, num_steps, device="cpu"):
    """Environments that draw their own actions, and environments that are given the same."""
    ir, counter = read(cls), 2**32 - 3
    num_envs = num_copies * ir.num_agents
    columns = rollout(ir, num_steps, num_envs, device)
    envs = CudaEnvs(ir, num_copies, device=device)
    envs.reset(columns, 9)
    envs.run_random(columns, 0, num_steps, counter)
    others, given = CudaEnvs(ir, num_copies, device=device), rollout(ir, num_steps, num_envs, device)
    others.reset(given, 9)
    given.action.copy_(random_actions(ir.action_space, 9, counter, num_steps, num_envs, device))
    others.run(given, 0, num_steps)
    return (envs, columns), (others, given)


@in_simulator
@pytest.mark.parametrize("cls", [Medley, GridWorld])
def test_simulated_runs_equal_single_steps(cls):
    ours, theirs = stepped_and_run(cls, 2, 9)
    assert_same(ours, theirs)
    assert not ours[1].valid[:-1].all() or cls is not Medley  # episodes ended on the way


@in_simulator
@pytest.mark.parametrize("cls", [CartPole, Pendulum, Medley])
def test_simulated_random_runs_take_the_actions_of_random_actions(cls):
    ours, theirs = randomly_run(cls, 2, 5)
    assert_same(ours, theirs)


def assert_draws_the_same(cls, num_envs, num_steps, device="cpu"):
    """The bytes of the CPU kernel, of its states."""
    ir = read(cls)
    ours, theirs = CudaEnvs(ir, num_envs, device=device), CpuEnvs(ir, num_envs, threads=1)
    mine, wanted = rollout(ir, num_steps, num_envs, device), rollout(ir, num_steps, num_envs)
    ours.reset(mine, 5)
    theirs.reset(wanted, 5)
    assert torch.equal(mine.observation[0].cpu(), wanted.observation[0])
    for t in range(num_steps):
        theirs.step(wanted, t)
        ours.load_state_dict(theirs.state_dict())
        mine.observation[t].copy_(wanted.observation[t])
        mine.valid[t].copy_(wanted.valid[t])
        ours._draw(t)
        assert torch.equal(mine.observation[t + 1].cpu(), wanted.observation[t + 1])


@in_simulator
@pytest.mark.parametrize("cls", [Colours, Chequered])
def test_simulated_pictures_have_the_bytes_of_the_cpu_kernel(cls):
    assert_draws_the_same(cls, 2, 6)


@in_simulator
@pytest.mark.parametrize("cls", [Pursuit, Herd, Duel])
def test_simulated_agents_agree_with_the_cpu_kernel(cls):
    num_steps = 10 if cls is not Pursuit else 101
    num_copies = 2 if cls is not Pursuit else 1
    envs = CudaEnvs(read(cls), num_copies)
    assert_agents_agree(envs, CpuEnvs(envs.ir, num_copies, threads=1), num_steps)


@in_simulator
@pytest.mark.parametrize("cls", [Herd, Duel])
def test_simulated_agents_run_as_they_step(cls):
    ours, theirs = stepped_and_run(cls, 2, 8)
    assert_same(ours, theirs)
    ours, theirs = randomly_run(cls, 2, 4)
    assert_same(ours, theirs)


@in_simulator
@pytest.mark.parametrize("block", [4, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 8))])
def test_simulated_entities_agree_with_the_cpu_kernel(block):
    """A block of threads for each environment: fewer than its entities, and more."""
    envs = CudaEnvs(read(Ring), 2, block=block)
    assert_agents_agree(envs, CpuEnvs(envs.ir, 2, threads=1), 6)


@pytest.mark.slow
@in_simulator
def test_simulated_entities_run_as_they_step():
    ours, theirs = stepped_and_run(Ring, 2, 6)
    assert_same(ours, theirs)
    ours, theirs = randomly_run(Ring, 2, 3)
    assert_same(ours, theirs)


@in_simulator
def test_simulated_runs_draw_every_row():
    ours, theirs = stepped_and_run(Colours, 2, 9)
    assert_same(ours, theirs)
    ours, theirs = randomly_run(Colours, 2, 5)
    assert_same(ours, theirs)


@pytest.fixture
def compile_ptx(monkeypatch):
    """Compiles a kernel of a EnvIR to PTX for an H100, without a GPU; skips where numba-cuda or NVVM are missing."""
    if simulator.SIMULATED:
        pytest.skip("the simulator makes no PTX")
    pytest.importorskip("numba_cuda")
    from numba import types

    def compile_kernel(ir, kernel):
        write = cuda_pixel_module if kernel == "draw" else entity_cuda_module if ir.entities else cuda_module
        module = cache.load(f"{ir.name}_{kernel}", write(ir, per_env=False, simulated=False))
        columns = rollout(ir, 1, 2 * ir.num_agents)
        packs = [types.float32[::1], types.int32[::1]]
        stored = {"i8": types.int8, "f32": types.float32, "i32": types.int32}
        arrays = [types.Array(stored[f.dtype], len(f.shape) + 1, "C") for f in ir.arrays]
        names = (
            "observation",
            "valid",
            "action",
            "reward",
            "terminated",
            "truncated",
            "episode_return",
            "episode_length",
        )
        tensors = [getattr(columns, name) for name in names]
        given = [types.Array(getattr(types, str(x.numpy().dtype)), x.dim(), "A") for x in tensors]
        if kernel == "draw":
            given = given[:2]
        signature = (*packs, *arrays, *given, *[types.int64] * NUMBERS.get(kernel, 1))
        return to_ptx(monkeypatch, getattr(module, kernel).py_func, signature)

    return compile_kernel


@pytest.mark.parametrize(
    "cls, kernel",
    [
        (CartPole, "step"),
        (Medley, "step"),
        (GridWorld, "reset"),
        (CartPole, "run"),
        (Medley, "run_random"),
        (Pendulum, "run_random"),
        (Pursuit, "step"),
        (PixelPendulum, "draw"),
        (Ring, "step"),
    ],
)
def test_ptx_has_no_doubles_and_spills_nothing(compile_ptx, tmp_path, cls, kernel):
    said = assert_lean(compile_ptx(read(cls), kernel), tmp_path, of_python=True)
    if cls is Ring and said:  # its fields, 16 parts of a sum of floats, and how a step ended
        assert f"{4 * (5 + 10 + 5 + 5) + 4 * 16 + 8} bytes smem" in said


def test_draws_are_never_contracted(compile_ptx):
    """CartPole's reset is draws alone: a product and a sum each, which are not one fma."""
    ptx = compile_ptx(read(CartPole), "reset")
    assert "mul.rn.f32" in ptx and "fma.rn.f32" not in ptx


@pytest.mark.parametrize("cls", [PixelPendulum, Colours])
def test_pictures_are_never_contracted(compile_ptx, cls):
    """Images have the same bytes on every target."""
    ptx = compile_ptx(read(cls), "draw")
    assert "mul.rn.f32" in ptx and "fma.rn.f32" not in ptx


@pytest.mark.skipif(simulator.SIMULATED, reason="numba.cuda is there")
def test_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba_cuda", None)
    with pytest.raises(ImportError, match=r'pip install "headrace\[cuda\]"'):
        CudaEnvs(read(CartPole), 4)


@pytest.mark.skipif(simulator.SIMULATED or torch.cuda.is_available(), reason="there is a GPU")
def test_missing_gpu_is_named():
    pytest.importorskip("numba_cuda")
    with pytest.raises(RuntimeError, match='needs an NVIDIA GPU that torch can use: use backend="cpu"'):
        CudaEnvs(read(CartPole), 4)


@on_gpu
@pytest.mark.parametrize("cls", [*BRANCH_FREE, Medley, GridWorld, Catch])
def test_gpu_steps_agree_with_the_cpu_kernel(cls):
    ir = read(cls)
    assert_steps_agree(CudaEnvs(ir, 300), CpuEnvs(ir, 300, threads=1), 50, seed=3, device="cuda")


@on_gpu
@pytest.mark.parametrize("cls", [CartPole, Medley, GridWorld])
def test_gpu_runs_equal_single_steps(cls):
    assert_same(*stepped_and_run(cls, 300, 40, "cuda"))


@on_gpu
@pytest.mark.parametrize("cls", [CartPole, Pendulum, Medley])
def test_gpu_random_runs_take_the_actions_of_random_actions(cls):
    assert_same(*randomly_run(cls, 300, 40, "cuda"))


@on_gpu
@pytest.mark.parametrize("cls", [PixelPendulum, Colours, Chequered])
def test_gpu_pictures_have_the_bytes_of_the_cpu_kernel(cls):
    assert_draws_the_same(cls, 100, 20, "cuda")


@on_gpu
@pytest.mark.parametrize("cls", [Pursuit, Herd, Duel])
def test_gpu_agents_agree_with_the_cpu_kernel(cls):
    envs = CudaEnvs(read(cls), 200)
    assert_agents_agree(envs, CpuEnvs(envs.ir, 200, threads=1), 110, "cuda")
    assert_same(*stepped_and_run(cls, 200, 40, "cuda"))
    assert_same(*randomly_run(cls, 200, 40, "cuda"))


@on_gpu
@pytest.mark.parametrize("cls", [CartPole, GridWorld, PixelPendulum])
def test_gpu_steps_are_captured_in_a_graph(cls):
    """All steps of a rollout in one graph, replayed, give the bits of steps launched one by one."""
    ir = read(cls)
    envs, columns = CudaEnvs(ir, 200), rollout(ir, 16, 200, "cuda")
    envs.reset(columns, 3)
    start = envs.state_dict()
    for t in range(16):
        envs.step(columns, t)
    wanted = [columns.observation.clone(), columns.reward.clone(), columns.valid.clone()]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for t in range(16):
            envs.step(columns, t)
    envs.load_state_dict(start)
    columns.reward.zero_()
    graph.replay()
    for ours, theirs in zip([columns.observation, columns.reward, columns.valid], wanted, strict=True):
        assert torch.equal(ours, theirs)
