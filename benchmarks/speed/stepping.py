"""Ways to step N environments of one class, for step_time.py and work_per_step.py: each is a call of several steps.

Headrace's backends step into the columns of a rollout, as in training. Random actions are drawn beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from benchmarks.common import Neighbours, Row, cores, throughput
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
from headrace.envs.compiled.env import CompiledEnv
from headrace.kernels.language.read import read

ACTIONS = 64  # rows of actions, used in turn


class Way(NamedTuple):
    """Way to run environments. name: as in rows; label: in figures; most: the largest sensible number."""

    name: str
    label: str
    most: int
    block: int = 0  # threads a block, of a GPU's kernel


SUBPROCESS = Way("subprocess", "subprocess (Gymnasium)", 64)
TORCH = Way("torch", "torch, CPU", 2**20)
KERNEL = Way("kernel", "kernel, 1 thread", 2**20)
THREADED = Way("kernel-threads", f"kernel, {cores()} threads", 2**20)
ON_CPU = (SUBPROCESS, TORCH, KERNEL, THREADED)
BLOCKS = (32, 64, 128, 256, 512, 1024)


def ways() -> list[Way]:
    """All that this machine can run: with a GPU also torch there, and its kernel by threads a block."""
    if not torch.cuda.is_available():
        return list(ON_CPU)
    kernels = [Way(f"cuda-{block}", f"CUDA kernel, {block} threads a block", 2**20, block) for block in BLOCKS]
    return [*ON_CPU, Way("torch-cuda", "torch, GPU", 2**20), *kernels]


def measure(way: Way, kernel: type, original: Callable[[], gymnasium.Env], num_envs: int, seconds: float) -> Row:
    """Seconds of one step of all environments: the median of three windows, the shortest, the longest."""
    neighbours = Neighbours()
    if way is SUBPROCESS:
        step, steps, close = subprocess_step(original, num_envs)
    else:
        step, steps, close = rollout_step(way, kernel, num_envs)
    rate = throughput(step, steps, seconds)
    close()  # ended processes count as this one's, not as other programs
    times = {"step_s": 1 / rate["sps"], "step_s_min": 1 / rate["sps_max"], "step_s_max": 1 / rate["sps_min"]}
    counts = {"num_envs": num_envs, "sps": rate["sps"] * num_envs}
    return {"library": "headrace", "config": way.name, **counts, **times, "others_cpu": neighbours.busy()}


def subprocess_step(original: Callable[[], gymnasium.Env], num_envs: int) -> tuple[Callable[[], Any], int, Any]:
    """Gymnasium's AsyncVectorEnv: a process for each environment."""
    env = gymnasium.vector.AsyncVectorEnv([original] * num_envs)
    env.reset(seed=0)
    drawn, turn = np.random.default_rng(0).integers(0, 2, (ACTIONS, num_envs)), 0

    def step() -> None:
        nonlocal turn
        turn += 1
        env.step(drawn[turn % ACTIONS])

    return step, 1, env.close


def rollout_step(way: Way, kernel: type, num_envs: int) -> tuple[Callable[[], Any], int, Any]:
    """A whole rollout a call. On a GPU it is captured once in a CUDA graph, and waited for."""
    num_steps = max(4, min(64, 524_288 // num_envs))
    envs, device = make(way, kernel, num_envs)
    columns = env_columns(kernel.observation_space) | {"action": action_column(kernel.action_space)}
    rollout = Rollout(num_steps, num_envs, columns, device)
    envs.reset(rollout, 0)
    rollout.action.copy_(torch.randint(0, kernel.action_space.n, rollout.action.shape))

    def step() -> None:
        for t in range(num_steps):
            envs.step(rollout, t)
        rollout.continue_from(rollout)

    return (captured(step) if device.type == "cuda" else step), num_steps, lambda: None


def make(way: Way, kernel: type, num_envs: int) -> tuple[Any, torch.device]:
    """The environments, and where they are."""
    if way.block:
        from headrace.kernels.targets.cuda.env import CudaEnvs

        return CudaEnvs(read(kernel), num_envs, block=way.block), torch.device("cuda")
    if way.name.startswith("torch"):
        device = torch.device("cuda" if way.name == "torch-cuda" else "cpu")
        return CompiledEnv(kernel, num_envs, "torch", device=device), device
    threads = cores() if way is THREADED else 1
    return CompiledEnv(kernel, num_envs, "cpu", threads), torch.device("cpu")


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """The launches of `step` as one CUDA graph; a call replays it and waits for the end."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what the first call sets up has no place in a graph
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def replay() -> None:
        graph.replay()
        torch.cuda.synchronize()

    return replay
