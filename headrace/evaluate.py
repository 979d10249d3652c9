"""How good a policy is: returns of whole episodes on the original environment."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
import torch

from headrace import envs, rng
from headrace.device import torch_threads
from headrace.envs import sources
from headrace.envs.compiled import CompiledEnv
from headrace.envs.inline import InlineEnv, env_seed
from headrace.envs.kernel import KernelEnv
from headrace.policies.base import Policy
from headrace.rollout import Rollout, tree_map
from headrace.spaces import Dict, Space, action_column, env_columns

MOST_STEPS = 1_000_000  # of one episode: some environments never end
ROWS = 64  # steps of compiled worlds between two looks at who has finished


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of finished episodes, by episode."""

    mean: float
    std: float
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seconds: float

    def __str__(self) -> str:
        length = sum(self.lengths) / len(self.lengths)
        return f"return {self.mean:.4g} ± {self.std:.3g} over {len(self.returns)} episodes, mean length {length:.4g}"


@torch_threads(1)  # one observation a world is too little to share
def evaluate(
    policy: Policy,
    env: Any,
    episodes: int = 100,
    seed: int = 0,
    deterministic: bool = True,
    most_steps: int = MOST_STEPS,
) -> Evaluation:
    """Returns of `episodes` episodes, each in a world of its own.

    env: as for make(). Worlds are the original ones: Gymnasium's own where the environment is a port of one, or is a
    Gymnasium environment itself; compiled ones of a KernelEnv that is no port. Never those of a training of the same
    seed. deterministic: the policy's most likely actions; else drawn ones, the same for the same seed.
    Raises RuntimeError where an episode has not ended after most_steps; TypeError for worlds it cannot make again.
    """
    if episodes < 1:
        raise ValueError(f"an evaluation needs at least one episode, got {episodes}")
    source = original(env)
    started = perf_counter()
    seed = _apart(seed)
    kernel = _kernel_class(source)
    if kernel is not None and kernel.gymnasium_id is None:
        returns, lengths = _compiled(policy, kernel, episodes, seed, deterministic, most_steps)
    else:
        returns, lengths = _gymnasium(policy, envs.factory(source), episodes, seed, deterministic, most_steps)
    seconds = perf_counter() - started
    return Evaluation(float(np.mean(returns)), float(np.std(returns)), tuple(returns), tuple(lengths), seconds)


def _gymnasium(
    policy: Policy, factory: Any, episodes: int, seed: int, deterministic: bool, most_steps: int
) -> tuple[list[float], list[int]]:
    """All worlds together, with one call of the policy a step; those that have finished leave the batch."""
    worlds: list[gymnasium.Env] = [factory() for _ in range(episodes)]
    try:
        space = worlds[0].observation_space
        observations = [world.reset(seed=env_seed(seed, index))[0] for index, world in enumerate(worlds)]
        returns, lengths = [0.0] * episodes, [0] * episodes
        generator = torch.Generator().manual_seed(seed)
        live, memory = list(range(episodes)), None
        for step in range(most_steps):
            batch = _stack(space, [observations[index] for index in live])
            actions, memory = policy.act_on(batch, memory, deterministic, generator)
            still = []
            for place, (index, action) in enumerate(zip(live, actions, strict=True)):
                observations[index], reward, terminated, truncated, _ = worlds[index].step(action)
                returns[index] += float(reward)
                if terminated or truncated:
                    lengths[index] = step + 1
                else:
                    still.append(place)
            if len(still) < len(live):
                live = [live[place] for place in still]
                memory = tree_map(lambda x, still=still: x[still], memory)
            if not live:
                return returns, lengths
    finally:
        for world in worlds:
            world.close()
    raise _endless(len(live), episodes, most_steps)


@torch.no_grad()
def _compiled(
    policy: Policy, kernel: type[KernelEnv], episodes: int, seed: int, deterministic: bool, most_steps: int
) -> tuple[list[float], list[int]]:
    """The first episode of each of `episodes` compiled worlds."""
    device = next(policy.parameters()).device
    env = envs.make(kernel, episodes, device=device)
    columns = env_columns(env.observation_space) | {"action": action_column(env.action_space)}
    rollout = Rollout(ROWS, episodes, columns, device)
    returns, lengths = torch.zeros(episodes), torch.zeros(episodes, dtype=torch.int64)
    live = torch.ones(episodes, dtype=torch.bool)
    memory = policy.initial_memory(episodes)
    env.reset(rollout, seed)
    for first in range(0, most_steps, ROWS):
        if first:
            rollout.advance()
        noise = None
        if not deterministic:
            noise = rng.uniform(seed, rng.Purpose.ACTION, first, ROWS, episodes, policy.num_draws, device)
        for t in range(ROWS):
            decision = policy.decide(rollout.observation[t], memory, None if noise is None else noise[t])
            rollout.action[t], memory = decision.action, decision.memory
            env.step(rollout, t)
        dead = ~rollout.valid[:ROWS].cpu()
        ended = live & dead.any(0)
        row, world = dead.to(torch.uint8).argmax(0)[ended], ended.nonzero()[:, 0]  # argmax: the first dead row of each
        returns[ended] = rollout.episode_return.cpu()[row, world]
        lengths[ended] = rollout.episode_length.cpu()[row, world].long()
        live &= ~ended
        if not live.any():
            env.close()
            return returns.tolist(), lengths.tolist()
    env.close()
    raise _endless(int(live.sum()), episodes, most_steps)


def original(env: Any) -> Any:
    """What to make worlds of: for a ready Env its class or function, or else what its name says.

    Raises TypeError where an Env of one's own has no such name.
    """
    if isinstance(env, str | type) or not hasattr(env, "num_envs"):
        return env
    if isinstance(env, CompiledEnv):
        return env.source.cls
    if isinstance(env, InlineEnv):
        return env.factory
    try:
        envs.factory(env.name)
    except (ValueError, ImportError, FileNotFoundError) as error:
        raise TypeError(
            f"{env!r} cannot be made again: evaluate(policy, env=...) needs a name, class or function"
        ) from error
    return env.name


def _kernel_class(source: Any) -> type[KernelEnv] | None:
    entry: Any = envs.spec(source).entry
    if isinstance(entry, str) and ":" in entry:
        entry = sources.find(entry)
    return entry if inspect.isclass(entry) and issubclass(entry, KernelEnv) else None


def _apart(seed: int) -> int:
    """A seed of 31 bits that no training uses for its own worlds, unless by chance."""
    return int(torch.randint(2**31, (), generator=rng.generator(seed, rng.Purpose.EVALUATE)))


def _stack(space: Space, observations: Sequence[Any]) -> Any:
    """Observations of several worlds as one batch, member by member for a Dict."""
    if isinstance(space, Dict):
        return {name: _stack(member, [o[name] for o in observations]) for name, member in space.items()}
    return np.stack(observations)


def _endless(live: int, episodes: int, most_steps: int) -> RuntimeError:
    return RuntimeError(
        f"{live} of {episodes} episodes had not ended after {most_steps:,} steps: give the environment max_steps"
    )
