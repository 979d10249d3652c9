"""N Gymnasium environments in worker processes as a gymnasium.vector.VectorEnv, in place of AsyncVectorEnv."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.error import ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from headrace.core.cores import partition
from headrace.core.text import shown
from headrace.core.types import Json
from headrace.data.shared_memory import FOLDER, Memory
from headrace.envs.vector_env.batches import nested, write
from headrace.envs.vector_env.vector_stepping import (
    ATTACH,
    CALL,
    RESET,
    SET,
    STEP,
    Infos,
    VectorStepping,
    block_bytes,
    block_in,
)
from headrace.envs.workers.env import release, sendable
from headrace.envs.workers.process import Workers
from headrace.envs.workers.protocol import Message, Task
from headrace.envs.workers.resources import check_processes, check_rollout
from headrace.envs.workers.transport import Transport


class WorkerVectorEnv(VectorEnv):
    """Gives what gymnasium.vector.SyncVectorEnv of the same environments gives, bit for bit: observations, rewards
    (float64), flags and infos. Each worker process steps its environments one after another, and writes into memory
    that it shares with this process.

    factory() makes one environment; Several make each the one of its number. workers: the number of processes, or
    Workers, which are kept when this is closed.
    autoreset_mode: any of Gymnasium's three. copy: whether outputs are copies; otherwise they are the shared memory,
    which the next step() overwrites. step_timeout: seconds after which a worker that has not answered counts as
    hanging. episode_statistics: see make_vec().
    An exception of an environment is raised here, with its traceback; all processes end then.
    Raises TypeError for spaces without a fixed size and for a function that cannot be sent, ValueError for a wrong
    number of workers, RuntimeError for environments that differ in their spaces.
    """

    def __init__(
        self,
        factory: Callable[[], gymnasium.Env],
        num_envs: int,
        name: str,
        workers: int | Workers,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        step_timeout: float = 60.0,
        episode_statistics: bool = False,
    ) -> None:
        if isinstance(workers, int) and not 1 <= workers <= num_envs:
            raise ValueError(f"workers must be between 1 and num_envs = {num_envs}, got {workers}")
        self.name, self.num_envs, self.copy = name, num_envs, copy
        self.autoreset_mode, self._statistics = AutoresetMode(autoreset_mode), episode_statistics
        sent = sendable(factory)
        owner = workers if isinstance(workers, Workers) else Workers(workers)
        check_processes(min(owner.number, num_envs))
        self._transport = Transport(owner.acquire(num_envs), step_timeout)
        self._release = weakref.finalize(self, release, self._transport, owner, owner is workers)
        count = len(self._transport.workers)
        self.parts = partition(num_envs, count)
        try:
            self._transport.assign([self._task(sent, place) for place in range(count)])
            self._describe()
        except BaseException:
            self._release()
            raise

    def _task(self, factory: bytes, place: int) -> Task:
        part = self.parts[place]
        size = part.stop - part.start
        role = partial(VectorStepping, factory, part.start, size, self.num_envs, self.autoreset_mode, self._statistics)
        return Task(role, f"envs {part.start} to {part.stop - 1} of {self.name}", place, len(self.parts))

    def _describe(self) -> None:
        """Take spaces from the workers, and share memory with them."""
        facts = self._transport.facts[0]
        for other in self._transport.facts.values():
            if (other.observation_space, other.action_space) != (facts.observation_space, facts.action_space):
                raise RuntimeError(f"the environments of {self.name} differ in their spaces: give one function for all")
        self.metadata = {**facts.metadata, "autoreset_mode": self.autoreset_mode}
        self.render_mode = facts.render_mode
        self.single_observation_space, self.single_action_space = spaces = facts.observation_space, facts.action_space
        self.observation_space, self.action_space = (batch_space(space, self.num_envs) for space in spaces)
        size = block_bytes(*spaces, self.num_envs)
        check_rollout(size, 1, self.num_envs, FOLDER)
        memory = Memory(size)
        for worker in self._transport.workers:
            worker.tell(ATTACH, 0, (*spaces, size), memory.descriptor)
        self._block = block_in(*spaces, self.num_envs, memory)
        self._memory = memory

    def reset(self, *, seed: int | Sequence[int | None] | None = None, options: Json | None = None) -> tuple[Any, Json]:
        """Begin new episodes. seed: of environment 0, the next ones have seed + 1 ...; or one for each environment.
        options: given to each environment, except `reset_mask`, bool [N], the environments to reset. Raises ValueError
        for a wrong number of seeds, or a wrong mask."""
        given = dict(options or {})
        mask = np.asarray(given.pop("reset_mask", np.ones(self.num_envs, bool)))
        if mask.dtype != np.bool_ or mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(f"reset_mask must be bool [{self.num_envs}] with a True in it, got {shown(mask, 60)}")
        if seed is None or isinstance(seed, int | np.integer):
            seeds = [None if seed is None else int(seed) + index for index in range(self.num_envs)]
        else:
            seeds = list(seed)  # type: ignore[arg-type]
        if len(seeds) != self.num_envs:
            raise ValueError(f"give one seed, or one for each of {self.num_envs} environments, got {len(seeds)}")
        passed = None if options is None else given
        messages = [(seeds[part], passed, mask[part].tolist()) for part in self.parts]
        infos = self._infos(self._ask(RESET, messages))
        return self._observation(), infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Json]:
        """A step of all environments. Raises ValueError for actions of another shape, and environments' exceptions."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Start a step, and do not wait for it. Raises RuntimeError where step_wait() has to come first."""
        self._check_idle()
        try:
            write(self._block.action, slice(None), actions)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ValueError(f"the actions {shown(actions, 80)} are not of {self.action_space}: {error}") from error
        for place in range(len(self.parts)):
            self._transport.start(place, STEP, 0)

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, Json]:
        """The outcome of the step that step_async() started. Raises NoAsyncCallError where that was not called."""
        if not self._transport.orders:
            raise NoAsyncCallError("no step has been started: call step_async() first", "step")
        infos = self._infos(self._wait())
        block = self._block
        reward, terminated, truncated = (
            x.copy() if self.copy else x for x in (block.reward, block.terminated, block.truncated)
        )
        return self._observation(), reward, terminated, truncated, infos

    def _observation(self) -> Any:
        return nested(self.single_observation_space, self._block.observation, self.copy)

    def _infos(self, answers: list[Any]) -> Json:
        """The infos of all workers in Gymnasium's form."""
        infos: Json = {}
        for answer in answers:
            found: Infos = answer or []
            for number, info in found:
                infos = self._add_info(infos, info, number)
        return infos

    def _ask(self, what: int, messages: Sequence[Message]) -> list[Any]:
        """Give each worker an order and wait for the answers."""
        self._check_idle()
        for place, message in enumerate(messages):
            self._transport.start(place, what, 0, message)
        return self._wait()

    def _check_idle(self) -> None:
        """Raise RuntimeError in the middle of a step, ClosedEnvironmentError after close()."""
        if self.closed:
            raise ClosedEnvironmentError(f"the environments of {self.name} are closed: make others")
        if self._transport.orders:
            raise RuntimeError("the environments are at a step: call step_wait() first")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """A copy of the generator of each environment."""
        return self.get_attr("np_random")

    @property
    def np_random_seed(self) -> tuple[int | None, ...]:  # type: ignore[override]
        """The seed of each environment's generator."""
        return self.get_attr("np_random_seed")

    def _wait(self) -> list[Any]:
        transport = self._transport
        try:
            while transport.orders:
                _, lost = transport.get()
                if lost:
                    raise transport.failure(min(lost))
        except BaseException:
            self.close()  # the others may be in the middle of a step
            raise
        return list(transport.answers)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of each environment, or read an attribute, and return the results."""
        answers = self._ask(CALL, [(name, args, kwargs, None)] * len(self.parts))
        return tuple(value for part in answers for value in part)

    def call_some(self, indices: Sequence[int], name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Same as call(), for these environments alone, in their order."""
        each = [[index for index in indices if part.start <= index < part.stop] for part in self.parts]
        answers = self._ask(CALL, [(name, args, kwargs, chosen) for chosen in each])
        return [answers[place].pop(0) for index in indices for place, chosen in enumerate(each) if index in chosen]

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of each environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Sequence[Any] | Any) -> None:
        """Set an attribute: a list or tuple has one value for each environment, anything else is for all."""
        each = list(values) if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ValueError(f"give one value of {name}, or a list of {self.num_envs}, got {len(each)}")
        self._ask(SET, [(name, each[part]) for part in self.parts])

    def render(self) -> tuple[Any, ...]:
        """Render each environment."""
        return self.call("render")

    def close_extras(self, **kwargs: Any) -> None:
        self._release()
