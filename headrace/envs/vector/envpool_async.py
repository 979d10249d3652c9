"""EnvPool's environments in asynchronous mode: they step in EnvPool's threads, and are returned when they are ready.

EnvPool's recv() returns any batch_size environments that are ready. It waits for ever if fewer are being stepped, as at
a rollout's end. So a pool has batch_size - 1 spare environments, which are reset if too few are being stepped.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import torch
from torch import Tensor

from headrace.core.types import StateDict
from headrace.data.rollout import Rollout, Value, tree_map
from headrace.data.spaces import Sample
from headrace.envs.base import AsyncEnv
from headrace.envs.vector.adapter import Outcome, VectorAdapter
from headrace.envs.vector.envpool import EnvPoolSource


class EnvPoolEnv(VectorAdapter, AsyncEnv):
    """An AsyncEnv (headrace.envs.base) of EnvPool's environments.

    Environments step together until make_async() is called, unless batch_size is below num_envs. Afterwards `parts` are
    the single environments, and get() returns batch_size of them as soon as they are ready (by default half of all). A
    small batch_size waits for few environments, a large one gives the policy larger batches. step() steps all of them.
    """

    source: EnvPoolSource

    def __init__(
        self, source: EnvPoolSource, clip_reward: tuple[float, float] | None = None, ignore: Sequence[str] = ()
    ) -> None:
        super().__init__(source, clip_reward, ignore)
        self.batch_size = source.batch_size or max(1, self.num_envs // 2)
        self.is_async = source.batch_size not in (None, self.num_envs)
        self.parts = [slice(env, env + 1) for env in range(self.num_envs)]
        self._rollout: Rollout | None = None  # that environments write into
        self._row = np.zeros(self.num_envs, dtype=np.int64)  # of each environment
        self._started: list[int] = []  # environments that were started, whose actions are not sent yet
        self._stepping = np.zeros(self.num_envs + self.batch_size - 1, dtype=bool)  # started or sent; spares are last
        self._to_reset = torch.zeros(self.num_envs, dtype=torch.bool)  # to be reset, whatever their row is
        self._thread = ThreadPoolExecutor(1)  # waits in recv() for a get() with a timeout
        self._pending: Future | None = None

    def make_async(self) -> None:
        """Step each environment on its own from the next reset() on, which must come before the next step."""
        self.close()
        self.is_async = True

    def _begin_all(self, rollout: Rollout, seed: int, first: int) -> None:
        self._forget()
        if not self.is_async:
            super()._begin_all(rollout, seed, first)
            return
        self._clear()
        self._to_reset[:] = False
        self.source.make(seed, self.batch_size - 1, self.batch_size, first)
        self._begin(np.arange(self.num_envs))
        while (received := self._received(None)) is not None:
            envs, outcome = received
            self._put(rollout.observation, (torch.zeros_like(envs), envs), outcome.observation)
        rollout.valid[0] = True

    def step(self, rollout: Rollout, t: int) -> None:
        """Step every environment from row t to row t + 1; where valid[t] is false, reset it instead."""
        if not self.is_async:
            super().step(rollout, t)
            return
        self._finish()
        for env in range(self.num_envs):
            self.start(rollout, t, env)
        self._finish()

    def start(self, rollout: Rollout, t: int, part: int) -> None:
        """Start the step of one environment from row t, and do not wait for it. The next get() sends the actions of all
        that were started.

        Raises ValueError for an environment that is still at a step, for another rollout than that of environments
        being stepped, and where environments step together.
        """
        if not self.is_async:
            raise ValueError(
                "EnvPool's environments step together: call make_async() and reset(), or give a batch_size"
            )
        if self._stepping[part]:
            raise ValueError(f"environment {part} is still at a step: get() tells when it is ready")
        if self._rollout is not rollout and self._stepping[: self.num_envs].any():
            raise ValueError("environments are being stepped in another rollout: get() them before this one is begun")
        self._rollout = rollout
        self._row[part] = t
        self._stepping[part] = True
        self._started.append(part)

    def get(self, timeout: float | None = None) -> list[int]:
        """The environments that have finished their step, as soon as there are batch_size of them, or all that were
        started; none where none was started.

        None after `timeout` seconds, either: as EnvPool's recv() cannot be interrupted, a thread keeps waiting in it,
        and the next get() takes its result.
        """
        self._send()
        received = self._received(timeout)
        if received is None:
            return []
        self._write(*received)
        return sorted(received[0].tolist())

    def _send(self) -> None:
        """Send the actions of environments that were started; reset those whose row is masked."""
        if not self._started:
            return
        rollout = self._rollout
        assert rollout is not None
        envs = torch.tensor(self._started)
        self._started = []
        rows = torch.from_numpy(self._row)[envs]
        valid = rollout.valid[rows, envs] & ~self._to_reset[envs]
        rollout.valid[rows, envs] = valid
        self._to_reset[envs] = False
        steps = valid | self._ended[envs]  # after an ending EnvPool resets by itself
        if not bool(steps.all()):
            self._begin(envs[~steps].numpy())
            rows, envs = rows[steps], envs[steps]
        if len(envs):
            self.source.pool.send(self.source.actions(rollout.action[rows, envs]), envs.numpy().astype(np.int32))

    def _begin(self, envs: np.ndarray) -> None:
        """Reset some environments; recv() returns them like a step."""
        self._stepping[envs] = True
        self.source.pool._reset(envs.astype(np.int32))  # as async_reset(), of some: reset() would call recv() as well

    def _received(self, timeout: float | None) -> tuple[Tensor, Outcome] | None:
        """The next environments that are ready, int64 [k], and their outcomes, [k, ...]. None where none is being
        stepped, or after `timeout` seconds."""
        while self._stepping[: self.num_envs].any():
            batch = self._receive(timeout)
            if batch is None:
                return None
            envs = torch.from_numpy(batch[-1]["env_id"].astype(np.int64))
            self._stepping[envs.numpy()] = False
            ours = torch.nonzero(envs < self.num_envs).squeeze(1)
            if len(ours):
                return envs[ours], self._outcome(batch, ours)
        return None

    def _outcome(self, batch: tuple[Sample, ...], ours: Tensor) -> Outcome:
        """The outcomes at some places of a batch of recv()."""
        named = zip(batch[:4], ("the observation", "the reward", "terminated", "truncated"), strict=True)
        size, places = len(batch[-1]["env_id"]), ours.numpy()
        infos = {name: x[places] for name, x in batch[-1].items() if np.shape(x)[:1] == (size,)}
        outcome: list[Sample] = [tree_map(lambda x: x[ours], self._tensors(values, what)) for values, what in named]
        return Outcome(*outcome)._replace(infos=infos)

    def _receive(self, timeout: float | None) -> tuple[Sample, ...] | None:
        """The result of recv(), with spare environments; None where it is still waiting after `timeout` seconds."""
        if self._pending is None:
            missing = self.batch_size - np.count_nonzero(self._stepping)
            if missing > 0:
                self._begin(self.num_envs + np.flatnonzero(~self._stepping[self.num_envs :])[:missing])
            if timeout is None:
                return self.source.pool.recv()
            self._pending = self._thread.submit(self.source.pool.recv)
        if not wait([self._pending], timeout).done:
            return None
        pending, self._pending = self._pending, None
        return pending.result()

    def _write(self, envs: Tensor, outcome: Outcome) -> None:
        """Write the outcomes of some environments' steps, each at its own row."""
        rollout = self._rollout
        assert rollout is not None
        rows = torch.from_numpy(self._row)[envs]
        here, after = (rows, envs), (rows + 1, envs)
        valid = rollout.valid[here]
        reward = torch.where(valid, outcome.reward, 0)
        terminated, truncated = outcome.terminated & valid, outcome.truncated & valid
        ended = terminated | truncated
        if "info" in rollout.columns:
            self._infos.put(rollout, here, envs)
            self._infos.keep(outcome.infos, ended, envs)
        returns, lengths = self._returns[envs], self._lengths[envs]
        self._put(rollout.observation, after, outcome.observation)
        self._put(rollout.valid, after, ~ended)
        self._put(rollout.reward, here, reward if self.clip_reward is None else reward.clamp(*self.clip_reward))
        self._put(rollout.terminated, here, terminated)
        self._put(rollout.truncated, here, truncated)
        self._put(rollout.episode_return, here, torch.where(valid, 0, returns))
        self._put(rollout.episode_length, here, lengths * ~valid)
        self._returns[envs] = torch.where(valid, returns + reward, 0)
        self._lengths[envs] = (lengths + 1) * valid
        self._ended[envs] = ended

    def _put(self, columns: Value, place: tuple[Tensor, Tensor], values: Value) -> None:
        """Write values [k, ...] at k rows and environments of a column, or of each in a group."""
        tree_map(lambda column, x: column.index_put_(place, x.to(column.dtype)), columns, values)

    def _finish(self) -> None:
        """Wait until no environment is at a step."""
        while self.get():
            pass

    def _forget(self) -> None:
        """Wait for a thread that may still be in recv(). The pool cannot be used afterwards."""
        if self._pending is not None:
            wait([self._pending])
            self._pending = None
        self._started = []
        self._stepping[:] = False

    def load_state_dict(self, state: StateDict) -> None:
        """Begin a new episode everywhere: the next row is masked."""
        self._finish()
        if self.is_async:
            self._to_reset[:] = True
        else:
            super().load_state_dict(state)

    def close(self) -> None:
        """Close the environments, even in the middle of a step."""
        self._forget()
        super().close()
