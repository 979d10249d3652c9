"""EnvPool's worlds, each at its own pace: they step in EnvPool's threads, and come back as they get ready.

EnvPool's recv() gives batch_size worlds, whichever are ready, and waits for ever where fewer are under way, as at a
rollout's end. So a pool has batch_size - 1 spare worlds that nobody sees: they are reset where too few are under way.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.data.rollout import Rollout, tree_map
from headrace.envs.base import AsyncEnv, State
from headrace.envs.vector.adapter import Outcome, VectorAdapter
from headrace.envs.vector.envpool import EnvPoolSource


class EnvPoolEnv(VectorAdapter, AsyncEnv):
    """An Env (headrace.envs.base) of EnvPool's worlds, which offers what WorkerEnv does: start() and get().

    Worlds step together, until make_async() or a batch_size below num_envs gives each a pace of its own: `parts` are
    the worlds one by one, and get() gives batch_size of them as soon as so many are ready, half of all where it is not
    given. A small one waits for few, a large one lets the policy decide for many at once. step() is for all of them
    either way.
    """

    source: EnvPoolSource

    def __init__(self, source: EnvPoolSource, clip_reward: tuple[float, float] | None = None) -> None:
        super().__init__(source, clip_reward)
        self.batch_size = source.batch_size or max(1, self.num_envs // 2)
        self.apart = source.batch_size not in (None, self.num_envs)
        self.parts = [slice(world, world + 1) for world in range(self.num_envs)]
        self._rollout: Rollout | None = None  # that started worlds write into
        self._row = np.zeros(self.num_envs, dtype=np.int64)  # at which row of it each is
        self._noted: list[int] = []  # worlds whose actions are still to be sent
        self._under_way = np.zeros(self.num_envs + self.batch_size - 1, dtype=bool)  # noted or sent; spares are last
        self._starts_over = torch.zeros(self.num_envs, dtype=torch.bool)  # who is to be reset, whatever its row says
        self._thread = ThreadPoolExecutor(1)  # waits in recv(), where get() may not
        self._receipt: Future | None = None

    def make_async(self) -> None:
        """Give each world a pace of its own from the next reset() on, which has to come before the next step."""
        self.close()
        self.apart = True

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Begin a new episode in every world; write observation[0] and valid[0]. Same seed, same episodes."""
        self._forget()
        if not self.apart:
            super().reset(rollout, seed)
            return
        self._clear()
        self._starts_over[:] = False
        self.source.make(seed, self.batch_size - 1, self.batch_size)
        self._begin(np.arange(self.num_envs))
        while (received := self._received(None)) is not None:
            worlds, outcome = received
            self._put(rollout.observation, (torch.zeros_like(worlds), worlds), outcome.observation)
        rollout.valid[0] = True

    def step(self, rollout: Rollout, t: int) -> None:
        """Step every world from row t to row t + 1; where valid[t] is false, reset it instead."""
        if not self.apart:
            super().step(rollout, t)
            return
        self._finish()
        for world in range(self.num_envs):
            self.start(rollout, t, world)
        self._finish()

    def start(self, rollout: Rollout, t: int, worker: int) -> None:
        """Have one world step from row t, and do not wait for it. The next get() sends it off, with all others started
        until then.

        Raises ValueError for a world that is still at a step, for another rollout than worlds under way write into,
        and where worlds step together.
        """
        if not self.apart:
            raise ValueError("worlds of EnvPool step together: call make_async() and reset(), or give a batch_size")
        if self._under_way[worker]:
            raise ValueError(f"world {worker} is still at a step: get() tells when it is ready")
        if self._rollout is not rollout and self._under_way[: self.num_envs].any():
            raise ValueError("worlds are under way in another rollout: get() them before this one is begun")
        self._rollout = rollout
        self._row[worker] = t
        self._under_way[worker] = True
        self._noted.append(worker)

    def get(self, timeout: float | None = None) -> list[int]:
        """The worlds that have taken their step, as soon as there are batch_size of them, or all that were under way;
        none where none was started.

        None after `timeout` seconds, either: as EnvPool's recv() cannot be interrupted, a thread goes on waiting in it,
        and what it receives is for the next get().
        """
        self._send()
        received = self._received(timeout)
        if received is None:
            return []
        self._arrived(*received)
        return sorted(received[0].tolist())

    def _send(self) -> None:
        """Send off the worlds that were started: those whose row is dead are reset."""
        if not self._noted:
            return
        rollout: Any = self._rollout
        worlds = torch.tensor(self._noted)
        self._noted = []
        rows = torch.from_numpy(self._row)[worlds]
        live = rollout.valid[rows, worlds] & ~self._starts_over[worlds]
        rollout.valid[rows, worlds] = live
        self._starts_over[worlds] = False
        steps = live | self._ended[worlds]  # after an ending EnvPool resets of its own accord
        if not bool(steps.all()):
            self._begin(worlds[~steps].numpy())
            rows, worlds = rows[steps], worlds[steps]
        if len(worlds):
            self.source.pool.send(self.source.actions(rollout.action[rows, worlds]), worlds.numpy().astype(np.int32))

    def _begin(self, worlds: np.ndarray) -> None:
        """Have some worlds begin an episode, which recv() tells like a step."""
        self._under_way[worlds] = True
        self.source.pool._reset(worlds.astype(np.int32))  # as async_reset() does, of some: reset() would recv() as well

    def _received(self, timeout: float | None) -> tuple[Tensor, Outcome] | None:
        """The next worlds that are ready, int64 [k], and what their steps gave, [k, ...]. None where no world is under
        way, or after `timeout` seconds."""
        while self._under_way[: self.num_envs].any():
            handed_over = self._handed_over(timeout)
            if handed_over is None:
                return None
            worlds = torch.from_numpy(handed_over[-1]["env_id"].astype(np.int64))
            self._under_way[worlds.numpy()] = False
            ours = torch.nonzero(worlds < self.num_envs).squeeze(1)
            if len(ours):
                return worlds[ours], self._outcome(handed_over, ours)
        return None

    def _outcome(self, handed_over: Any, ours: Tensor) -> Outcome:
        """What came of those places in a batch of recv()."""
        named = zip(handed_over[:4], ("the observation", "the reward", "terminated", "truncated"), strict=True)
        return Outcome(*(tree_map(lambda x: x[ours], self._tensors(values, what)) for values, what in named))

    def _handed_over(self, timeout: float | None) -> Any:
        """What recv() gives, spare worlds included; None where it is still waiting after `timeout` seconds."""
        if self._receipt is None:
            missing = self.batch_size - np.count_nonzero(self._under_way)
            if missing > 0:
                self._begin(self.num_envs + np.flatnonzero(~self._under_way[self.num_envs :])[:missing])
            if timeout is None:
                return self.source.pool.recv()
            self._receipt = self._thread.submit(self.source.pool.recv)
        if not wait([self._receipt], timeout).done:
            return None
        receipt, self._receipt = self._receipt, None
        return receipt.result()

    def _arrived(self, worlds: Tensor, outcome: Outcome) -> None:
        """Write what came of some worlds' steps, each at its own row."""
        rollout: Any = self._rollout
        rows = torch.from_numpy(self._row)[worlds]
        here, after = (rows, worlds), (rows + 1, worlds)
        live = rollout.valid[here]
        reward = torch.where(live, outcome.reward, 0)
        terminated, truncated = outcome.terminated & live, outcome.truncated & live
        ended = terminated | truncated
        returns, lengths = self._returns[worlds], self._lengths[worlds]
        self._put(rollout.observation, after, outcome.observation)
        self._put(rollout.valid, after, ~ended)
        self._put(rollout.reward, here, reward if self.clip_reward is None else reward.clamp(*self.clip_reward))
        self._put(rollout.terminated, here, terminated)
        self._put(rollout.truncated, here, truncated)
        self._put(rollout.episode_return, here, returns * ~live)
        self._put(rollout.episode_length, here, lengths * ~live)
        self._returns[worlds] = (returns + reward) * live
        self._lengths[worlds] = (lengths + 1) * live
        self._ended[worlds] = ended

    def _put(self, columns: Any, place: tuple[Tensor, Tensor], values: Any) -> None:
        """Write values [k, ...] at k rows and worlds of a column, or of each in a group."""
        tree_map(lambda column, x: column.index_put_(place, x.to(column.dtype)), columns, values)

    def _finish(self) -> None:
        """Wait until no world is at a step."""
        while self.get():
            pass

    def _forget(self) -> None:
        """Wait for what a thread may still receive, and for nothing else; the pool is of no use afterwards."""
        if self._receipt is not None:
            wait([self._receipt])
            self._receipt = None
        self._noted = []
        self._under_way[:] = False

    def load_state_dict(self, state: State) -> None:
        """Begin a new episode everywhere: the next row is dead."""
        self._finish()
        if self.apart:
            self._starts_over[:] = True
        else:
            super().load_state_dict(state)

    def close(self) -> None:
        """Close the worlds, whatever they are at."""
        self._forget()
        super().close()
