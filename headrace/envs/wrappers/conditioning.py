"""Conditioning input of a policy, one for each env: a goal, a skill, a fraction of random actions.

It is a member `agent_info` of a Dict observation. So it is a column of rollouts and replay buffers, encoders
concatenate it with the other features, and checkpoints and exports contain it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.core import rng
from headrace.core.text import shown
from headrace.core.types import StateDict
from headrace.data.rollout import Column, Columns, Group, Rollout
from headrace.data.spaces import Box, Dict, Discrete, MultiDiscrete, Space, bounds, observation_column
from headrace.envs.base import Env, EnvWrapper, Round

AgentInfo = Space | Tensor | np.ndarray | Sequence[float]
NAME, PLAIN = "agent_info", "observation"  # PLAIN: the name of an observation that is not a Dict
GIVEN = "given"  # stands for the conditioning input in a run's settings


class InformedEnv(EnvWrapper):
    """An env with a conditioning input `agent_info` for each of its N agents.

    agent_info: constant numbers [N] or [N, ...] (integers [N] are categories, all others quantities); or a Box,
    Discrete or MultiDiscrete space, from which each episode draws uniformly, by counter-based random numbers.
    space: the space of constant numbers, if it has more values than agent_info. cycled: whether agent_info may be for
    another number of copies; copy i, or in an evaluation episode i, then has the entry of copy i modulo their number.
    Raises ValueError for another count of numbers or a Box without bounds, TypeError for anything but numbers or such a
    space, or for a Dict observation that already has an agent_info.
    """

    def __init__(self, env: Env, agent_info: AgentInfo, space: Space | None = None, cycled: bool = False) -> None:
        super().__init__(env)
        self._given = deepcopy(agent_info)  # the user may write into it
        self._cycled, self._round = cycled, Round(0, self.num_copies, self.num_copies)
        found, self._fixed = self._of_round()
        self.info_space = space or found
        if env.nested:
            raise TypeError(f"groups of agents have different observations in {env.name}: agent_info needs equal ones")
        seen = env.observation_space
        members = dict(seen.spaces) if isinstance(seen, Dict) else {PLAIN: seen}
        if NAME in members:
            raise TypeError(f"the observations of {env.name} have an {NAME} of their own: {seen}")
        self.observation_space = Dict(members | {NAME: self.info_space})
        self._plain = not isinstance(seen, Dict)
        self._inner: WeakKeyDictionary[Rollout, Rollout] = WeakKeyDictionary()
        self._seed, self._steps = 0, torch.zeros((), dtype=torch.int64, device=env.device)
        if self._fixed is None:
            self._low, self._span = (torch.as_tensor(x, device=env.device) for x in _ends(self.info_space))

    def columns(self) -> dict[str, Column | Columns]:
        """The env's columns, with agent_info within the observation."""
        own = self.env.columns()
        members = {PLAIN: own["observation"]} if self._plain else dict(own["observation"])  # type: ignore[arg-type]
        return own | {"observation": members | {NAME: observation_column(self.info_space)}}

    def rollout(self, num_steps: int, columns: Columns) -> Rollout:
        """A rollout of these columns; those of the env are in the env's own memory."""
        inner = self.env.rollout(num_steps, {**columns, "observation": self.env.columns()["observation"]})
        info = columns["observation"][NAME].allocate(num_steps, self.env.num_envs, inner.device)  # type: ignore
        outer = inner[:]
        outer.columns = columns
        members = {PLAIN: inner.observation} if self._plain else dict(inner.observation)
        outer.observation = Group(members | {NAME: info})
        self._inner[outer] = inner
        return outer

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Begin new episodes, and write each agent's agent_info."""
        self.env.reset(self._of_env(rollout), seed)
        self._begin(rollout, seed)

    def begin(self, rollout: Rollout, seed: int, episodes: Round) -> None:
        self.env.begin(self._of_env(rollout), seed, episodes)
        self._round = episodes
        self._begin(rollout, seed)

    def _begin(self, rollout: Rollout, seed: int) -> None:
        self._seed = seed
        self._steps.zero_()
        if self._fixed is not None:
            numbers = self._of_round()[1]
            self._fixed = None if numbers is None else numbers.to(self._steps.device)
        getattr(rollout.observation, NAME)[0] = self._drawn()

    def _of_round(self) -> tuple[Space, Tensor | None]:
        """The space of agent_info, and its constant numbers for the copies in this round."""
        given = for_copies(self._given, self.env, self._round.first) if self._cycled else self._given
        return _parsed(given, self.env.num_envs)

    def step(self, rollout: Rollout, t: int) -> None:
        """Step the environments; agents whose episode begins in row t + 1 get a new agent_info, others keep theirs."""
        self.env.step(self._of_env(rollout), t)
        self._steps += 1
        info = getattr(rollout.observation, NAME)
        begins = ~rollout.valid[t].view(-1, *[1] * (info.dim() - 2))
        info[t + 1] = torch.where(begins, self._drawn(), info[t])

    def state_dict(self) -> StateDict:
        """The env's state, and the number of steps; empty where the env cannot be saved."""
        state = self.env.state_dict()
        return {"env": state, "steps": self._steps.clone(), "seed": self._seed} if state else {}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict()."""
        self.env.load_state_dict(state.get("env", {}))
        if state:
            self._steps.copy_(state["steps"])
            self._seed = state["seed"]

    def _of_env(self, rollout: Rollout) -> Rollout:
        """The rollout for the env: the same memory, without agent_info."""
        inner = self._inner.get(rollout)
        if inner is None:
            inner = self._inner[rollout] = rollout[:]
            seen = rollout.observation
            inner.columns = {**rollout.columns, "observation": self.env.columns()["observation"]}
            rest = {name: member for name, member in seen if name != NAME}
            inner.observation = rest[PLAIN] if self._plain else Group(rest)
        return inner

    def _drawn(self) -> Tensor:
        """The agent_info of agents whose episode begins now, [N, ...]."""
        if self._fixed is not None:
            return self._fixed
        space = self.info_space
        assert space.shape is not None
        shape = self.env.num_envs, *space.shape
        draws = self.num_agents, self.num_copies, int(np.prod(space.shape)), self._steps.device
        episodes = self._round.first, self._round.of
        drawn = rng.uniform_of_agents(self._seed, rng.Purpose.AGENT_INFO, self._steps, 1, *draws, *episodes)
        fraction = drawn[0].reshape(shape)
        if isinstance(space, Box):
            return self._low + fraction * self._span
        return (self._low + (fraction * self._span).floor()).to(torch.int32)


def informed(env: Env, agent_info: AgentInfo | None) -> Env:
    """Make an InformedEnv; for agent_info None, return the env. Raises TypeError, ValueError as InformedEnv does."""
    return env if agent_info is None else InformedEnv(env, agent_info)


def seen_in(policy: Any, agent_info: AgentInfo | None, episode: int) -> Callable[[Any], Any]:
    """Make a function that converts an environment's observation to a policy's, which may have been trained with
    agent_info.

    Episode i has entry i modulo their number, the values of a Discrete space in turn, or a draw from another space. The
    function raises ValueError if agent_info is missing.
    """
    space = getattr(policy, "observation_space", None)
    if not isinstance(space, Dict) or NAME not in space.spaces:
        return lambda observation: observation
    info = None if agent_info is None else _in_turn(agent_info, episode)

    def seen(observation: Any) -> Any:
        members = observation if isinstance(observation, Mapping) else {PLAIN: observation}
        if NAME not in members and info is None:
            raise ValueError(f"the policy was trained with {NAME}: give it, as in play(policy, env, {NAME}=...)")
        return {NAME: info, **members}

    return seen


def _in_turn(agent_info: AgentInfo, episode: int) -> Any:
    if isinstance(agent_info, Discrete):
        return agent_info.start + episode % agent_info.n
    if isinstance(agent_info, Box | MultiDiscrete):
        low, span = (np.asarray(x) for x in _ends(agent_info))
        fraction = np.random.default_rng(episode).random(agent_info.shape)
        return low + fraction * span if isinstance(agent_info, Box) else low + (fraction * span).astype(int)
    numbers = np.asarray(agent_info)
    return numbers[episode % len(numbers)]


def for_copies(agent_info: AgentInfo, env: Env, first: int = 0) -> AgentInfo:
    """A training's agent_info for another number of copies: copy i has that of copy first + i modulo their number."""
    if isinstance(agent_info, Space | str):
        return agent_info
    numbers = torch.as_tensor(agent_info)
    by_agent = numbers.reshape(env.num_agents, -1, *numbers.shape[1:])
    return by_agent[:, (first + torch.arange(env.num_copies)) % by_agent.shape[1]].flatten(0, 1)


def _parsed(given: AgentInfo | str, num_envs: int) -> tuple[Space, Tensor | None]:
    """The space of an agent_info, and its constant numbers, on the CPU; None if they are drawn."""
    if isinstance(given, Discrete | MultiDiscrete):
        return given, None
    if isinstance(given, Box):
        if not np.isfinite(bounds(given)).all():
            raise ValueError(f"to draw from it, {NAME} needs bounds, got {given}: give numbers, one for each env")
        return given, None
    if isinstance(given, str) and given == GIVEN:
        raise TypeError(f"this run was trained with {NAME}: give it again, as in train(resume=..., {NAME}=...)")
    if isinstance(given, str | Space):
        raise TypeError(f"{NAME} is numbers [N, ...], or a Box, Discrete or MultiDiscrete space, got {shown(given)}")
    numbers = torch.as_tensor(given).clone()
    if numbers.dim() < 1 or len(numbers) != num_envs:
        raise ValueError(f"{NAME} needs one entry for each of {num_envs} envs, got the shape {tuple(numbers.shape)}")
    if numbers.dim() == 1 and not numbers.is_floating_point():
        start = int(numbers.min())
        return Discrete(int(numbers.max()) - start + 1, start=start), numbers.to(torch.int32)
    return Box(-np.inf, np.inf, tuple(numbers.shape[1:])), numbers.to(torch.float32)


def _ends(space: Space) -> tuple[npt.ArrayLike, npt.ArrayLike]:
    """The lowest value of a space, and the number of values or their range."""
    if isinstance(space, Box):
        return space.low.astype(np.float32), (space.high - space.low).astype(np.float32)
    assert isinstance(space, Discrete | MultiDiscrete)
    return space.start, space.n if isinstance(space, Discrete) else space.nvec
