"""Which backends can run an environment on this machine, and what each costs a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from time import perf_counter
from typing import Any, NamedTuple

import torch

from headrace import envs
from headrace.checks.batch import ROWS, fill
from headrace.core.cores import cores
from headrace.core.device import torch_threads
from headrace.data.rollout import Rollout
from headrace.envs.base import columns_of, rollout_for
from headrace.kernels.language.errors import EnvError

WORLDS = {"cpu": 1024, "torch": 1024, "cuda": 16384, "inline": 4, "vector": 8}


class Cost(NamedTuple):
    """What a backend costs."""

    backend: str
    seconds: float | None  # of a step of one world; None where the backend cannot run it, or was not measured
    note: str  # with how many worlds, or why not


def costs(source: Any, kernel: type | None, seconds: float) -> list[Cost]:
    """Every backend that there is, in the order of `headrace.make`. seconds: to measure each; 0 measures none."""
    return [_cost(name, build, why_not, seconds) for name, build, why_not in _backends(source, kernel)]


def _backends(source: Any, kernel: type | None) -> Iterator[tuple[str, Callable[[], Any], str]]:
    """Name, what makes its environments, and why it cannot run; empty where it can."""
    uncompiled = "" if kernel is not None else "is for a KernelEnv: see docs/environments.md"
    for backend in ("cpu", "cuda", "torch"):
        why_not = uncompiled or (_no_cuda() if backend == "cuda" else "")
        yield backend, partial(envs.make, source, WORLDS[backend], backend=backend), why_not
    yield "inline", partial(envs.make, source, WORLDS["inline"], backend="inline"), ""
    number = cores()
    yield "workers", partial(envs.make, source, 2 * number, workers=number), ""
    many = envs.comes_as_vector(source)
    yield (
        "vector",
        partial(envs.make, source, WORLDS["vector"], backend="vector"),
        "" if many else "does not come as a vector of environments",
    )


def _no_cuda() -> str:
    if not torch.cuda.is_available():
        return "no CUDA device here"
    return "" if find_spec("numba_cuda") else 'pip install "headrace[cuda]"'


def _cost(backend: str, build: Callable[[], Any], why_not: str, seconds: float) -> Cost:
    if why_not:
        return Cost(backend, None, why_not)
    if not seconds:
        return Cost(backend, None, "not measured")
    try:
        env = build()
    except (EnvError, ImportError, TypeError, ValueError) as error:  # says what is in the way
        return Cost(backend, None, str(error).splitlines()[0])
    except Exception as error:
        return Cost(backend, None, _raised(error))
    try:
        return Cost(backend, step_seconds(env, seconds), _with(backend, env))
    except Exception as error:
        return Cost(backend, None, _raised(error))
    finally:
        env.close()


def _raised(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _with(backend: str, env: Any) -> str:
    agents = getattr(env, "num_agents", 1)
    worlds = f"{env.num_envs // agents:,} worlds" + (f" of {agents} agents" if agents > 1 else "")
    return f"{worlds} in {cores()} processes" if backend == "workers" else worlds


def step_seconds(env: Any, seconds: float) -> float:
    """Seconds of a step of one world by random actions, measured for so long after a first rollout."""
    rollout = rollout_for(env, ROWS, columns_of(env))
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


def _run(env: Any, rollout: Rollout) -> None:
    for t in range(ROWS):
        env.step(rollout, t)
    if rollout.device.type == "cuda":
        torch.cuda.synchronize(rollout.device)
