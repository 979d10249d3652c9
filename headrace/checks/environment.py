"""All checks of one environment."""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace import envs
from headrace.checks import batch
from headrace.checks import random_rollout as walking
from headrace.checks.against import against
from headrace.checks.agents import said_by_pettingzoo
from headrace.checks.backends import Cost, costs
from headrace.checks.finding import Finding
from headrace.data.spaces import action_column, observation_column
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.evaluation.evaluator import kernel_class
from headrace.kernels.language.errors import EnvError

RAISES = "an exception ends a training, or with on_error='restart' the episode: mend what raises it"
MANY = 4  # worlds that are looked at together
UNEVEN = 10  # times the median: where one step in a hundred takes so long, others wait for it


class Report(NamedTuple):
    """What was found of an environment."""

    name: str
    findings: list[Finding]
    times: walking.Times | None  # of its step; None where it could not be made
    costs: list[Cost]


def check(source: Any, steps: int = 1000, seconds: float = 2.0, seed: int = 0, measure: float = 0.5) -> Report:
    """Walk through a source's worlds, ask Gymnasium's or PettingZoo's checker, compare a kernel with its original, and
    measure the backends.

    steps, seconds: of the walk, whichever is over first. measure: seconds for each backend; 0 for none.
    Raises what make() raises for a source that is not known.
    """
    name, kernel = envs.spec(source).name, kernel_class(source)
    walk = _many if kernel is None and envs.comes_as_vector(source) else _one
    findings, times = walk(source, steps, seconds, seed)
    if kernel is not None:
        findings += _kernel(kernel, seed)
    elif times is not None:  # those of a kernel are of its plain Python, which no training runs
        findings += uneven(times)
    return Report(name, findings, times, costs(source, kernel, measure))


def _one(source: Any, steps: int, seconds: float, seed: int) -> tuple[list[Finding], walking.Times | None]:
    """One world: the original of a port, a KernelEnv in plain Python, or what the source makes."""
    factory = envs.factory(source)
    try:
        env: Any = factory()
    except ImportError:
        raise
    except Exception as error:
        return [_raised("making it", error)], None
    if hasattr(env, "possible_agents"):
        env.close()
        findings, times = _many(source, steps, seconds, seed)
        return [*said_by_pettingzoo(factory), *findings], times
    findings = [
        walking.supported(env.observation_space, observation_column, "observation_space"),
        walking.supported(env.action_space, action_column, "action_space"),
        *walking.said_by_gymnasium(env),
    ]
    try:
        found = walking.walk(env, steps, seconds, seed)
        times = walking.Times.of(found.steps, found.resets)
        findings += walking.findings(found, env)
        findings += walking.seeding(factory, env, seed, times.median)
    except Exception as error:
        return [*findings, _raised("a walk", error)], None
    finally:
        env.close()
    return findings, times


def _many(source: Any, steps: int, seconds: float, seed: int) -> tuple[list[Finding], walking.Times | None]:
    """Worlds that come as a vector of them, or are shared by several agents."""
    try:
        return batch.check(lambda: envs.make(source, MANY), steps, seconds, seed)
    except ImportError:
        raise
    except Exception as error:
        return [_raised(f"{MANY} of them", error)], None


def _raised(what: str, error: Exception) -> Finding:
    notes = "; ".join(getattr(error, "__notes__", []))
    return Finding("exceptions", "wrong", f"{what} raised {type(error).__name__}: {error} {notes}".rstrip(), RAISES)


def uneven(times: walking.Times) -> list[Finding]:
    """A note, where some steps take much longer than most."""
    if times.p99 < UNEVEN * times.median or times.p99 < 1e-3:
        return []
    found = f"one step in a hundred takes {times.p99 / times.median:.0f} times the median"
    return [
        Finding(
            "step time",
            "note",
            found,
            "in workers others need not wait for it: --collection async, see docs/environments.md",
        )
    ]


def _kernel(kernel: type[KernelEnv], seed: int) -> list[Finding]:
    """The compiled class beside its original."""
    if kernel.gymnasium_id is None:
        return []
    try:
        return [
            finding._replace(check=f"kernel: {finding.check}")
            for finding in against(kernel, envs.factory(kernel.gymnasium_id), seed=seed)
        ]
    except EnvError as error:
        return [Finding("kernel", "wrong", str(error))]
