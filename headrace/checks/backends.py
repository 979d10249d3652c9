"""Find the backends that can run an environment on this machine, and the cost of a step on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from time import perf_counter
from typing import NamedTuple

import torch

from headrace import envs
from headrace.checks.batch import ROWS, fill
from headrace.core.cores import cores
from headrace.core.device import torch_threads
from headrace.core.types import Settings
from headrace.data.rollout import Rollout
from headrace.envs.base import Env
from headrace.envs.registry import Source
from headrace.kernels.language.errors import EnvError

NUM_ENVS = {"cpu": 1024, "cuda": 16384, "torch": 1024, "inline": 4, "vector": 8}


class Cost(NamedTuple):
    """The cost of a step on a backend."""

    backend: str
    seconds: float | None  # of a step of one environment; None if it cannot run, or was not measured
    note: str  # the number of environments, or why it cannot run


def costs(source: Source, kernel: type | None, seconds: float, options: Settings | None = None) -> list[Cost]:
    """Measure every backend, in the order of `headrace.make`. seconds: time for each; 0 measures none. options: of
    make(), for environments that are made one by one."""
    found = _backends(source, kernel, options or {})
    return [_cost(name, build, why_not, seconds) for name, build, why_not in found]


def _backends(source: Source, kernel: type | None, options: Settings) -> Iterator[tuple[str, Callable[[], Env], str]]:
    """Yield for each backend its name, a function that makes its environments, and why it cannot run, or ""."""
    compiled = "" if kernel is not None else "is for a KernelEnv: see docs/own-environments.md"
    vector = "" if envs.comes_as_vector(source) else "does not come as a vector of environments"
    why_not = {"cpu": compiled, "cuda": compiled or _no_cuda(), "torch": compiled, "vector": vector}
    for backend, number in NUM_ENVS.items():
        own = options if backend == "inline" else {}
        yield backend, partial(envs.make, source, number, backend=backend, **own), why_not.get(backend, "")
        if backend == "inline":
            yield "workers", partial(envs.make, source, 2 * cores(), workers=cores(), **own), ""


def _no_cuda() -> str:
    if not torch.cuda.is_available():
        return "no CUDA device here"
    return "" if find_spec("numba_cuda") else 'pip install "headrace[cuda]"'


def _cost(backend: str, build: Callable[[], Env], why_not: str, seconds: float) -> Cost:
    if why_not or not seconds:
        return Cost(backend, None, why_not or "not measured")
    try:
        env = build()
    except (EnvError, ImportError, TypeError, ValueError) as error:  # the message says why it cannot run
        return Cost(backend, None, str(error).splitlines()[0])
    except Exception as error:
        return Cost(backend, None, _raised(error))
    with closing(env):
        try:
            return Cost(backend, step_seconds(env, seconds), _number(backend, env))
        except Exception as error:
            return Cost(backend, None, _raised(error))


def _raised(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _number(backend: str, env: Env) -> str:
    agents = env.num_agents
    number = f"{env.num_copies:,} environments" + (f" of {agents} agents" if agents > 1 else "")
    return f"{number} in {cores()} processes" if backend == "workers" else number


def step_seconds(env: Env, seconds: float) -> float:
    """Seconds of a step of one environment with random actions, measured for `seconds` after a first rollout."""
    rollout = env.rollout(ROWS, env.columns())
    fill(env.action_space, rollout.action, 0)
    env.reset(rollout, 0)
    with torch_threads(1):
        _run(env, rollout)
        steps, began = 0, perf_counter()
        while not steps or perf_counter() - began < seconds:
            rollout.continue_from(rollout)
            _run(env, rollout)
            steps += ROWS * env.num_envs
        return (perf_counter() - began) / steps


def _run(env: Env, rollout: Rollout) -> None:
    for t in range(ROWS):
        env.step(rollout, t)
    if rollout.device.type == "cuda":
        torch.cuda.synchronize(rollout.device)
