"""Play episodes with a policy, and add up their returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from time import perf_counter
from typing import Any

import numpy as np
import torch

from headrace.agent_groups.group_policy import GroupedPolicy
from headrace.core import rng
from headrace.core.device import torch_threads
from headrace.core.stopping import Stopped
from headrace.data.rollout import Column, Columns, Rollout
from headrace.data.spaces import Dict, alike
from headrace.envs.base import Env, Round
from headrace.envs.wrappers.conditioning import NAME, InformedEnv
from headrace.policies.base import Policy, spaces_to_see

LONGEST = 27_000  # steps of an episode without a time limit: the longest of Gymnasium's own limits
ROWS = 64  # steps of compiled environments between two checks for finished episodes
FEW_ROWS = 8  # the same for other environments, whose steps take longer: `watch` is called before each step
Watch = Callable[[int, int], bool]  # (number of ended episodes, number of steps) -> whether to stop


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of episodes, in order of their numbers."""

    mean: float
    std: float
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seconds: float
    by_agent: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # returns, with several agents
    by_group: Mapping[str, float] = field(default_factory=dict)  # mean return of the agents that share a policy
    cut: int = 0  # number of episodes cut off after most_steps: their returns are those until then
    infos: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # numbers of log_info; NaN where there is none

    def means(self) -> dict[str, float]:
        """Mean of each number of log_info, over the episodes that have it; without those that none has."""
        had = {name: [x for x in values if not isnan(x)] for name, values in self.infos.items()}
        return {name: sum(values) / len(values) for name, values in had.items() if values}

    def __str__(self) -> str:
        length = sum(self.lengths) / len(self.lengths)
        text = f"return {self.mean:.4g} ± {self.std:.3g} over {len(self.returns)} episodes, mean length {length:.4g}"
        if self.cut:
            text += f", {self.cut} of them cut off after {max(self.lengths):,} steps"
        text += "".join(f", {name} {mean:.4g}" for name, mean in self.means().items())
        groups = ", ".join(f"{group} {mean:.4g}" for group, mean in self.by_group.items())
        return f"{text} ({groups})" if len(self.by_group) > 1 else text


@torch_threads(1)  # the batches are too small for several threads
def played(
    policy: Policy,
    env: Env,
    episodes: int,
    seed: int,
    deterministic: bool = True,
    most_steps: int | None = None,
    watch: Watch | None = None,
    agent_info: Any = None,
    log_info: Sequence[str] = (),
) -> Evaluation:
    """Play new episodes in existing environments. Arguments: see headrace.evaluate."""
    started = perf_counter()
    seen = _informed(env, policy, agent_info)
    _check_spaces(policy, seen)
    limit = most_steps or max(env.max_steps or 0, LONGEST)
    found = _Episodes(episodes, env.num_agents, log_info)
    actions, watch = (_evaluation_seed(seed), deterministic), watch or (lambda ended, steps: False)
    infos: dict[str, Column | Columns] = {"info": {name: Column() for name in log_info}} if log_info else {}
    rollout = seen.rollout(FEW_ROWS if _is_slow(env) else ROWS, seen.columns() | infos)
    for first in range(0, episodes, env.num_copies):
        _play(policy, seen, rollout, found, first, *actions, limit, watch)
    return _evaluation(env, found, perf_counter() - started)


def _check_spaces(policy: Policy, env: Env) -> None:
    """Raise ValueError if a policy of one agent was made for other spaces than the environment's."""
    if env.num_agents > 1 or isinstance(policy, GroupedPolicy):
        return
    known_spaces, given_spaces = spaces_to_see(policy, env.observation_space), (env.observation_space, env.action_space)
    for what, known, given in zip(("observations", "actions"), known_spaces, given_spaces, strict=True):
        if not alike(known, given):
            raise ValueError(
                f"the policy was made for {what} of {known}, and those of {env.name} are of {given}: "
                "evaluate it on the environment that it was trained on"
            )


def _informed(env: Env, policy: Policy, agent_info: Any) -> Env:
    """Add a training's agent_info to an env. Raises ValueError if the policy needs one that is not given."""
    space = getattr(policy, "observation_space", None)
    if isinstance(space, Dict) and NAME in space.spaces and not _has_info(env):
        if agent_info is None:
            raise ValueError(f"the policy was trained with {NAME}: give it, as in evaluate(policy, env, {NAME}=...)")
        return InformedEnv(env, agent_info, space[NAME], cycled=True)
    return env


def _has_info(env: Env) -> bool:
    return isinstance(env.observation_space, Dict) and NAME in env.observation_space.spaces


class _Episodes:
    """Returns and lengths of the episodes of an evaluation, [agents, episodes], and whether they were cut off. infos:
    numbers of their last infos, [episodes], by name."""

    def __init__(self, number: int, num_agents: int, infos: Sequence[str]) -> None:
        self.number = number
        self.returns = torch.zeros(num_agents, number)
        self.lengths = torch.zeros(num_agents, number, dtype=torch.int64)
        self.cut = torch.zeros(num_agents, number, dtype=torch.bool)
        self.infos = {name: torch.full((number,), torch.nan) for name in infos}
        self.ended, self.steps = 0, 0  # episodes and steps so far


def _evaluation(env: Env, found: _Episodes, seconds: float) -> Evaluation:
    rows, lengths = found.returns.double().numpy(), found.lengths.numpy()
    by_agent: dict[str, tuple[float, ...]] = {}
    by_group: dict[str, float] = {}
    if env.num_agents > 1:
        by_agent = {agent: tuple(row.tolist()) for agent, row in zip(env.agents, rows, strict=True)}
        by_group = {
            group: float(np.mean([by_agent[agent] for agent in agents])) for group, agents in env.groups.items()
        }
    returns, lengths = rows.mean(0), lengths.max(0)
    mean, std = float(returns.mean()), float(returns.std())
    whole = (tuple(returns.tolist()), tuple(lengths.tolist()), seconds, by_agent, by_group)
    infos = {name: tuple(values.tolist()) for name, values in found.infos.items()}
    return Evaluation(mean, std, *whole, int(found.cut.any(0).sum()), infos)


def _is_slow(env: Env) -> bool:
    """Tell whether an environment takes long for a step, so that `watch` is called before each step."""
    return env.backend not in ("cpu", "cuda", "torch")


@torch.no_grad()
def _play(
    policy: Policy,
    env: Env,
    rollout: Rollout,
    found: _Episodes,
    first: int,
    seed: int,
    deterministic: bool,
    most_steps: int,
    watch: Watch,
) -> None:
    """Play one episode in each copy of the environment, from number `first` on."""
    copies, agents = env.num_copies, env.num_agents
    count = min(copies, found.number - first)
    part = (slice(None), slice(first, first + count))
    returns, lengths = torch.zeros(env.num_envs), torch.zeros(env.num_envs, dtype=torch.int64)
    running = (torch.arange(copies) < count).repeat(agents)
    rnn_state, rows, slow = policy.initial_state(env.num_envs), rollout.num_steps, _is_slow(env)
    env.begin(rollout, seed, Round(first, count, found.number))

    def stops(steps: int) -> bool:
        ended = copies - int(running.view(agents, copies).any(0).sum())
        return watch(found.ended + ended - (copies - count), found.steps + steps)

    for before in range(0, most_steps + 1, rows):  # an episode is reported at the step after its last
        if before:
            rollout.continue_from(rollout)
        random = None
        if not deterministic:
            drawn = (agents, copies, policy.num_draws, rollout.device, first, found.number)
            random = rng.uniform_of_agents(seed, rng.Purpose.ACTION, before, rows, *drawn)
        for t in range(rows):
            if slow and stops(before + t):
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
        for name, values in found.infos.items():  # of one agent: a column is a copy of the environment
            values[first + column] = getattr(rollout.info, name).cpu()[row, column]
        running &= ~ended
        valid = rollout.valid[:rows].cpu() & running
        valid[max(0, most_steps - before) :] = False
        returns += torch.where(valid, rollout.reward.cpu(), 0).sum(0)  # for episodes that are cut off
        lengths += valid.sum(0)
        if not running.any():
            break
        if not slow and stops(before + rows):
            raise Stopped
    found.ended, found.steps = found.ended + count, found.steps + before + rows
    for column, values in ((found.returns, returns), (found.lengths, lengths), (found.cut, running)):
        column[part] = values.view(agents, copies)[:, :count]


def _evaluation_seed(seed: int) -> int:
    """A seed of 31 bits that differs from the training's."""
    return int(torch.randint(2**31, (), generator=rng.generator(seed, rng.Purpose.EVALUATE)))
