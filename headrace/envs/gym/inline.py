"""Any gymnasium.Env: N of them, stepped one after another in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
import torch

from headrace.core.rng import env_seed
from headrace.core.stopping import close_each
from headrace.core.terminal import tell
from headrace.core.text import shown
from headrace.core.types import Json, Settings, StateDict
from headrace.data.flat_action import component_sizes, flat_action
from headrace.data.flat_dict import ACTION_MASK, FlatDict
from headrace.data.rollout import Rollout
from headrace.data.spaces import Sample, Space, action_column, observation_column
from headrace.envs.base import Env, Round, repeat_first
from headrace.envs.gym.agent_groups import AgentGroups, Grouping
from headrace.envs.gym.change_params import change_each
from headrace.envs.gym.columns import EndNumbers, began, each_action, lacking, outcome_of, put, views
from headrace.envs.gym.failures import failure_of, made
from headrace.envs.gym.info_mask import check_mask, flat_space
from headrace.envs.gym.learned import give, learned_of, statistics_of
from headrace.envs.gym.own_rewards import OwnRewards, watched
from headrace.envs.gym.saving import restore, savable, state_of
from headrace.envs.gym.several import Made, Several, check_same_spaces, factory_of
from headrace.envs.gym.unread import tell_unread, unread_end, unread_mask
from headrace.envs.gym.wrapping import time_limit_of

TRIES = 3  # failures in a row after which an environment's exception is raised
EPISODES = ("returns", "lengths", "episodes", "times_remade", "last_infos")  # of each environment, saved
SILENT = 3.0  # s of making environments until a line reports the progress


class InlineEnv(Env):
    """N Gymnasium environments behind headrace.envs.base.Env, on the CPU.

    factory() makes one of them. Each is seeded once, at reset(), by a seed derived from the run's seed and its index.
    Observations are cast to their column's dtype (float32, int32, int8, or uint8 images), actions to the dtype of the
    action space; a Box's are clipped to it, and rounded where its dtype is an integer. Raises TypeError for unsupported
    spaces.

    An exception of an environment is raised again with a note of the environment, the episode and the step.
    Most Gymnasium environments cannot be saved: after load_state_dict() each begins a new episode. Those that can are
    described in envs.gym.saving.

    first_env: number of the first environment, for a part of a larger set. of: the size of that set, if rollouts are of
    the whole set; None if they are only of these environments.
    restart: instead of raising, make the environment again and truncate its episode; `restarts` counts these. An
    environment that fails TRIES times in a row, at the same step of an episode or without a step in between, raises its
    exception.
    env: an environment that factory has made already, which becomes the first. group_by: the agents that share a
    policy, see PettingZooEnv. Raises ValueError for one agent.
    """

    backend = "inline"
    device = torch.device("cpu")
    factory: Callable[[], gymnasium.Env]
    agent_groups: AgentGroups | None = None  # of several agents
    _choices: Sequence[int] = ()  # of each component of an action, where observations have an action mask

    def __init__(
        self,
        factory: Callable[[], gymnasium.Env],
        num_envs: int,
        name: str,
        first_env: int = 0,
        of: int | None = None,
        restart: bool = False,
        env: gymnasium.Env | None = None,
        group_by: Grouping = "spaces",
    ) -> None:
        self.name, self.num_envs, self.factory = name, num_envs, factory
        self.first_env, self.of, self.restart = first_env, of or num_envs, restart
        self.first_column = 0 if of is None else first_env  # in rollouts
        self.group_by = group_by
        self._restarts = 0
        self._failures = [0] * num_envs  # in a row, of each environment ...
        self._failed_after = [0] * num_envs  # ... after so many steps of an episode, beyond which it has not come since
        self._times_remade = [0] * num_envs  # each was made again so often, which changes its seed
        self._unseeded: set[int] = set()  # those whose next reset() takes a seed: new ones, and those made again
        self._round: Round | None = None  # of an evaluation
        self._resting: set[int] = set()  # environments whose episode of this round has ended
        self._taken_over, self._known = False, Made(self.name)
        self.envs = [self._known.new(made(factory_of(factory, first_env)) if env is None else env)]
        self.max_steps: int | None = None
        try:
            self._describe(self.envs[0])
            self.learned = learned_of(self.envs[0])
            self._make_others()
        except BaseException:
            self.close()
            raise
        self._own_rewards: list[OwnRewards | None] = [watched(env) for env in self.envs]
        self._rollout: Rollout | None = None
        self._seed = 0
        self._reset_all = False
        self._returns, self._lengths, self._episodes = [0.0] * num_envs, [0] * num_envs, [0] * num_envs
        self._looked = True  # at what infos say that nothing reads: once, in training, at those of environment 0
        self._infos: dict[str, np.ndarray] = {}  # columns of the info of an episode's last step that is logged
        self._end_numbers = EndNumbers()
        self._last_infos: list[list[float]] = [[] for _ in range(num_envs)]  # of the last episode, in their order

    def _set_params(self, params: Settings) -> None:
        change_each(self.envs, params, self.first_column, self.of)

    def apply(self, function: Callable[[Any], Any], indices: Iterable[int] | None = None) -> list[Any]:
        return [function(self.envs[index]) for index in (range(self.num_copies) if indices is None else indices)]

    def _make_others(self) -> None:
        """Make the environments after the first. Reports the progress if it takes long."""
        said = perf_counter()
        while len(self.envs) < self.num_copies:
            if self.first_env == 0 and perf_counter() > said + SILENT:
                said = perf_counter()
                tell(f"made {len(self.envs)} of {self.num_copies} environments of {self.name} ...")
            self.envs.append(self._known.new(self._made(len(self.envs))))

    def _describe(self, env: gymnasium.Env) -> None:
        """Take spaces and time limit from an environment. Raises TypeError for unsupported spaces."""
        if self.group_by != "spaces":
            raise ValueError(f"{self.name} has one agent, and group_by={self.group_by!r} is for several: leave it out")
        self.max_steps = time_limit_of(env)
        self._scale = getattr(env, "headrace_reward_scale", 1.0)
        self.observation_space: Space = flat_space(env.observation_space)
        self.action_space: Space = flat_action(env.action_space)
        observation_column(self.observation_space, ignorable=True)
        action_column(self.action_space)
        self._actions = each_action(self.action_space)
        if ACTION_MASK in getattr(env.observation_space, "spaces", ()):
            self._choices = component_sizes(self.action_space)

    @property
    def restarts(self) -> int:
        return self._restarts

    def part(self, rollout: Rollout) -> Rollout:
        """The columns of these environments in the rollout of the whole set."""
        return rollout[:, self.first_column : self.first_column + self.num_envs]

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Seed every environment and begin its first episode."""
        self._begin(rollout, seed, None)

    def begin(self, rollout: Rollout, seed: int, episodes: Round) -> None:
        self._begin(rollout, seed, episodes)
        if self.num_copies == self.of:  # else whoever has all of them does it
            repeat_first(rollout, self.num_copies, episodes.size)

    def _begin(self, rollout: Rollout, seed: int, episodes: Round | None) -> None:
        self._bind(rollout)
        self._seed, self._reset_all, self._round = seed, False, episodes
        if not self._taken_over:
            self._times_remade = [0] * self.num_copies
        self._taken_over = False
        self._returns, self._lengths = [0.0] * self.num_copies, [0] * self.num_copies
        self._episodes, self._unseeded = [0] * self.num_copies, set(range(self.num_copies))
        self._resting = self._without_episode(episodes)
        for index in range(self.num_copies):
            if index in self._resting:
                self._rest(index, 0)
                continue
            while not self._attempt(self._begin_one, index, 0):
                pass

    def _without_episode(self, episodes: Round | None) -> set[int]:
        """Environments that play no episode of a round."""
        plays = self.num_copies if episodes is None else max(0, episodes.size - self.first_env)
        return set(range(plays, self.num_copies))

    def _rest(self, index: int, row: int) -> None:
        """Let an environment wait for the next round, with the observation that it has."""
        self._valid[row, index] = False
        for _, column in self._observation:
            column[row, index] = column[max(row - 1, 0), index]

    def step(self, rollout: Rollout, t: int, lost: bool = False) -> None:
        """Step every environment, or reset it where valid[t] is false.

        lost: whether these environments were made again after their process had died. Then none is stepped, and row t
        marks each running episode as truncated.
        """
        if rollout is not self._rollout:
            self._bind(rollout)
        self._taken_over = False
        for index, action in enumerate(self._acting(t)):
            if action is None:
                while not self._attempt(self._reset_one, index, t):
                    pass
            elif lost or not self._attempt(self._step_one, index, t, action):
                self._cut_off(index, t)

    def _acting(self, t: int) -> list[Sample]:
        """The action of each environment; None for environments to reset."""
        if self._reset_all:
            self._valid[t] = self._reset_all = False
        actions = self._actions(self._action[t])
        return [actions[index] if valid else None for index, valid in enumerate(self._valid[t].tolist())]

    def _attempt(self, do: Callable[..., None], index: int, *arguments: Any) -> bool:
        """Call an environment's function; return its success. After a failure, remake the environment, or raise."""
        try:
            do(index, *arguments)
        except BaseException as raised:
            error = failure_of(raised)
            self._annotate(error, index)
            steps = self._lengths[index] if do == self._step_one else 0
            self._failures[index] = self._failures[index] + 1 if steps == self._failed_after[index] else 1
            self._failed_after[index] = steps
            if self.restart and self._failures[index] < TRIES:
                self._remake(index)
                return False
            if error is raised:
                raise
            raise error from raised
        if self._failures[index] and self._lengths[index] > self._failed_after[index]:
            self._failures[index] = 0
        return True

    def _remake(self, index: int) -> None:
        before, statistics = self.envs[index], statistics_of(self.envs[index])
        with suppress(Exception):  # it is broken already
            before.close()
        self.envs[index] = self._built(index)
        give(self.envs[index], statistics)
        self._own_rewards[index] = watched(self.envs[index])
        change_each(self.envs[index : index + 1], self.params, self.first_column + index, self.of)
        self._known.discard(before)
        self._restarts += 1
        self._times_remade[index] += 1
        self._unseeded.add(index)

    def _made(self, index: int) -> gymnasium.Env:
        """Make an environment. Raises ValueError if its spaces differ from those of the first function's."""
        env = made(factory_of(self.factory, self.first_env + index))
        if isinstance(self.factory, Several):
            check_same_spaces(self.envs[0], env, self.first_env + index)
        return env

    def _built(self, index: int) -> gymnasium.Env:
        """Make an environment again. Tries several times, since a resource of the old one may not be free at once."""
        for _ in range(TRIES - 1):
            with suppress(Exception):
                return self._known.new(self._made(index))
        try:
            return self._known.new(self._made(index))
        except Exception as error:
            self._annotate(error, index)
            raise

    def _cut_off(self, index: int, t: int) -> None:
        """Truncate an episode that cannot continue, as if its last step had not been taken. It is not reported."""
        for _, column in self._observation:
            column[t + 1, index] = column[t, index]
        self._reward[t, index] = 0.0
        self._terminated[t, index], self._truncated[t, index] = False, True
        self._valid[t + 1, index] = False
        self._returns[index], self._lengths[index] = 0.0, 0

    def _seed_of(self, index: int) -> int:
        number = self.first_env + index + (self._round.first if self._round else 0)
        return env_seed(self._seed, number, self._times_remade[index])

    def _first_observation(self, index: int) -> Sample:
        """Begin a new episode, and return its observation."""
        seed: Json = {"seed": self._seed_of(index)} if index in self._unseeded else {}
        self._unseeded.discard(index)
        observation, info = began(self.envs[index].reset(**seed))
        if (own_rewards := self._own_rewards[index]) is not None:
            own_rewards.take(0.0)  # rewards of steps that wrappers take before an episode
        self._look(index, info)
        return observation

    def _look(self, index: int, info: Any, ended: bool = False, truncated: bool = False) -> None:
        """Report unread entries in infos of the first environment, until the end of its first episode."""
        if self._looked or index or not isinstance(info, Mapping):
            return
        self._looked = ended
        tell_unread(self.name, unread_mask(info, self.observation_space, self.action_space))
        if ended:
            tell_unread(self.name, unread_end(info, truncated, [*self._infos, *self._logged_elsewhere()]))

    def _begin_next(self, index: int, row: int) -> None:
        """Begin the next episode after one has ended; in a round, only if the episode could not continue."""
        if self._round and (self._lengths[index] or index in self._resting):
            self._resting.add(index)
            self._rest(index, row)
        else:
            self._begin_one(index, row)

    def _begin_one(self, index: int, row: int) -> None:
        self._observe(row, index, self._first_observation(index), final=False)
        self._valid[row, index] = True

    def _step_one(self, index: int, t: int, action: Sample) -> None:
        observation, reward, terminated, truncated, info = outcome_of(self.envs[index].step(action))
        self._reward[t, index] = reward
        self._terminated[t, index], self._truncated[t, index] = terminated, truncated
        self._valid[t + 1, index] = not (terminated or truncated)
        own_rewards = self._own_rewards[index]
        self._returns[index] += reward if own_rewards is None else own_rewards.take(reward) * self._scale
        self._observe(t + 1, index, observation, terminated or truncated)
        if self._infos and (terminated or truncated):
            self._last_infos[index] = self._end_numbers.of(info, self._infos)
        self._look(index, info, terminated or truncated, truncated)
        self._lengths[index] += 1

    def _logged_elsewhere(self) -> Sequence[str]:
        """Names of infos that a wrapper takes for the logs of Stable-Baselines3's interface."""
        named = self.envs[0].has_wrapper_attr("headrace_logs")
        return self.envs[0].get_wrapper_attr("headrace_logs") if named else ()

    def _reset_one(self, index: int, t: int) -> None:
        self._begin_next(index, t + 1)
        self._reward[t, index] = 0.0
        self._terminated[t, index] = self._truncated[t, index] = False
        self._episode_return[t, index] = self._returns[index] / self._scale
        self._episode_length[t, index] = self._lengths[index]
        for column, value in zip(self._infos.values(), self._last_infos[index], strict=False):  # none before the first
            column[t, index] = value
        self._returns[index], self._lengths[index] = 0.0, 0
        self._episodes[index] += 1

    def _observe(self, row: int, index: int, observation: Sample, final: bool) -> None:
        try:
            if self._choices and not final:
                check_mask(observation[ACTION_MASK], self._choices)
            if isinstance(self.observation_space, FlatDict):
                observation = self.observation_space.join(observation)
            put(self._observation, row, index, observation)
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise ValueError(
                f"the observation {shown(observation)} does not fit the observation_space "
                f"{shown(self.observation_space)}: {lacking(self.observation_space, observation) or error}"
            ) from error

    def _bind(self, rollout: Rollout) -> None:
        """NumPy views of a rollout's columns: made once, because indexing tensors is ten times slower."""
        if self._rollout is None and self.first_env == 0:  # rollouts that are not for learning have only these columns
            self._looked = self._end_numbers.quiet = rollout.columns.keys() <= {*self.columns(), "info"}
        self._rollout = rollout
        self._bind_spaces(rollout)
        self._valid = rollout.valid.numpy()
        self._reward = rollout.reward.numpy()
        self._terminated, self._truncated = rollout.terminated.numpy(), rollout.truncated.numpy()
        self._infos = {name: column.numpy() for name, column in rollout.info} if "info" in rollout.columns else {}
        self._episode_return, self._episode_length = rollout.episode_return.numpy(), rollout.episode_length.numpy()

    def _bind_spaces(self, rollout: Rollout) -> None:
        self._observation = views(self.observation_space, rollout.observation)
        self._action = rollout.action.numpy()

    def _annotate(self, error: Exception, index: int) -> None:
        number = self.first_env + index
        total = f" of {self.of}" if number < self.of else ""  # of a larger set, whose size is not known here
        error.add_note(
            f"in env {number}{total} of {self.name}, episode {self._episodes[index]}, "
            f"step {self._lengths[index]}; its seed was {self._seed_of(index)}, the run's {self._seed}"
        )

    def state_dict(self) -> StateDict:
        """States of the environments and of their episodes; empty if one of them cannot be saved.

        Raises TypeError for what a checkpoint cannot hold.
        """
        if not all(map(savable, self.envs)):
            return {}
        numbers = {name: list(getattr(self, f"_{name}")) for name in EPISODES}
        own = {"seed": self._seed, "unseeded": sorted(self._unseeded), **numbers}
        return {"envs": [state_of(env) for env in self.envs], **own}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict(). From an empty state a new episode begins everywhere: the next row is masked, with
        length 0 if no episode had begun. Raises ValueError if these environments cannot be restored."""
        if not state:
            self._reset_all = True
            return
        self._seed, self._reset_all, self._unseeded = state["seed"], False, set(state["unseeded"])
        for name in EPISODES:
            setattr(self, f"_{name}", list(state[name]))
        for env, saved in zip(self.envs, state["envs"], strict=True):
            restore(env, saved)

    def take_over(self, seed: int, times_remade: int, episodes: Round | None = None) -> None:
        """Replace environments of a lost process. Each begins at its next reset, with the seed of an environment made
        again times_remade times. episodes: the round of the lost ones."""
        self._seed, self._round, self._resting = seed, episodes, self._without_episode(episodes)
        self._times_remade, self._taken_over = [times_remade] * self.num_copies, True
        self._unseeded = set(range(self.num_copies))

    def close(self) -> None:
        """Close every environment."""
        envs, self.envs = self.envs, []
        close_each(envs, f"an environment of {self.name}")
