"""Evaluates a policy: returns of whole episodes in the reference environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass, field
from numbers import Integral
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import gymnasium
import numpy as np
import torch

from headrace import envs
from headrace.agent_groups.group_policy import GroupedPolicy
from headrace.core import rng
from headrace.core.device import torch_threads
from headrace.core.processes.state import same_folder
from headrace.core.stopping import Stopped
from headrace.core.types import Json, Settings
from headrace.data.flat_dict import ACTION_MASK
from headrace.data.spaces import Dict, alike
from headrace.envs import sources
from headrace.envs.base import Env
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.envs.construct import Wrappers
from headrace.envs.gym.learned import carried, tell_learned
from headrace.envs.registry import Source
from headrace.envs.wrappers.conditioning import NAME, InformedEnv, for_copies
from headrace.policies.base import Policy, check_policy

if TYPE_CHECKING:
    from headrace.envs.workers.process import Workers

LONGEST = 27_000  # steps of an episode, where the environment has no time limit: the longest of Gymnasium's own limits
ROWS = 64  # steps of compiled environments between two checks for finished episodes
FEW_ROWS = 8  # the same for other environments, whose steps take longer: `watch` is asked before each
Watch = Callable[[int, int], bool]  # from the numbers of episodes that ended and of steps: whether to stop


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of finished episodes, by episode."""

    mean: float
    std: float
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seconds: float
    by_agent: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # returns, with several agents
    by_group: Mapping[str, float] = field(default_factory=dict)  # mean return of the agents that share a policy
    cut: int = 0  # episodes that had not ended after most_steps: their returns are those until then

    def __str__(self) -> str:
        length = sum(self.lengths) / len(self.lengths)
        text = f"return {self.mean:.4g} ± {self.std:.3g} over {len(self.returns)} episodes, mean length {length:.4g}"
        if self.cut:
            text += f", {self.cut} of them cut off after {max(self.lengths):,} steps"
        groups = ", ".join(f"{group} {mean:.4g}" for group, mean in self.by_group.items())
        return f"{text} ({groups})" if len(self.by_group) > 1 else text


class Recipe(NamedTuple):
    """What environments like given ones are made of."""

    source: Source
    options: Settings  # of make()


@torch_threads(1)  # the batches are too small for several threads
def evaluate(
    policy: Policy,
    env: Env | Source | Recipe,
    episodes: int = 100,
    seed: int = 0,
    deterministic: bool = True,
    most_steps: int | None = None,
    workers: int | Workers | None = None,
    frame_stack: int = 1,
    time_limit: int | None = None,
    info_mask: bool = False,
    params: Settings | None = None,
    env_kwargs: Settings | None = None,
    wrapper: Wrappers = (),
    ignore: Sequence[str] = (),
    agent_info: Any = None,
    reference: bool = True,
    watch: Watch | None = None,
    on_error: Literal["raise", "restart"] = "raise",
    step_timeout: float = 60.0,
) -> Evaluation:
    """Returns of `episodes` episodes, each in its own copy of the environment.

    env: as for make(), or a ready Env, which is made again from its Recipe: its source, and the options it was made
    with. Ports are
    evaluated in their Gymnasium reference, other KernelEnvs and those with params compiled. Episodes differ from those
    of a training run with the same seed.
    deterministic: the most likely actions; otherwise sampled actions, reproducible by seed.
    With several agents, the return of an episode is the mean over agents, and its length that of the longest.
    workers: a number of processes, or a headrace.Workers; None steps in this process. The results do not depend on it.
    frame_stack, time_limit, info_mask, params, env_kwargs, ignore, agent_info: as in training, see make() and Trainer;
    wrapper: make()'s wrappers. Of params and agent_info with an entry for each environment, episode i has that of
    environment i modulo their number.
    most_steps: episodes longer than this are cut off there, and counted; None: the environment's own time limit, or
    27,000 where that is longer. reference: whether ports are Gymnasium's, or else compiled.
    watch: called with the numbers of episodes that have ended and of steps: every few steps, and before each of
    environments that are not compiled.
    on_error, step_timeout: see make(). With "restart", an episode that an error ends is replaced by another one.
    Raises Stopped where watch returns true; TypeError for an Env that cannot be made again; ValueError for workers of
    compiled environments, or a missing agent_info.
    """
    check_policy(policy, "evaluate")
    if not (isinstance(episodes, Integral) and episodes >= 1):
        raise ValueError(f"an evaluation needs a whole number of episodes, 1 or more, got {episodes!r}")
    source, remade = recipe_of(env)
    started = perf_counter()
    options: Json = {
        "device": next(policy.parameters()).device,
        "group_by": policy.groups if isinstance(policy, GroupedPolicy) else "spaces",
        "on_error": on_error,
        "step_timeout": step_timeout,
        **remade,
        **({"frame_stack": frame_stack} if frame_stack != 1 else {}),
        **({"time_limit": time_limit} if time_limit is not None else {}),
        **({"ignore": ignore} if ignore else {}),
        **({"wrappers": wrappers} if (wrappers := _wrappers(policy, source, wrapper)) else {}),
        **({"env_kwargs": env_kwargs} if env_kwargs else {}),
        **({"info_mask": True} if info_mask else {}),
    }
    if params := params or remade.get("params"):
        options["params"] = {name: _repeated(value, episodes) for name, value in params.items()}
    with same_folder(), closing(_make(source, episodes, workers, options, reference)) as made:
        tell_learned(made.name, made.learned, carried=bool(carried(policy)))
        seen = _informed(made, policy, agent_info)
        _check_spaces(policy, seen)
        limit = most_steps or max(made.max_steps or 0, LONGEST)
        actions = (_evaluation_seed(seed), deterministic)
        returns, lengths, cut = _first_episodes(policy, seen, *actions, limit, watch or (lambda ended, steps: False))
    return _evaluation(made, returns, lengths, cut, perf_counter() - started)


def _wrappers(policy: Policy, source: Source, wrapper: Wrappers) -> Wrappers:
    """The wrappers of an evaluation: those given, with what theirs have learned in the policy's training."""
    one_by_one = kernel_class(source) is None and not envs.comes_as_vector(source)
    return (*wrapper, *(carried(policy) if one_by_one else ()))


def _check_spaces(policy: Policy, env: Env) -> None:
    """Raise ValueError where a policy of one agent was made for other spaces than those of an environment."""
    if env.num_agents > 1 or isinstance(policy, GroupedPolicy):
        return
    known_spaces, given_spaces = ((x.observation_space, x.action_space) for x in (policy, env))
    for what, known, given in zip(("observations", "actions"), known_spaces, given_spaces, strict=True):
        if not alike(known, given):
            raise ValueError(
                f"the policy was made for {what} of {known}, and those of {env.name} are of {given}: "
                "evaluate it on the environment that it was trained on"
            )


def _repeated(value: Any, number: int) -> Any:
    """Numbers for so many environments, of numbers for others; one number as it is."""
    return np.resize(value, number) if np.ndim(value) else value


def _informed(env: Env, policy: Policy, agent_info: Any) -> Env:
    """An env with the agent_info of a training. Raises ValueError where the policy needs one that is not given."""
    space = getattr(policy, "observation_space", None)
    if isinstance(space, Dict) and NAME in space.spaces and not _has_info(env):
        if agent_info is None:
            raise ValueError(f"the policy was trained with {NAME}: give it, as in evaluate(policy, env, {NAME}=...)")
        return InformedEnv(env, for_copies(agent_info, env), space[NAME])
    return env


def _has_info(env: Env) -> bool:
    return isinstance(env.observation_space, Dict) and NAME in env.observation_space.spaces


def _evaluation(env: Env, returns: np.ndarray, lengths: np.ndarray, cut: np.ndarray, seconds: float) -> Evaluation:
    """From the returns and lengths [N] of an env's first episodes, and whether they were cut off."""
    num_agents = env.num_agents
    by_agent: dict[str, tuple[float, ...]] = {}
    by_group: dict[str, float] = {}
    if num_agents > 1:
        rows = returns.reshape(num_agents, -1)
        by_agent = {agent: tuple(row.tolist()) for agent, row in zip(env.agents, rows, strict=True)}
        by_group = {
            group: float(np.mean([by_agent[agent] for agent in agents])) for group, agents in env.groups.items()
        }
        returns, lengths = rows.mean(0), lengths.reshape(num_agents, -1).max(0)
    mean, std = float(returns.mean()), float(returns.std())
    whole = (tuple(returns.tolist()), tuple(lengths.tolist()), seconds, by_agent, by_group)
    return Evaluation(mean, std, *whole, int(cut.reshape(num_agents, -1).max(0).sum()))


def _make(source: Source, number: int, workers: int | Workers | None, options: Json, reference: bool) -> Env:
    """Environments of a source. options: further ones of make(). reference: whether those of a port are Gymnasium's."""
    kernel = kernel_class(source)
    compiled = kernel is not None and (kernel.gymnasium_id is None or not reference or "params" in options)
    if compiled or (kernel is None and envs.comes_as_vector(source)):
        if workers is not None:
            what = "compiled" if compiled else "as a vector of environments"
            raise ValueError(f"{envs.spec(source).name} is evaluated {what}, without workers: leave {workers=} out")
        return envs.make(source, number, **options)
    workers = min(workers, number) if isinstance(workers, int) else workers
    backend = "inline" if workers is None else "auto"
    options["wrappers"] = (*options.get("wrappers", ()), _one_episode)
    return envs.make(source, number, backend=backend, workers=workers, **options)


def _one_episode(env: gymnasium.Env) -> gymnasium.Env:
    return OneEpisode(env) if isinstance(env, gymnasium.Env) else env  # with several agents, episodes are repeated


class OneEpisode(gymnasium.Wrapper):
    """Does nothing after its first episode, so that the other episodes do not wait for further ones."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        self._done = False
        self._first: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the episode; after its end, return its first observation and action mask, which allows an action."""
        if not self._done:
            observation, info = super().reset(seed=seed, options=options)
            self._first = deepcopy((observation, {key: info[key] for key in (ACTION_MASK,) if key in info}))
            return observation, info
        return self._first

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """A step; after the end of the episode, its first observation and no reward."""
        if self._done:
            observation, info = self._first
            return observation, 0.0, False, False, info
        observation, reward, terminated, truncated, info = super().step(action)
        self._done = terminated or truncated
        return observation, float(reward), terminated, truncated, info


@torch.no_grad()
def _first_episodes(
    policy: Policy, env: Env, seed: int, deterministic: bool, most_steps: int, watch: Watch
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns and lengths [N] of the first episode of each environment, and whether it was cut off."""
    slow = env.backend not in ("cpu", "cuda", "torch")
    rows = FEW_ROWS if slow else ROWS
    rollout, num_envs = env.rollout(rows, env.columns()), env.num_envs
    returns, lengths = torch.zeros(num_envs), torch.zeros(num_envs, dtype=torch.int64)
    running = torch.ones(num_envs, dtype=torch.bool)
    rnn_state = policy.initial_state(num_envs)
    env.reset(rollout, seed)
    for first in range(0, most_steps + 1, rows):  # an episode is reported at the step after its last
        if first:
            rollout.continue_from(rollout)
        random = None
        if not deterministic:
            random = rng.uniform(seed, rng.Purpose.ACTION, first, rows, num_envs, policy.num_draws, rollout.device)
        for t in range(rows):
            if slow and watch(num_envs - int(running.sum()), first + t):
                raise Stopped
            draws = None if random is None else random[t]
            output = policy.act_without_exploration(rollout.observation[t], rnn_state, draws)
            rollout.action[t], rnn_state = output.action, output.rnn_state
            env.step(rollout, t)
        # before an agent joins, its steps are masked too, with length 0
        masked = (~rollout.valid[:rows] & (rollout.episode_length > 0)).cpu()
        ended = running & masked.any(0)
        row, column = masked.to(torch.uint8).argmax(0)[ended], ended.nonzero()[:, 0]  # argmax: the first masked step
        returns[ended] = rollout.episode_return.cpu()[row, column]
        lengths[ended] = rollout.episode_length.cpu()[row, column].long()
        running &= ~ended
        valid = rollout.valid[:rows].cpu() & running
        valid[max(0, most_steps - first) :] = False
        returns += (rollout.reward.cpu() * valid).sum(0)  # for those that are cut off
        lengths += valid.sum(0)
        if not running.any():
            break
        if not slow and watch(num_envs - int(running.sum()), first + rows):
            raise Stopped
    return returns.double().numpy(), lengths.numpy(), running.numpy()


def source_of(env: Env | Source) -> Source:
    """What environments can be made of again: of a ready Env its class, its function or its name.

    Raises TypeError where an Env has none of these.
    """
    if isinstance(env, str | list | tuple) or callable(env):
        return env
    if not isinstance(env, Env):
        raise TypeError(f"{env!r} is one environment, and others like it are needed: give a name, class or function")
    if env.factory is not None:
        return env.factory
    try:
        envs.factory(env.name)
    except (ValueError, ImportError, FileNotFoundError) as error:
        raise TypeError(
            f"{env!r} cannot be made again: evaluate(policy, env=...) needs a name, class or function"
        ) from error
    return env.name


def can_be_made(env: Env | Source) -> bool:
    """Whether source_of() can tell what environments can be made of again."""
    try:
        source_of(env)
    except TypeError:
        return False
    return True


def recipe_of(env: Env | Source | Recipe) -> Recipe:
    """What environments like a ready Env are made of. Raises TypeError as source_of() does."""
    if isinstance(env, Recipe):
        return env
    if isinstance(env, str | list | tuple) or callable(env):
        return Recipe(env, {})
    return Recipe(source_of(env), {**env.made_with, **({"params": env.params} if env.params else {})})


def kernel_class(source: Source) -> type[KernelEnv] | None:
    """The KernelEnv of a name or class; None for other environments."""
    entry: Any = envs.spec(source).entry
    if isinstance(entry, str) and ":" in entry:
        entry = sources.find(entry)
    return entry if sources.is_kernel(entry) else None


def _evaluation_seed(seed: int) -> int:
    """A seed of 31 bits that differs from the training's."""
    return int(torch.randint(2**31, (), generator=rng.generator(seed, rng.Purpose.EVALUATE)))
