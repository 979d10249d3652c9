"""Training of several agents: an algorithm for each group, and statistics of each group."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from headrace.agent_groups.group_algorithm import Grouped, seed_of
from headrace.algorithms.base import ALGORITHMS, Algorithm, algorithm_classes, is_offline
from headrace.algorithms.config_bases import EpsilonGreedyConfig, OnPolicyConfig
from headrace.core.terminal import tell
from headrace.core.types import StateDict
from headrace.data.flat_action import FlatAction, whole
from headrace.data.rollout import Rollout
from headrace.data.spaces import Space
from headrace.envs.base import Env
from headrace.parallel.actor_env import ActorEnv
from headrace.policies.base import Policy
from headrace.training.config import OF_SELF_PLAY, TrainConfig, default_of
from headrace.training.episodes import Episodes

MOST_OPPONENTS = 8  # where their number is not given
FEW_AGENTS = 16  # largest number of agents that have a column each in metrics.jsonl
OF_PROCESSES = ("actors", "workers", "collection", "learners", "shards")
# settings that must have their defaults with self-play, whose games one process steps
REFUSED = (*OF_PROCESSES, "collect_device", "central_critic", "stagger", "log_info", "eval_freq")
NOT_COMPARED = (  # trainings with self_play, by a population or a sweep
    "each of them has opponents of its own, so that the returns of two do not tell which is better; train each on its "
    "own, and let their policies play each other"
)
MakePolicy: TypeAlias = Callable[[tuple[Space, Space], int], Policy]  # of spaces and a seed


def central(env: Env) -> Env:
    """Wrap an env such that observations have the state of all agents: see headrace.envs.wrappers.central, which is
    imported here."""
    from headrace.envs.wrappers import central

    return central.central(env)


def wrapped(env: Env, config: TrainConfig) -> Env:
    """Wrap the env for the algorithm: with central_critic by central(), with self_play by SelfPlayEnv."""
    if config.central_critic and not isinstance(env, ActorEnv):  # actors have it in their own processes
        env = central(env)
    if not config.self_play:
        if env.takes_turns:
            tell(
                f"the agents of {env.name} take turns, and each acts in every step: the actions of all but one are not "
                "read, and learned from nevertheless; self_play=True (--self-play) learns from moves alone"
            )
        return env
    from headrace.self_play.games import SelfPlayEnv
    from headrace.self_play.league import League

    given = {name: getattr(config, name) for name in OF_SELF_PLAY}
    given["opponents"] = config.opponents or min(MOST_OPPONENTS, max(1, env.num_copies // 2))
    return SelfPlayEnv(env, League(**given, seed=config.seed), config.seed, config.reward_scale)


def with_self_play(config: TrainConfig, own: Any, given: Collection[str], agent_info: Any) -> TrainConfig:
    """Check the config for self_play. Returns it without stagger, unless stagger was given.

    own: the algorithm's config. given: names of the settings that the user gave.
    Raises ValueError for settings that do not go with self_play, and for settings of self_play without it.
    """
    if not config.self_play:
        if without := _changed(config, OF_SELF_PLAY):
            raise ValueError(f"{', '.join(without)} is for self_play: give self_play=True too, or leave it out")
        return config
    config = config if "stagger" in given else replace(config, stagger=False)
    for name in _changed(config, REFUSED):
        raise ValueError(f"self_play does not go with {name}={getattr(config, name)!r}: leave {name} out")
    if agent_info is not None:
        raise ValueError("self_play does not go with agent_info: leave agent_info out")
    if not isinstance(own, OnPolicyConfig) or isinstance(own, EpsilonGreedyConfig):
        raise ValueError("self_play is for an actor and a critic that learn from rollouts: use ppo")
    for name, off in (("recurrent", "none"), ("use_sde", False)):
        if (value := getattr(own, name, off)) != off:
            raise ValueError(f"self_play is for policies without a state: leave out {name}={value!r}")
    shares = {name: getattr(config, name) for name in ("latest_share", "best_share")}
    if min(shares.values()) < 0 or sum(shares.values()) > 1:
        found = " and ".join(f"{name} {value:g}" for name, value in shares.items())
        raise ValueError(f"{found} are shares of the opponents: give numbers from 0 on whose sum is at most 1")
    return config


def _changed(config: TrainConfig, names: Sequence[str]) -> list[str]:
    """Names of settings that differ from their defaults."""
    return [name for name in names if getattr(config, name) != default_of(TrainConfig.__dataclass_fields__[name])]


def central_part(make_part: Callable[[int, int], Env], number: int, first: int) -> Env:
    """Apply central() to the environments of an actor."""
    return central(make_part(number, first))


def columns_of_groups(env: Env) -> dict[str, slice]:
    """Columns of each group of agents; empty if there is only one group.

    Raises ValueError where the agents of a group are not next to each other.
    """
    groups = env.groups
    if len(groups) < 2:
        return {}
    copies, first, columns = env.num_copies, 0, {}
    for group, members in groups.items():
        if tuple(env.agents[first : first + len(members)]) != tuple(members):
            raise ValueError(
                f"the agents of a group must be next to each other, in the order of the groups: the agents are "
                f"{', '.join(env.agents)}, and the groups {dict(groups)}"
            )
        columns[group] = slice(first * copies, (first + len(members)) * copies)
        first += len(members)
    return columns


def build(
    kind: type[Algorithm],
    config: Any,
    env: Env,
    seed: int,
    device: torch.device,
    make_policy: MakePolicy | None = None,
) -> Algorithm:
    """Make an Algorithm for an env: one for all agents, or one for each group. make_policy: a function of spaces and a
    seed; None for the algorithm's usual policy."""

    def one(pair: tuple[Space, Space], seed: int) -> Algorithm:
        if make_policy is None:
            return kind.build(config, *pair, seed, device)
        return kind(make_policy(pair, seed).to(device), config, seed)  # type: ignore[call-arg]

    spaces = env.spaces
    if not columns_of_groups(env):
        return one(next(iter(spaces.values())), seed)
    algorithms = {group: one(pair, seed_of(seed, number)) for number, (group, pair) in enumerate(spaces.items())}
    return Grouped(algorithms, env.groups)  # type: ignore[return-value]  # its iteration is that of its parts


_KINDS: dict[type[Space], str] = {FlatAction: "Dict or Tuple"}  # users' names for spaces of Headrace's own


def check_actions(name: str, env: Env) -> None:
    """Raise ValueError, naming the algorithms that support them, for actions that an algorithm does not support."""
    spaces = [action for _, action in env.spaces.values()]
    kinds = algorithm_classes(name).algorithm.actions
    wrong = next((space for space in spaces if not isinstance(space, kinds)), None)
    if wrong is not None:
        classes = {other: algorithm_classes(other).algorithm for other in ALGORITHMS}
        offline = is_offline(algorithm_classes(name).algorithm)
        fit = [other for other, own in classes.items() if is_offline(own) == offline and _suits(own, spaces)]
        raise ValueError(
            f"{name} supports {' or '.join(_KINDS.get(kind, kind.__name__) for kind in kinds)} actions, and those of "
            f"{env.name} are {whole(wrong)}: use {', '.join(fit) or 'another action space'}"
        )


def columns_of_agents(env: Env) -> dict[str, slice]:
    """Columns of each agent if there are a few; empty for one agent or many."""
    copies = env.num_copies
    few = 1 < env.num_agents <= FEW_AGENTS
    return {agent: slice(k * copies, (k + 1) * copies) for k, agent in enumerate(env.agents)} if few else {}


def _suits(kind: type[Algorithm], spaces: Sequence[Space]) -> bool:
    """True if an algorithm acts in these spaces."""
    takes = getattr(kind, "suits", lambda _: True)
    return all(isinstance(space, kind.actions) and takes(space) for space in spaces)


class GroupEpisodes:
    """Statistics of finished episodes, for each group of agents; if all share one policy, for each of few agents."""

    def __init__(self, env: Env, window: int) -> None:
        self.columns = columns_of_groups(env) or columns_of_agents(env)
        self.episodes = {group: Episodes(window) for group in self.columns}

    def add(self, rollout: Rollout) -> None:
        """Add the episodes that ended in a rollout."""
        for group, columns in self.columns.items():
            self.episodes[group].add(rollout, columns)

    def row(self) -> dict[str, float | None]:
        """The mean return of each group or agent, for metrics.jsonl."""
        return {f"return/{group}": episodes.mean_return() for group, episodes in self.episodes.items()}

    def state_dict(self) -> StateDict:
        """Counts and windows by group or agent."""
        return {group: episodes.state_dict() for group, episodes in self.episodes.items()}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict()."""
        for group, episodes in self.episodes.items():
            if group in state:  # runs of earlier versions have none for agents that share a policy
                episodes.load_state_dict(state[group])
