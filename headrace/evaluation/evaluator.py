"""How good a policy is: returns of whole episodes on the original environment."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
import torch

from headrace import envs
from headrace.core import rng
from headrace.core.device import torch_threads
from headrace.envs import sources
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.policies.base import Policy

MOST_STEPS = 1_000_000  # of one episode: some environments never end
ROWS = 64  # steps of compiled worlds between two looks at who has finished
FEW_ROWS = 8  # likewise of others, whose steps take longer


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of finished episodes, by episode."""

    mean: float
    std: float
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seconds: float
    by_agent: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # where several agents share a world
    by_group: Mapping[str, float] = field(default_factory=dict)  # mean return of those who share a policy

    def __str__(self) -> str:
        length = sum(self.lengths) / len(self.lengths)
        told = f"return {self.mean:.4g} ± {self.std:.3g} over {len(self.returns)} episodes, mean length {length:.4g}"
        groups = ", ".join(f"{group} {mean:.4g}" for group, mean in self.by_group.items())
        return f"{told} ({groups})" if len(self.by_group) > 1 else told


@torch_threads(1)  # one observation a world is too little to share
def evaluate(
    policy: Policy,
    env: Any,
    episodes: int = 100,
    seed: int = 0,
    deterministic: bool = True,
    most_steps: int = MOST_STEPS,
    workers: Any = None,
    frame_stack: int = 1,
    time_limit: int | None = None,
) -> Evaluation:
    """Returns of `episodes` episodes, each in a world of its own.

    env: as for make(). Worlds are the original ones: Gymnasium's own where the environment is a port of one, or is a
    Gymnasium environment itself; compiled ones of a KernelEnv that is no port. Never those of a training of the same
    seed. deterministic: the policy's most likely actions; else drawn ones, the same for the same seed.
    Where several agents share a world, an episode's return is the mean of theirs, and its length the longest of theirs.
    workers: processes that step the worlds, their number or a headrace.Workers; None for none. The returns are the same
    bits for any number.
    frame_stack, time_limit: as the policy was trained with, see make(); of a ready Env they are its own.
    Raises RuntimeError where an episode has not ended after most_steps; TypeError for worlds it cannot make again;
    ValueError for workers of compiled worlds.
    """
    if episodes < 1:
        raise ValueError(f"an evaluation needs at least one episode, got {episodes}")
    source = original(env)
    started = perf_counter()
    made: dict[str, Any] = {"device": next(policy.parameters()).device, "group_by": getattr(policy, "groups", "spaces")}
    worlds = _worlds(source, episodes, workers, made | {"frame_stack": frame_stack, "time_limit": time_limit})
    try:
        returns, lengths = _first_episodes(policy, worlds, _apart(seed), deterministic, most_steps)
    finally:
        worlds.close()
    seconds = perf_counter() - started
    return _told(worlds, np.array(returns), np.array(lengths), seconds)


def _told(env: Any, returns: np.ndarray, lengths: np.ndarray, seconds: float) -> Evaluation:
    """What is told of the returns and lengths [N] of an env's first episodes."""
    num_agents = env.num_agents
    by_agent, by_group = {}, {}
    if num_agents > 1:
        theirs = returns.reshape(num_agents, -1)
        by_agent = {agent: tuple(row.tolist()) for agent, row in zip(env.agents, theirs, strict=True)}
        by_group = {
            group: float(np.mean([by_agent[agent] for agent in agents])) for group, agents in env.groups.items()
        }
        returns, lengths = theirs.mean(0), lengths.reshape(num_agents, -1).max(0)
    mean, std = float(returns.mean()), float(returns.std())
    return Evaluation(mean, std, tuple(returns.tolist()), tuple(lengths.tolist()), seconds, by_agent, by_group)


def _worlds(source: Any, number: int, workers: Any, made: dict[str, Any]) -> Any:
    """The original worlds of a source. made: further options of make()."""
    kernel = kernel_class(source)
    compiled = kernel is not None and kernel.gymnasium_id is None
    if compiled or (kernel is None and envs.comes_as_vector(source)):
        if workers is not None:
            what = "compiled" if compiled else "as a vector of environments"
            raise ValueError(f"{envs.spec(source).name} is evaluated {what}, without workers: leave {workers=} out")
        return envs.make(source, number, **made)
    if isinstance(workers, int):
        workers = min(workers, number)
    processes: Any = {"backend": "inline"} if workers is None else {"workers": workers}
    return envs.make(source, number, wrappers=(_one_episode,), **processes, **made)


def _one_episode(env: Any) -> Any:
    return OneEpisode(env) if isinstance(env, gymnasium.Env) else env  # of several agents: plays on


class OneEpisode(gymnasium.Wrapper):
    """Does nothing after its first episode: others that are not done yet need not wait for it."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._done, self._last = False, None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the episode; once it is over, its last observation."""
        return (self._last, {}) if self._done else super().reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """A step; once the episode is over, its last observation and no reward."""
        if self._done:
            return self._last, 0.0, False, False, {}
        observation, reward, terminated, truncated, info = super().step(action)
        self._done, self._last = terminated or truncated, observation
        return observation, float(reward), terminated, truncated, info


@torch.no_grad()
def _first_episodes(
    policy: Policy, env: Any, seed: int, deterministic: bool, most_steps: int
) -> tuple[list[float], list[int]]:
    """Returns and lengths of the first episode of each world."""
    rows = ROWS if env.backend in ("cpu", "cuda", "torch") else FEW_ROWS
    rollout, num_envs = env.rollout(rows, env.columns()), env.num_envs
    returns, lengths = torch.zeros(num_envs), torch.zeros(num_envs, dtype=torch.int64)
    live = torch.ones(num_envs, dtype=torch.bool)
    rnn_state = policy.initial_state(num_envs)
    env.reset(rollout, seed)
    for first in range(0, most_steps + 1, rows):  # an episode is accounted for at the step after its last
        if first:
            rollout.continue_from(rollout)
        random = None
        if not deterministic:
            random = rng.uniform(seed, rng.Purpose.ACTION, first, rows, num_envs, policy.num_draws, rollout.device)
        for t in range(rows):
            decision = policy.act(rollout.observation[t], rnn_state, None if random is None else random[t])
            rollout.action[t], rnn_state = decision.action, decision.rnn_state
            env.step(rollout, t)
        # an agent may join late: before, its rows are dead, and of no length
        dead = (~rollout.valid[:rows] & (rollout.episode_length > 0)).cpu()
        ended = live & dead.any(0)
        row, world = dead.to(torch.uint8).argmax(0)[ended], ended.nonzero()[:, 0]  # argmax: the first dead row of each
        returns[ended] = rollout.episode_return.cpu()[row, world]
        lengths[ended] = rollout.episode_length.cpu()[row, world].long()
        live &= ~ended
        if not live.any():
            return returns.tolist(), lengths.tolist()
    raise _endless(int(live.sum()), num_envs, most_steps)


def original(env: Any) -> Any:
    """What to make worlds of: for a ready Env its class or function, or else what its name says.

    Raises TypeError where an Env of one's own has no such name.
    """
    if isinstance(env, str | type) or not hasattr(env, "num_envs"):
        return env
    if env.factory is not None:
        return env.factory
    try:
        envs.factory(env.name)
    except (ValueError, ImportError, FileNotFoundError) as error:
        raise TypeError(
            f"{env!r} cannot be made again: evaluate(policy, env=...) needs a name, class or function"
        ) from error
    return env.name


def kernel_class(source: Any) -> type[KernelEnv] | None:
    """The KernelEnv that a name or class stands for; None where it is another environment."""
    entry: Any = envs.spec(source).entry
    if isinstance(entry, str) and ":" in entry:
        entry = sources.find(entry)
    return entry if inspect.isclass(entry) and issubclass(entry, KernelEnv) else None


def _apart(seed: int) -> int:
    """A seed of 31 bits that no training uses for its own worlds, unless by chance."""
    return int(torch.randint(2**31, (), generator=rng.generator(seed, rng.Purpose.EVALUATE)))


def _endless(live: int, episodes: int, most_steps: int) -> RuntimeError:
    return RuntimeError(
        f"{live} of {episodes} episodes had not ended after {most_steps:,} steps: give the environment max_steps"
    )
