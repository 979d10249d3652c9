"""All checks of one environment."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import gymnasium

from headrace import envs
from headrace.checks import batch, random_rollout, unchecked
from headrace.checks.against import against
from headrace.checks.backends import Cost, costs
from headrace.checks.finding import Finding, raised
from headrace.checks.random_rollout import StepTimes
from headrace.checks.third_party import gymnasium_checker, pettingzoo_checker
from headrace.core.stopping import close
from headrace.core.types import Settings
from headrace.core.user_names import Misnamed
from headrace.data.spaces import action_column, observation_column
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.envs.registry import Source
from headrace.evaluation.recipe import kernel_class
from headrace.kernels.language.errors import EnvError

BATCH = 4  # environments of a batch check
UNEVEN = 10  # multiple of the median: if one step in a hundred takes longer, synchronous workers wait often

# settings that may be registered for an environment -> options of envs.factory()
OF_MAKING = {"wrapper": "wrappers", **{name: name for name in ("frame_stack", "time_limit", "ignore", "info_mask")}}

Result = tuple[list[Finding], StepTimes | None]


class Report(NamedTuple):
    """Findings about an environment."""

    name: str
    findings: list[Finding]
    times: StepTimes | None  # of its step; None if no step was possible
    costs: list[Cost]


def check(
    source: Source,
    steps: int = 1000,
    seconds: float = 2.0,
    seed: int = 0,
    measure: float = 0.5,
    options: Settings | None = None,
) -> Report:
    """Step environments with random actions, run Gymnasium's or PettingZoo's checker, compare a port with its
    reference, and measure the backends. A KernelEnv is first run in plain Python (headrace.checks.unchecked).

    The random rollout ends after `steps` steps or `seconds`, whichever is reached first. measure: seconds for each
    backend; 0 for none. options: those of OF_MAKING and env_kwargs, in place of registered ones. Raises what make()
    raises for an unknown source.
    """
    name, kernel = envs.spec(source).name, kernel_class(source)
    found = [] if kernel is None else [unchecked.check(kernel, steps, seconds, seed)]
    if any(finding.outcome == "wrong" for finding in found):  # compiled, it could read memory of others, or hang
        return Report(name, found, None, [])
    made = {**registered(source), **{OF_MAKING.get(key, key): value for key, value in (options or {}).items()}}
    check = _check_batch if kernel is None and envs.comes_as_vector(source) else _check_single
    findings, times = check(source, made, steps, seconds, seed)
    if kernel is not None:
        findings = [*found, *findings, *_check_port(kernel, seed)]
    elif times is not None:  # a kernel's times are those of plain Python, which training does not use
        findings += uneven(times)
    return Report(name, findings, times, costs(source, kernel, measure, made))


def _check_single(source: Source, made: Settings, steps: int, seconds: float, seed: int) -> Result:
    """Check one environment: the reference of a port, a KernelEnv in plain Python, or the one that the source makes."""
    factory = envs.factory(source, **made)  # type: ignore[arg-type]
    try:
        env = factory()
    except (ImportError, Misnamed):
        raise
    except Exception as error:
        return [raised("the constructor", error)], None
    with ExitStack() as stack:
        stack.callback(close, env, f"the environment {envs.spec(source).name}")
        if isinstance(env, gymnasium.Env):
            findings = [
                random_rollout.supported(
                    env.observation_space, partial(observation_column, ignorable=True), "observation_space"
                ),
                random_rollout.supported(env.action_space, action_column, "action_space"),
                *gymnasium_checker(env),
            ]
            try:
                seen = random_rollout.run(env, steps, seconds, seed)
                times = StepTimes.of(seen.steps, seen.resets)
                findings += random_rollout.findings(seen, env)
                return findings + random_rollout.seeding(factory, env, seed, times.median, stack.close), times
            except Exception as error:
                return [*findings, raised("a random rollout", error)], None
    findings, batch_times = _check_batch(source, made, steps, seconds, seed)
    return [*pettingzoo_checker(factory), *findings], batch_times


def _check_batch(source: Source, made: Settings, steps: int, seconds: float, seed: int) -> Result:
    """Check a vector of environments, or environments with several agents."""
    try:
        return batch.check(lambda: envs.make(source, BATCH, **made), steps, seconds, seed)
    except (ImportError, Misnamed):
        raise
    except Exception as error:
        return [raised(f"a batch of {BATCH}", error)], None


def registered(source: Source) -> Settings:
    """Options with which a training makes a source: those registered for it with the first algorithm that has any."""
    if kernel_class(source) is not None:
        return {}
    of_each = envs.spec(source).defaults.values()
    found = ({OF_MAKING[name]: x for name, x in known.items() if name in OF_MAKING} for known in of_each)
    return next(filter(None, found), {})


def uneven(times: StepTimes) -> list[Finding]:
    """A note if some steps take much longer than most."""
    if times.p99 < UNEVEN * times.median or times.p99 < 1e-3:
        return []
    found = f"one step in a hundred takes {times.p99 / times.median:.0f} times the median"
    advice = "with workers, --collection async does not wait for slow steps: see docs/workers.md"
    return [Finding("step time", "note", found, advice)]


def _check_port(kernel: type[KernelEnv], seed: int) -> list[Finding]:
    """Compare a KernelEnv with its reference, if it has one."""
    if kernel.gymnasium_id is None:
        return []
    try:
        findings = against(kernel, envs.factory(kernel.gymnasium_id), seed=seed)
    except EnvError as error:
        return [Finding("kernel", "wrong", str(error))]
    return [finding._replace(check=f"kernel: {finding.check}") for finding in findings]
