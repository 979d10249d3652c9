"""Any gymnasium.Env: N of them, stepped one after another in this process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
import torch

from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, Space, action_column, leaves, observation_column
from headrace.envs.base import Env, State

Views = list[tuple[tuple[Any, ...], np.ndarray]]
TRIES = 5  # how often in a row an environment may fail before it is given up


class InlineEnv(Env):
    """N Gymnasium environments behind headrace.envs.base.Env, on the CPU.

    factory() makes one of them. Each is seeded once, at reset(), by a seed made of the run's seed and its index.
    Observations are cast to their column's dtype (float32, int32, int8, or uint8 images), actions to the dtype of the
    action space; a Box's are clipped to it, and rounded where it is of whole numbers. Raises TypeError for spaces that
    are not supported.

    An exception inside an environment goes up as it is, with a note of which environment it was, in which episode, at
    which step. Gymnasium environments cannot be saved: after load_state_dict() each begins a new episode.

    first_env, of: where these are part of more, the index of their first, and how many there are in all.
    restart: an exception does not go up: the environment is made anew and its episode ends as truncated; `restarts`
    counts these. One that fails TRIES times without a step between is given up, and its exception goes up.
    world: an environment of factory's that is there already, and becomes the first.
    """

    backend = "inline"
    device = torch.device("cpu")
    factory: Callable[[], Any]

    def __init__(
        self,
        factory: Callable[[], gymnasium.Env],
        num_envs: int,
        name: str,
        first_env: int = 0,
        of: int | None = None,
        restart: bool = False,
        world: Any = None,
    ) -> None:
        self.name, self.num_envs, self.factory = name, num_envs, factory
        self.first_env, self.of, self.restart = first_env, of or num_envs, restart
        self._restarts = 0
        self._failures = [0] * num_envs  # since the last step that went well
        self._made_anew = [0] * num_envs  # so often, which gives the next one another seed
        self._unseeded: set[int] = set()  # those that were made anew and not yet reset
        self.worlds: list[Any] = [factory() if world is None else world]
        self.max_steps: int | None = None
        try:
            self._describe(self.worlds[0])
        except (TypeError, ValueError):
            self.close()
            raise
        self.worlds += [factory() for _ in range(num_envs - 1)]
        self._rollout: Rollout | None = None
        self._seed = 0
        self._begin_anew = False
        self._returns, self._lengths, self._episodes = [0.0] * num_envs, [0] * num_envs, [0] * num_envs

    def _describe(self, world: gymnasium.Env) -> None:
        """Take spaces and time limit from a world. Raises TypeError for spaces that are not supported."""
        self.max_steps = getattr(world.spec, "max_episode_steps", None)
        self._scale = getattr(world, "headrace_reward_scale", 1.0)
        self.observation_space: Space = world.observation_space
        self.action_space: Space = world.action_space
        observation_column(self.observation_space)
        action_column(self.action_space)
        self._actions = action_caster(self.action_space)

    @property
    def restarts(self) -> int:
        return self._restarts

    def part(self, rollout: Rollout) -> Rollout:
        """Of a rollout of all environments, where these are part of more: what is theirs."""
        return rollout[:, self.first_env : self.first_env + self.num_envs]

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Seed every environment and begin its first episode."""
        self._bind(rollout)
        self._seed, self._begin_anew = seed, False
        self._returns, self._lengths = [0.0] * self.num_copies, [0] * self.num_copies
        self._episodes = [0] * self.num_copies
        for index in range(self.num_copies):
            while not self._attempt(self._begin_one, index, 0):
                pass

    def step(self, rollout: Rollout, t: int) -> None:
        """Step every environment, or reset it where valid[t] is false."""
        if rollout is not self._rollout:
            self._bind(rollout)
        if self._begin_anew:
            self._valid[t] = self._begin_anew = False
        actions = self._actions(self._action[t])
        valid = self._valid[t].tolist()
        for index in range(self.num_envs):
            if valid[index]:
                if not self._attempt(self._step_one, index, t, actions[index]):
                    self._cut_off(index, t)
            else:
                while not self._attempt(self._reset_one, index, t):
                    pass

    def _attempt(self, do: Callable[..., None], index: int, *arguments: Any) -> bool:
        """Whether it went well; if not, the environment has been made anew, or the exception goes up."""
        try:
            do(index, *arguments)
        except Exception as error:
            self._annotate(error, index)
            self._failures[index] += 1
            if not self.restart or self._failures[index] == TRIES:
                raise
            self._make_anew(index)
            return False
        return True

    def _make_anew(self, index: int) -> None:
        with suppress(Exception):  # it is broken already
            self.worlds[index].close()
        self.worlds[index] = self._built(index)
        self._restarts += 1
        self._made_anew[index] += 1
        self._unseeded.add(index)

    def _built(self, index: int) -> Any:
        """Another world; what it needs may not be free at once."""
        for _ in range(TRIES - 1):
            with suppress(Exception):
                return self.factory()
        try:
            return self.factory()
        except Exception as error:
            self._annotate(error, index)
            raise

    def _cut_off(self, index: int, t: int) -> None:
        """End an episode that nobody can go on with, as if its last step had not been taken."""
        for _, column in self._observation:
            column[t + 1, index] = column[t, index]
        self._reward[t, index] = 0.0
        self._terminated[t, index], self._truncated[t, index] = False, True
        self._valid[t + 1, index] = False

    def _seed_of(self, index: int) -> int:
        return env_seed(self._seed, self.first_env + index, self._made_anew[index])

    def _begin_one(self, index: int, row: int) -> None:
        self._unseeded.discard(index)
        self._observe(row, index, observation_of(self.worlds[index].reset(seed=self._seed_of(index))))
        self._valid[row, index] = True

    def _step_one(self, index: int, t: int, action: Any) -> None:
        outcome: Any = self.worlds[index].step(action)
        try:
            observation, reward, terminated, truncated, _ = outcome
            self._reward[t, index] = reward
            self._terminated[t, index] = terminated
            self._truncated[t, index] = truncated
            self._valid[t + 1, index] = not (terminated or truncated)
            self._returns[index] += float(reward)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"step() gave {outcome!r}: it must give (observation, reward: a number, terminated: a bool, "
                "truncated: a bool, info)"
            ) from error
        self._observe(t + 1, index, observation)
        self._lengths[index] += 1
        self._failures[index] = 0

    def _reset_one(self, index: int, t: int) -> None:
        if index in self._unseeded:
            self._begin_one(index, t + 1)
        else:
            self._observe(t + 1, index, observation_of(self.worlds[index].reset()))
        self._reward[t, index] = 0.0
        self._terminated[t, index] = self._truncated[t, index] = False
        self._valid[t + 1, index] = True
        self._episode_return[t, index] = self._returns[index] / self._scale
        self._episode_length[t, index] = self._lengths[index]
        self._returns[index], self._lengths[index] = 0.0, 0
        self._episodes[index] += 1

    def _observe(self, row: int, index: int, observation: Any) -> None:
        try:
            put(self._observation, row, index, observation)
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise ValueError(
                f"the observation {observation!r} does not fit the observation_space {self.observation_space}"
            ) from error

    def _bind(self, rollout: Rollout) -> None:
        """NumPy views of a rollout's columns: made once, because an index into a tensor costs ten of an array."""
        self._rollout = rollout
        self._bind_spaces(rollout)
        self._valid = rollout.valid.numpy()
        self._reward = rollout.reward.numpy()
        self._terminated, self._truncated = rollout.terminated.numpy(), rollout.truncated.numpy()
        self._episode_return, self._episode_length = rollout.episode_return.numpy(), rollout.episode_length.numpy()

    def _bind_spaces(self, rollout: Rollout) -> None:
        self._observation = views(self.observation_space, rollout.observation)
        self._action = rollout.action.numpy()

    def _annotate(self, error: Exception, index: int) -> None:
        error.add_note(
            f"in env {self.first_env + index} of {self.of} of {self.name}, episode {self._episodes[index]}, "
            f"step {self._lengths[index]}; its seed was {self._seed_of(index)}, the run's {self._seed}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Nothing: Gymnasium has no way to save an environment."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Begin a new episode everywhere: the next row is dead, and ends an episode of length 0 where none was run."""
        self._begin_anew = True

    def adopt(self, seed: int, made_anew: int) -> None:
        """Stand in for environments that are lost: each begins when it is next reset, seeded as one that has been made
        anew so often."""
        self._seed = seed
        self._made_anew = [made_anew] * self.num_copies
        self._unseeded = set(range(self.num_copies))

    def close(self) -> None:
        """Close every environment."""
        while self.worlds:
            self.worlds.pop().close()


def env_seed(seed: int, index: int, made_anew: int = 0) -> int:
    """Seed of environment `index` in a run: 32 bits, far apart for neighbouring seeds.

    made_anew: how often the environment had to be made anew.
    """
    words = (seed % 2**64, index, made_anew) if made_anew else (seed % 2**64, index)
    return int(np.random.SeedSequence(words).generate_state(1)[0])


def observation_of(outcome: Any) -> Any:
    """The observation of what reset() gave."""
    if not (isinstance(outcome, tuple) and len(outcome) == 2):
        raise TypeError(f"reset() gave {outcome!r}: it must give (observation, info)")
    return outcome[0]


def views(space: Space, column: Any) -> Views:
    """The NumPy arrays of an observation column, each with the keys that lead to its part of an observation."""
    found = []
    for keys, _ in leaves(space):
        member = column
        for key in keys:
            member = getattr(member, str(key))
        found.append((keys, member.numpy()))
    return found


def put(columns: Views, row: int, index: int, observation: Any) -> None:
    """Write one observation. Raises ValueError, TypeError, KeyError, IndexError where it does not fit."""
    for keys, column in columns:
        part = observation
        for key in keys:
            part = part[key]
        if np.shape(part) != column.shape[2:]:  # which an assignment would stretch to fit
            raise ValueError(f"its shape is {np.shape(part)}, not {column.shape[2:]}")
        column[row, index] = part


def action_caster(space: Space) -> Callable[[np.ndarray], Any]:
    """A function from a row of the action column, [N, ...], to N actions as an environment of this space wants them."""
    if isinstance(space, Box):
        low, high, dtype = space.low, space.high, space.dtype
        if dtype.kind != "f":
            return lambda row: np.rint(np.minimum(np.maximum(row, low), high)).astype(dtype)
        return lambda row: np.minimum(np.maximum(row, low), high).astype(dtype, copy=False)
    return lambda row: row.astype(space.dtype)
