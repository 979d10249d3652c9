"""A worker's role of stepping some environments of a WorkerVectorEnv, as gymnasium.vector.SyncVectorEnv steps them."""

from __future__ import annotations

import pickle
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, iterate

from headrace.core.stopping import close_each
from headrace.core.types import Json
from headrace.data.shared_memory import Memory, padded
from headrace.envs.gym.attributes import set_attribute
from headrace.envs.gym.several import Factory, Made, check_same_spaces, factory_of
from headrace.envs.vector_env.batches import Leaves, batch_bytes, batch_in, nested, write
from headrace.envs.vector_env.step_numbers import StepNumbers

ATTACH, RESET, STEP, CALL, SET = range(5)
Infos = list[tuple[int, Json]]  # the environments' own infos, with their numbers; only those that are not empty


class VectorFacts(NamedTuple):
    """Report of a worker whose environments are made."""

    observation_space: Space
    action_space: Space
    metadata: Json
    render_mode: str | None


class Block(NamedTuple):
    """Shared memory: observations and actions of all environments, and the outcome of their steps."""

    observation: Leaves
    action: Leaves
    reward: np.ndarray  # float64 [N], as SyncVectorEnv's
    terminated: np.ndarray  # bool [N]
    truncated: np.ndarray  # bool [N]


def block_bytes(observation_space: Space, action_space: Space, num_envs: int) -> int:
    """Bytes of a Block."""
    spaces = batch_bytes(observation_space, num_envs) + batch_bytes(action_space, num_envs)
    return spaces + padded(8 * num_envs) + 2 * padded(num_envs)


def block_in(observation_space: Space, action_space: Space, num_envs: int, memory: Memory) -> Block:
    """The Block in a memory of block_bytes()."""
    start = batch_bytes(observation_space, num_envs)
    observation = batch_in(observation_space, num_envs, memory, 0)
    action = batch_in(action_space, num_envs, memory, start)
    start += batch_bytes(action_space, num_envs)
    reward = np.frombuffer(memory.bytes, np.float64, num_envs, start)
    start += padded(8 * num_envs)
    flags = [np.frombuffer(memory.bytes, np.bool_, num_envs, start + k * padded(num_envs)) for k in range(2)]
    return Block(observation, action, reward, *flags)


class VectorStepping:
    """A Role (envs.workers.protocol): environments first .. first + size - 1 of num_envs. The answer to an order is 0,
    or, where there are any, infos or values.

    factory: gives an environment, or Several, pickled by cloudpickle. statistics: see StepNumbers.
    """

    def __init__(
        self,
        factory: bytes,
        first: int,
        size: int,
        num_envs: int,
        mode: AutoresetMode,
        statistics: bool,
        orders: Connection,
    ) -> None:
        make: Factory = pickle.loads(factory)
        self.orders, self.first, self.num_envs, self.mode = orders, first, num_envs, mode
        known = Made("make_vec()")
        numbers = range(first, first + size)
        self.envs = [StepNumbers(known.new(factory_of(make, number)()), statistics) for number in numbers]
        env = self.envs[0]
        for number, other in zip(numbers, self.envs, strict=True):
            check_same_spaces(env, other, number, RuntimeError)  # as SyncVectorEnv does
        self.facts = VectorFacts(env.observation_space, env.action_space, dict(env.metadata), env.render_mode)
        self.ended = np.zeros(size, bool)  # environments whose next step resets, in NEXT_STEP
        self.infos: Infos = []

    def carry_out(self, what: int, where: int) -> Any:
        """Carry out one of the orders above."""
        self.infos = []
        if what == STEP:
            self._step()
        elif what == RESET:
            self._reset(*self.orders.recv())
        elif what == CALL:
            name, args, kwargs, chosen = self.orders.recv()
            envs = self.envs if chosen is None else [self.envs[number - self.first] for number in chosen]
            return [called(env, name, args, kwargs) for env in envs]
        elif what == SET:
            name, values = self.orders.recv()
            for env, value in zip(self.envs, values, strict=True):
                set_attribute(env, name, value)
        else:
            self._attach(*self.orders.recv())
            return None
        return self.infos or 0

    def _attach(self, observation_space: Space, action_space: Space, size: int) -> None:
        """Write into this memory from now on. Its descriptor follows the message."""
        memory = Memory(size, recv_handle(self.orders))
        self.block = block_in(observation_space, action_space, self.num_envs, memory)
        memory.close()
        mine = slice(self.first, self.first + len(self.envs))
        self.actions = nested(action_space, [(keys, array[mine]) for keys, array in self.block.action])
        self.action_space = batch_space(action_space, len(self.envs))

    def _step(self) -> None:
        actions = [action for action, _ in zip(iterate(self.action_space, self.actions), self.envs, strict=True)]
        for index, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            if self.ended[index]:
                self._begin(index, None, None)
            else:
                self._step_one(index, env, action)

    def _step_one(self, index: int, env: gymnasium.Env, action: Any) -> None:
        number, block = self.first + index, self.block
        observation, reward, terminated, truncated, info = env.step(action)
        block.reward[number], block.terminated[number], block.truncated[number] = reward, terminated, truncated  # type: ignore[assignment]
        if not (terminated or truncated):
            self._observe(index, observation, info)
        elif self.mode is AutoresetMode.SAME_STEP:
            self.infos.append((number, {"final_obs": observation, "final_info": info}))
            self._observe(index, *env.reset())
        else:
            self.ended[index] = self.mode is AutoresetMode.NEXT_STEP
            self._observe(index, observation, info)

    def _begin(self, index: int, seed: int | None, options: Json | None) -> None:
        """Begin an episode; the step that does so has no reward."""
        number, block = self.first + index, self.block
        block.reward[number], block.terminated[number], block.truncated[number] = 0.0, False, False
        self.ended[index] = False
        self._observe(index, *self.envs[index].reset(seed=seed, options=options))

    def _observe(self, index: int, observation: Any, info: Json) -> None:
        write(self.block.observation, self.first + index, observation)
        if info:
            self.infos.append((self.first + index, info))

    def _reset(self, seeds: list[int | None], options: Json | None, mask: list[bool]) -> None:
        for index, wanted in enumerate(mask):
            if wanted:
                self._begin(index, seeds[index], options)

    def close(self) -> None:
        """Close the environments."""
        close_each(self.envs, "an environment")


def called(env: gymnasium.Env, name: str, args: tuple, kwargs: Json) -> Any:
    found = env.get_wrapper_attr(name)
    return found(*args, **kwargs) if callable(found) else found
