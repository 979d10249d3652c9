"""A kernel beside the environment it is a rewrite of: single steps from the states that the original visits.

Never trajectories: an unstable world in float32 drifts apart from itself, and a single step agrees to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

from headrace.checks.finding import Finding
from headrace.checks.reference import Original
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, describe, env_columns
from headrace.envs.compiled.env import CompiledEnv
from headrace.kernels.language.ir import EnvIR
from headrace.kernels.language.read import read

ALLOWED = 1e-5  # of max(1, |x|)
ON_THE_EDGE = 1e-3  # share of steps that may differ: a state may lie on the very edge of what ends an episode
HELD = 12  # steps
RESETS = 1000
SURE = 2.7  # Kolmogorov-Smirnov: two samples of one distribution are further apart once in a million times


class Visited(NamedTuple):
    """One step of the original."""

    state: Any  # before, as the kernel's State
    length: int  # steps of its episode before
    action: np.ndarray
    after: Any  # state
    outcome: dict[str, np.ndarray]  # observation, reward, terminated, truncated


class Difference(NamedTuple):
    """The first number that differs in a step."""

    step: int
    field: str
    kernel: float
    original: float
    before: Any  # the state from which both took the step
    action: np.ndarray

    def __str__(self) -> str:
        state = ", ".join(f"{name}={_short(value)}" for name, value in self.before._asdict().items())
        return (
            f"step {self.step}: {self.field} is {self.kernel:.7g} in the kernel and {self.original:.7g} in the "
            f"original, by action {_short(self.action)} from {state}"
        )


def against(
    cls: type,
    original: Callable[[], gymnasium.Env],
    steps: int = 2000,
    seed: int = 0,
    allowed: float = ALLOWED,
    backend: str = "cpu",
) -> list[Finding]:
    """Compare a KernelEnv with what `original()` makes: spaces, time limit, single steps, and where episodes begin.

    allowed: difference of a number x, in parts of max(1, |x|). backend: of the kernel, "cpu" or "torch".
    Raises TypeError where the original's state cannot be read (see headrace.checks.reference), and for several agents.
    """
    source, world = read(cls), original()
    if source.num_agents > 1:
        raise TypeError(f"{source.name} has {source.num_agents} agents: only kernels of one agent can be compared")
    try:
        findings = _spaces(source, world)
        if any(finding.outcome == "wrong" for finding in findings):
            return findings
        world.reset(seed=seed)
        visited = list(_visit(Original(source, world), world, steps, seed))
        return [*findings, _steps(source, visited, allowed, backend), _resets(source, world, seed, backend)]
    finally:
        world.close()


def _spaces(source: EnvIR, world: gymnasium.Env) -> list[Finding]:
    """Shapes, numbers of actions, time limit: nothing can be compared where they differ."""
    limit = getattr(world.spec, "max_episode_steps", None)
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("observation_space", source.observation_space, world.observation_space),
        ("action_space", source.action_space, world.action_space),
        ("max_steps", source.max_steps, limit),
    )
    found = []
    for name, ours, theirs in pairs:
        if ours == theirs:
            found.append(Finding(name, "ok", str(ours) if name == "max_steps" else describe(ours)))
        else:
            alike = name == "max_steps" or (type(ours) is type(theirs) and ours.shape == theirs.shape)
            what = f"{ours} in the kernel, {theirs} in the original"
            found.append(Finding(name, "note" if alike else "wrong", what, "let them be equal"))
    return found


def _visit(original: Original, world: gymnasium.Env, steps: int, seed: int) -> Iterator[Visited]:
    """Steps of the original by random actions, each from numbers that the kernel can hold, where they can be set.

    In every other episode an action is held for a while, which comes to more distant states.
    """
    world.action_space.seed(seed)
    length = episode = 0
    for _ in range(steps):
        before = original.state()
        if original.settable:
            original.set(before)
        if length % (HELD if episode % 2 else 1) == 0:
            action = world.action_space.sample()
        observation, reward, terminated, truncated, _ = world.step(action)
        outcome = {"observation": observation, "reward": reward, "terminated": terminated, "truncated": truncated}
        arrays = {name: np.asarray(value) for name, value in outcome.items()}
        yield Visited(before, length, np.asarray(action), original.state(), arrays)
        length += 1
        if terminated or truncated:
            world.reset()
            length, episode = 0, episode + 1


def _steps(source: EnvIR, visited: list[Visited], allowed: float, backend: str) -> Finding:
    """All steps again, by as many worlds of the kernel, in one call."""
    after, outcome = _stepped(source, visited, backend)
    expected = {
        f"state.{f.name}": np.stack([np.asarray(getattr(v.after, f.name)) for v in visited]) for f in source.state
    }
    expected |= {name: np.stack([v.outcome[name] for v in visited]) for name in outcome}
    found = {f"state.{name}": value for name, value in after.items()} | outcome
    apart = {name: _apart(found[name], theirs) > allowed for name, theirs in expected.items()}
    rows = np.stack([x.reshape(len(visited), -1).any(1) for x in apart.values()]).any(0)
    episodes = sum(v.length == 0 for v in visited)
    covered = f"{len(visited):,} steps of {episodes} episodes"
    if not rows.any():
        ended = expected["terminated"].any()
        unseen = "" if ended else "; none of them terminated, so that endings are not compared"
        return Finding("single steps", "ok" if ended else "note", f"{covered} agree within {allowed:g}{unseen}")
    step = int(rows.argmax())
    name = next(name for name, x in apart.items() if x[step].any())
    place = tuple(np.argwhere(np.atleast_1d(apart[name][step]))[0]) if found[name].ndim > 1 else ()
    field = name + "".join(f"[{index}]" for index in place)
    ours, theirs = (float(values[name][(step, *place)]) for values in (found, expected))
    difference = Difference(step, field, ours, theirs, visited[step].state, visited[step].action)
    if rows.mean() <= ON_THE_EDGE:
        return Finding(
            "single steps", "note", f"{rows.sum()} of {covered} differ, as on an edge they may. {difference}"
        )
    advice = f"look at what step() makes of {field.removeprefix('state.')}; under a debugger: headrace.single"
    return Finding("single steps", "wrong", f"{rows.sum():,} of {covered} differ. {difference}", advice)


def _stepped(
    source: EnvIR, visited: list[Visited], backend: str
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """States after the steps, and what came of them."""
    env, rollout = _made(source, len(visited), backend, 0)
    fields = {f.name: np.stack([np.asarray(getattr(v.state, f.name)) for v in visited]) for f in source.state}
    env.worlds.set_state({name: torch.from_numpy(_signed(values)) for name, values in fields.items()})
    saved = env.state_dict()
    saved["integers"][-2] = torch.tensor([v.length for v in visited], dtype=torch.int32)
    env.load_state_dict(saved)
    actions = np.stack([v.action for v in visited])
    rollout.action[0] = torch.from_numpy(actions).to(rollout.action.dtype)
    env.step(rollout, 0)
    after = {name: value.numpy() for name, value in env.worlds.state().items()}
    outcome = {"observation": rollout.observation[1].numpy()}
    return after, outcome | {name: getattr(rollout, name)[0].numpy() for name in ("reward", "terminated", "truncated")}


def _resets(source: EnvIR, world: gymnasium.Env, seed: int, backend: str) -> Finding:
    """Whether scalar fields of the state are distributed alike where episodes begin."""
    env, _ = _made(source, RESETS, backend, seed)
    ours = env.worlds.state()
    original = Original(source, world)
    theirs = []
    for number in range(RESETS):
        world.reset(seed=seed + number)
        theirs.append(original.state())
    for field in source.state:
        if field.shape is not None:
            continue
        mine, its = ours[field.name].numpy(), np.array([getattr(state, field.name) for state in theirs])
        distance = kolmogorov_smirnov(mine, its)
        if distance > SURE * (2 / RESETS) ** 0.5:
            found = f"{field.name} begins in [{mine.min():.4g}, {mine.max():.4g}] in the kernel, mean {mine.mean():.4g}"
            found += f"; in [{its.min():.4g}, {its.max():.4g}] in the original, mean {its.mean():.4g}"
            return Finding("resets", "wrong", found, f"look at what reset() makes of {field.name}")
    return Finding("resets", "ok", f"{RESETS:,} of each are distributed alike")


def kolmogorov_smirnov(one: np.ndarray, other: np.ndarray) -> float:
    """The largest distance between the shares of two samples that lie below a number."""
    one, other = np.sort(one.astype(float)), np.sort(other.astype(float))
    places = np.concatenate((one, other))
    shares = (np.searchsorted(sample, places, side="right") / len(sample) for sample in (one, other))
    return float(np.abs(np.subtract(*shares)).max())


def _made(source: EnvIR, number: int, backend: str, seed: int) -> tuple[Any, Rollout]:
    env = CompiledEnv(source.cls, number, backend, threads=1 if backend == "cpu" else None)
    rollout = Rollout(1, number, env_columns(env.observation_space) | {"action": action_column(env.action_space)})
    env.reset(rollout, seed)
    return env, rollout


def _apart(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Difference in parts of max(1, |x|); infinite where one is NaN and the other not."""
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.abs(ours - theirs) / np.maximum(1.0, np.abs(theirs))
    alike = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    return np.where(alike, 0.0, np.nan_to_num(difference, nan=np.inf))


def _signed(values: np.ndarray) -> np.ndarray:
    """As torch can count with it: u32 as int64, u16 as int32."""
    return values.astype({"uint32": np.int64, "uint16": np.int32}.get(values.dtype.name, values.dtype))


def _short(value: Any) -> str:
    return np.array2string(np.asarray(value), precision=6, threshold=8)
