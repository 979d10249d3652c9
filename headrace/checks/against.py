"""Compare a port with its reference, the environment that it was ported from, by single steps from states that the
reference visits.

Trajectories are not compared: in an unstable environment rounding errors of float32 grow, while single steps agree up
to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Space, Tuple, flatdim
from gymnasium.wrappers import FlattenObservation

from headrace.checks.finding import Finding
from headrace.checks.reference import Reference, State
from headrace.data.flat_dict import FlatDict
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, describe, drawable, env_columns
from headrace.envs.compiled.env import CompiledEnv
from headrace.envs.gym.columns import outcome_of
from headrace.envs.gym.wrapping import time_limit_of
from headrace.kernels.language.ir import EnvIR
from headrace.kernels.language.read import read

ALLOWED = 1e-5  # largest difference of a number x, relative to max(1, |x|)
BORDERLINE = 1e-3  # fraction of steps that may differ: at a threshold rounding decides whether an episode ends
HOLD = 12  # number of steps that repeat an action
RESETS = 1000
CRITICAL = 2.7  # Kolmogorov-Smirnov: two samples of one distribution exceed it once in a million times
OUTCOME = ("reward", "terminated", "truncated")
EQUAL = "make them equal"


class Visited(NamedTuple):
    """One step of the reference."""

    state: State  # before the step
    length: int  # steps of its episode before
    action: np.ndarray
    after: State
    outcome: dict[str, np.ndarray]  # observation, reward, terminated, truncated


def against(
    cls: type,
    reference: Callable[[], gymnasium.Env],
    steps: int = 2000,
    seed: int = 0,
    allowed: float = ALLOWED,
    backend: str = "cpu",
) -> list[Finding]:
    """Compare a KernelEnv with the environment that `reference()` makes: spaces, time limit, single steps, and the
    distribution of initial states.

    allowed: largest difference of a number x, relative to max(1, |x|). backend: the kernel's, "cpu" or "torch".
    Raises TypeError if the state of the reference cannot be read (see headrace.checks.reference), and for several
    agents.
    """
    source = read(cls)
    if source.num_agents > 1:
        raise TypeError(f"{source.name} has {source.num_agents} agents: only kernels of one agent can be compared")
    with closing(reference()) as env:
        findings = _compare_spaces(source, env)
        if isinstance(env.observation_space, Dict | Tuple) and env.observation_space.is_np_flattenable:
            env = FlattenObservation(env)
        if any(finding.outcome == "wrong" for finding in findings):
            return findings
        env.reset(seed=seed)
        visited = list(_visit(Reference(source, env), env, steps, seed))
        findings.append(_compare_steps(source, visited, allowed, backend))
        return [*findings, _compare_resets(source, env, seed, backend)]


def _compare_spaces(source: EnvIR, env: gymnasium.Env) -> list[Finding]:
    """Compare spaces and time limits. If the shapes of spaces differ, no steps can be compared."""
    found = []
    for name, kernel, expected in (
        ("observation_space", source.observation_space, env.observation_space),
        ("action_space", source.action_space, env.action_space),
    ):
        if kernel == expected:
            found.append(Finding(name, "ok", describe(kernel)))
        elif sizes := _flat_sizes(kernel, expected):
            how = "compared in the order of gymnasium.spaces.flatten, by sorted names"
            what = f"{kernel} in the kernel, {expected} in the reference, of {sizes[0]} and {sizes[1]} numbers"
            alike = sizes[0] == sizes[1]
            found.append(Finding(name, "note", f"{what}: {how}") if alike else Finding(name, "wrong", what, EQUAL))
        else:
            comparable = type(kernel) is type(expected) and kernel.shape == expected.shape
            found.append(_unequal(name, kernel, expected, comparable))
    if source.max_steps == time_limit_of(env):
        return [*found, Finding("max_steps", "ok", str(source.max_steps))]
    return [*found, _unequal("max_steps", source.max_steps, time_limit_of(env), True)]


def _unequal(name: str, kernel: Space | int | None, expected: Space | int | None, comparable: bool) -> Finding:
    found = f"{kernel} in the kernel, {expected} in the reference"
    return Finding(name, "note" if comparable else "wrong", found, EQUAL)


def _flat_sizes(kernel: Space, expected: Space) -> tuple[int, int] | None:
    """Numbers of two spaces of which one is a Dict or a Tuple, and the other a vector or another Dict; else None."""
    flat = [isinstance(space, Dict | Tuple | FlatDict) for space in (kernel, expected)]
    vectors = [isinstance(space, Box) and len(space.shape) == 1 for space in (kernel, expected)]
    if not any(flat) or not all(a or b for a, b in zip(flat, vectors, strict=True)):
        return None
    return (flatdim(kernel), flatdim(expected)) if expected.is_np_flattenable else None


def _sorted(space: Space, rows: np.ndarray) -> np.ndarray:
    """Observations [N, F] of a kernel in Gymnasium's order."""
    if not isinstance(space, FlatDict):
        return rows
    return np.concatenate([rows[:, space.slices[name]] for name in sorted(space.slices)], 1)


def _visit(reference: Reference, env: gymnasium.Env, steps: int, seed: int) -> Iterator[Visited]:
    """Record steps of the reference with random actions. Each begins at a state rounded to the kernel's dtypes, if the
    state can be set.

    In every second episode each action is repeated for HOLD steps, which reaches more distant states.
    """
    actions = drawable(env.action_space)
    actions.seed(seed)
    length = episode = 0
    for _ in range(steps):
        before = reference.state()
        if reference.settable:
            reference.set(before)
        if length % (HOLD if episode % 2 else 1) == 0:
            action = actions.sample()
        observation, reward, terminated, truncated, _ = outcome_of(env.step(action))
        outcome = {"observation": observation, "reward": reward, "terminated": terminated, "truncated": truncated}
        arrays = {name: np.array(value) for name, value in outcome.items()}  # copies: it may overwrite them
        yield Visited(before, length, np.asarray(action), reference.state(), arrays)
        length += 1
        if terminated or truncated:
            env.reset()
            length, episode = 0, episode + 1


def _compare_steps(source: EnvIR, visited: list[Visited], allowed: float, backend: str) -> Finding:
    """Compare all steps with those of the kernel, with one kernel environment per step, in one call."""
    kernel = _step(source, visited, backend)
    steps = [{f"state.{name}": x for name, x in step.after.items()} | step.outcome for step in visited]
    expected = {name: np.stack([step[name] for step in steps]) for name in kernel}
    wrong = {name: _difference(kernel[name], expected[name]) > allowed for name in kernel}
    rows = np.stack([x.reshape(len(visited), -1).any(1) for x in wrong.values()]).any(0)
    covered = f"{len(visited):,} steps of {sum(step.length == 0 for step in visited)} episodes"
    if not rows.any():
        ended = expected["terminated"].any()
        unseen = "" if ended else "; none of them terminated, so that endings are not compared"
        return Finding("single steps", "ok" if ended else "note", f"{covered} agree within {allowed:g}{unseen}")
    step = int(rows.argmax())
    name = next(name for name, x in wrong.items() if x[step].any())
    place = tuple(np.argwhere(wrong[name][step])[0].tolist())
    field = name + "".join(f"[{index}]" for index in place)
    ours, theirs = (float(values[name][(step, *place)]) for values in (kernel, expected))
    state = ", ".join(f"{name}={_short(value)}" for name, value in visited[step].state.items())
    difference = (
        f"step {step}: {field} is {ours:.7g} in the kernel and {theirs:.7g} in the reference, by action "
        f"{_short(visited[step].action)} from {state}"
    )
    if rows.mean() <= BORDERLINE:
        found = f"{rows.sum()} of {covered} differ, which rounding at a threshold can explain. {difference}"
        return Finding("single steps", "note", found)
    advice = f"look at how step() computes {field.removeprefix('state.')}; under a debugger: headrace.single"
    return Finding("single steps", "wrong", f"{rows.sum():,} of {covered} differ. {difference}", advice)


def _step(source: EnvIR, visited: list[Visited], backend: str) -> dict[str, np.ndarray]:
    """The kernel's state and outcome after each visited step, by names such as `state.x` and `reward`."""
    env, rollout = _made(source, len(visited), backend, 0)
    fields = {f.name: np.stack([step.state[f.name] for step in visited]) for f in source.state}
    env.target.set_state({name: torch.from_numpy(_signed(values)) for name, values in fields.items()})
    saved = env.state_dict()
    saved["integers"][-2] = torch.tensor([step.length for step in visited], dtype=torch.int32)
    env.load_state_dict(saved)
    actions = np.stack([step.action for step in visited])
    rollout.action[0] = torch.from_numpy(actions).to(rollout.action.dtype)
    env.step(rollout, 0)
    found = {f"state.{name}": value.numpy() for name, value in env.target.state().items()}
    found["observation"] = _sorted(source.observation_space, rollout.observation[1].numpy())
    return found | {name: getattr(rollout, name)[0].numpy() for name in OUTCOME}


def _compare_resets(source: EnvIR, env: gymnasium.Env, seed: int, backend: str) -> Finding:
    """Compare the distributions of the initial values of each scalar field of the state."""
    kernel = _made(source, RESETS, backend, seed)[0].target.state()
    reference = Reference(source, env)
    states = []
    for number in range(RESETS):
        env.reset(seed=seed + number)
        states.append(reference.state())
    for name in (field.name for field in source.state if field.shape is None):
        ours, theirs = kernel[name].numpy(), np.array([state[name] for state in states])
        if kolmogorov_smirnov(ours, theirs) > CRITICAL * (2 / RESETS) ** 0.5:
            found = f"{name} begins in {_range(ours)} in the kernel; in {_range(theirs)} in the reference"
            return Finding("resets", "wrong", found, f"look at how reset() computes {name}")
    return Finding("resets", "ok", f"{RESETS:,} of each have the same distribution")


def _range(values: np.ndarray) -> str:
    return f"[{values.min():.4g}, {values.max():.4g}] (mean {values.mean():.4g})"


def kolmogorov_smirnov(one: np.ndarray, other: np.ndarray) -> float:
    """The largest distance between the empirical distribution functions of two samples."""
    one, other = np.sort(one.astype(float)), np.sort(other.astype(float))
    places = np.concatenate((one, other))
    below = (np.searchsorted(sample, places, side="right") / len(sample) for sample in (one, other))
    return float(np.abs(np.subtract(*below)).max())


def _made(source: EnvIR, number: int, backend: str, seed: int) -> tuple[CompiledEnv, Rollout]:
    env = CompiledEnv(source.cls, number, backend, threads=1 if backend == "cpu" else None)
    rollout = Rollout(1, number, env_columns(env.observation_space) | {"action": action_column(env.action_space)})
    env.reset(rollout, seed)
    return env, rollout


def _difference(kernel: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Difference relative to max(1, |x|); infinite if only one of the two is NaN."""
    kernel, expected = kernel.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.abs(kernel - expected) / np.maximum(1.0, np.abs(expected))
    equal = (kernel == expected) | (np.isnan(kernel) & np.isnan(expected))
    return np.where(equal, 0.0, np.nan_to_num(difference, nan=np.inf))


def _signed(values: np.ndarray) -> np.ndarray:
    """Convert u32 to int64 and u16 to int32, since torch has no arithmetic for unsigned integers."""
    return values.astype({"uint32": np.int64, "uint16": np.int32}.get(values.dtype.name, values.dtype))


def _short(value: np.ndarray) -> str:
    return np.array2string(value, precision=6, threshold=8)
