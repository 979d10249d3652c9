"""How good a policy is: returns of whole episodes on the original environment."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
import torch

from headrace import envs, rng
from headrace.device import torch_threads
from headrace.envs import sources
from headrace.envs.base import rollout_for
from headrace.envs.compiled import CompiledEnv
from headrace.envs.device_env import DeviceEnv
from headrace.envs.kernel import KernelEnv
from headrace.policies.base import Policy
from headrace.rollout import Rollout, tree_map
from headrace.spaces import action_column, env_columns

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
    workers: int | None = None,
) -> Evaluation:
    """Returns of `episodes` episodes, each in a world of its own.

    env: as for make(). Worlds are the original ones: Gymnasium's own where the environment is a port of one, or is a
    Gymnasium environment itself; compiled ones of a KernelEnv that is no port. Never those of a training of the same
    seed. deterministic: the policy's most likely actions; else drawn ones, the same for the same seed.
    workers: processes that step the worlds; None for none. Whatever their number, the returns are the same bits.
    Raises RuntimeError where an episode has not ended after most_steps; TypeError for worlds it cannot make again;
    ValueError for workers of compiled worlds.
    """
    if episodes < 1:
        raise ValueError(f"an evaluation needs at least one episode, got {episodes}")
    source = original(env)
    started = perf_counter()
    seed = _apart(seed)
    kernel = _kernel_class(source)
    if kernel is not None and kernel.gymnasium_id is None:
        if workers is not None:
            raise ValueError(f"{kernel.__name__} is evaluated compiled, without workers: leave workers={workers} out")
        returns, lengths = _compiled(policy, kernel, episodes, seed, deterministic, most_steps)
    else:
        worlds = _worlds(source, episodes, workers)
        try:
            returns, lengths = _stepped(policy, worlds, seed, deterministic, most_steps)
        finally:
            worlds.close()
    seconds = perf_counter() - started
    return Evaluation(float(np.mean(returns)), float(np.std(returns)), tuple(returns), tuple(lengths), seconds)


def _worlds(source: Any, episodes: int, workers: int | None) -> Any:
    """Worlds to evaluate in: as many at once where they come so and nobody asked for workers, else one by one."""
    if workers is None and envs.comes_as_vector(source):
        worlds: Any = envs.make(source, episodes, backend="vector")
        worlds.clip_reward = None
        return worlds
    processes: Any = {"backend": "inline"} if workers is None else {"workers": min(workers, episodes)}
    return envs.make(source, episodes, wrappers=(OneEpisode,), **processes)


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
def _stepped(
    policy: Policy, env: Any, seed: int, deterministic: bool, most_steps: int
) -> tuple[list[float], list[int]]:
    """The first episode of each world, with one call of the policy a step for those that have not ended."""
    episodes, device = env.num_envs, next(policy.parameters()).device
    rollout = rollout_for(env, 1, env_columns(env.observation_space) | {"action": action_column(env.action_space)})
    returns, lengths = torch.zeros(episodes, dtype=torch.float64), torch.zeros(episodes, dtype=torch.int64)
    live, memory, noise = torch.arange(episodes), policy.initial_memory(episodes), None
    env.reset(rollout, seed)
    for step in range(most_steps):
        if step:
            rollout.advance()
        if not deterministic:
            noise = rng.uniform(seed, rng.Purpose.ACTION, step, 1, episodes, policy.num_draws, "cpu")[0, live]
            noise = noise.to(device)
        observation = tree_map(lambda x, live=live: x[0, live].to(device), rollout.observation)
        decision = policy.decide(observation, memory, noise)
        rollout.action[0, live] = decision.action.to(rollout.device)
        env.step(rollout, 0)
        returns[live] += rollout.reward[0, live].cpu().double()
        lengths[live] += 1
        going_on = rollout.valid[1, live].cpu()
        live, still = live[going_on], going_on.to(device)
        if not len(live):
            return returns.tolist(), lengths.tolist()
        memory = tree_map(lambda x, still=still: x[still], decision.memory)
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
    if isinstance(env, DeviceEnv):
        return original(env.env)
    if hasattr(env, "factory"):  # that of single environments, inline or in workers
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


def _endless(live: int, episodes: int, most_steps: int) -> RuntimeError:
    return RuntimeError(
        f"{live} of {episodes} episodes had not ended after {most_steps:,} steps: give the environment max_steps"
    )
