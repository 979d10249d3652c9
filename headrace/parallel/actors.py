"""Actors: processes that collect with copies of the policy, while the learner learns or in turns with it.

An actor is a function: (its state, the weights of a version) -> (a fragment, its state after it). A fragment is T steps
of the actor's environments, collected by one order. The modes of collection differ only in which fragments make up the
next rollout, and which version an order names: parallel.schedule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from headrace.algorithms.on_policy import PROCESSED
from headrace.core.cores import cores
from headrace.core.device import queue_end
from headrace.core.precision import of_copy
from headrace.core.stopping import Stopped
from headrace.core.terminal import tell
from headrace.core.timer import Timer
from headrace.core.types import StateDict, staying
from headrace.data.rollout import Column, Columns, Rollout
from headrace.parallel.actor import CollectorSpec, Part, constructor
from headrace.parallel.actor_env import ActorEnv, Executor, Job, divided
from headrace.parallel.forecast import Forecast
from headrace.parallel.fragments import SLOTS as FRAGMENTS
from headrace.parallel.fragments import of_copies, packed, unpacked
from headrace.parallel.local_executor import LocalExecutor
from headrace.parallel.repartition import for_parts
from headrace.parallel.schedule import Fragment, ReplayOrder, Schedule, check_equal, records
from headrace.parallel.transfer import RolloutTransfer
from headrace.parallel.weights import Layout, changing, sent
from headrace.policies.base import Policy

RECENT = 8  # updates over which the actors' speed is averaged
ASKED = 0.1  # s between two checks whether to stop
SHORT = 1e-3  # s between two checks whether a GPU has finished learning


class Actors:
    """A Collector (parallel.collector) that makes rollouts of the fragments of an ActorEnv's actors.

    collection: "sync": all collect with the newest policy, and learning waits for them: lag 0, the same bits as with
    InlineCollector. "overlapped": a rollout is collected while the policy learns from the one before: lag 1. "async": a
    rollout is made of the oldest finished fragments, as many as there are actors. Learning waits for a slow actor only
    when its fragment would otherwise be more than max_policy_lag updates old.
    If the environments can be saved, neither the number of actors nor the loss of a process changes the result of sync
    and overlapped.
    process: an on-policy algorithm whose process() the actors call, instead of the learner; None for none.
    slots: see Schedule.
    """

    __setattr__ = staying("policy", "rollout")
    any_number = True  # another number of actors may continue from a state, if not async
    learning_cores = 1  # cores that the learner needs while actors collect
    dropped_steps = 0
    made_of = b""
    stop: Callable[[], bool] | None = None
    atomic = True
    executor: Executor  # from warm_up() on
    _learner: Any = None  # a LearnerSpec, if actors send gradients

    def __init__(
        self,
        env: ActorEnv,
        policy: Policy,
        num_steps: int,
        columns: dict[str, Column | Columns],
        seed: int,
        timer: Timer | None = None,
        *,
        collection: str = "sync",
        max_policy_lag: int = 2,
        stagger: bool = False,
        replay: ReplayOrder | None = None,
        precision: str = "float32",
        process: Any = None,
        slots: int = FRAGMENTS,
    ) -> None:
        self.env, self.policy, self.seed = env, policy, seed
        self.collection, self.precision = collection, precision
        max_lag, parts = {"sync": 0, "overlapped": 1}.get(collection, max_policy_lag), self._parts()
        self.schedule = Schedule(len(env.parts), collection != "async", max_lag, replay, len(parts), slots)
        self.stagger, self.timer = stagger, timer or Timer()
        self._own_columns = columns if process is None else columns | PROCESSED
        self._algorithm = None if process is None else constructor(process)
        of_rollout, copies = parts[0].total, env.num_copies
        shape = (num_steps, of_rollout * env.num_agents, self._exchanged())
        self._transfer = None if env.device.type == "cpu" else RolloutTransfer(*shape, torch.device("cpu"), env.device)
        if self._transfer is None:
            self.rollout = gathered = Rollout(*shape)
        else:
            self.rollout, gathered = self._transfer.target, self._transfer.source
        self._gathered: list[Fragment] = []  # fragments of the next rollout that are copied already
        num_envs = self.rollout.num_envs
        if max_lag:
            self._lag, self.rollout.lag = torch.zeros(num_envs), torch.zeros(num_envs, device=env.device)
        if not self.schedule.in_step:
            check_equal(copies, len(env.parts))
            self._env, self.rollout.env = torch.arange(num_envs), torch.arange(num_envs, device=env.device)
        self._close: Callable[[], None] = lambda: None  # closes the executor
        self._targets = [of_copies(gathered, of_rollout, part.slice) for part in parts]
        self._slowest: deque[float] = deque(maxlen=RECENT)  # s of the slowest fragments of the last rollouts
        self._columns_at = [_columns(env.num_agents, of_rollout, part.slice) for part in parts]  # of the rollout
        self._columns_of = [_columns(env.num_agents, copies, part.slice) for part in env.parts]  # of all environments

    def _parts(self) -> list[Part]:
        """The environment copies of each fragment of a rollout."""
        return self.env.parts

    def _exchanged(self) -> dict[str, Column | Columns]:
        """Columns that actors send."""
        return self.env.columns() | self._own_columns

    @property
    def steps(self) -> int:
        """Number of steps so far of each environment, counted by rollouts."""
        return self.schedule.rounds * self.rollout.num_steps

    def warm_up(self) -> None:
        """Send the policy to all actors, which compile what they need."""
        max_lag, steps = self.schedule.max_lag, self.rollout.num_steps
        busy = min(max_lag, self.learning_cores)
        layout = Layout.of(changing(self.policy))
        spec = CollectorSpec(
            *(sent(self.policy, "actors"), steps, self._own_columns, self.seed, layout, self.stagger),
            threads=max(1, (cores() - busy) // len(self.env.parts)),
            algorithm=self._algorithm,
            precision=of_copy(self.precision, self.env.collect_device),
            device=self.env.collect_device,
        )
        slots = max(FRAGMENTS, self.schedule.slots)
        job = Job(self.policy, spec, self.rollout.columns, max_lag + 2, self._learner, slots)
        self.executor = (self.env.executor or LocalExecutor)(self.env, job)
        self._close = self.executor.close
        self.executor.publish(self.schedule.version)
        self.executor.begin()

    def collect(self) -> Rollout:
        """Return the next T steps. The rollout is the collector's own; the next call overwrites it.

        Raises Stopped; the exceptions of environments; WorkerError where an actor is lost and cannot be replaced."""
        if self.schedule.ended():
            rounds = f"{self.schedule.rounds:,} updates, which is all that it has"
            tell(f"replay_order was followed for {rounds}: from here on experience is taken as it comes, as without it")
        with self.timer("waiting for fragments"):
            self.wait(0.0)  # takes what was finished meanwhile
            self.order()
            while not (taken := self._gathered or self._complete()):
                self.wait()
                self.order()
        with self.timer("gathering"):
            if not self._gathered:
                self._copy(taken)
            self._gather(taken)
        self.executor.release(taken)
        self.schedule.take(taken)
        self._gathered = []
        self.order(learning=True)
        return self.rollout

    def publish(self) -> None:
        """Publish the policy's present weights as the next version."""
        self.schedule.version += 1
        if self._transfer is not None and self.schedule.max_lag:
            self._copy_meanwhile()
        with self.timer("publishing"):
            self.executor.publish(self.schedule.version)

    def _copy_meanwhile(self) -> None:
        """Copy the fragments of the next rollout while a GPU still learns, if they are complete in time. The weights
        can only be read once it has finished."""
        learned = queue_end(self.env.device)
        with self.timer("learning"):
            self._answers(0.0)
            while not (taken := self._complete()) and not learned():
                self._answers(SHORT)
        if taken:
            with self.timer("gathering"):
                self._copy(taken)
            self._gathered = taken

    def order(self, learning: bool = False) -> None:
        """Give orders to all actors that may collect."""
        self.executor.order(self.schedule.orders(learning))

    def _complete(self) -> list[Fragment]:
        """The fragments of the next rollout; empty if it has to wait for more."""
        return self.schedule.complete()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until an actor has answered or was replaced, at most `timeout` seconds. Raises Stopped."""
        if self.stop is not None and self.stop():
            raise Stopped
        self._answers(ASKED if timeout is None and self.stop is not None else timeout)

    def _answers(self, timeout: float | None) -> None:
        """Wait as wait() does, without checking whether to stop."""
        for place in self.executor.wait(timeout):
            self.schedule.answer(place)

    def _copy(self, taken: list[Fragment]) -> None:
        """Copy fragments into the rollout, or into the buffer that is sent to the learner's device."""
        if self._transfer is not None:
            self._transfer.wait_to_write()
        for targets, fragment in zip(self._targets, taken, strict=True):
            torch._foreach_copy_(targets, self.executor.tensors(fragment))
        if self._transfer is not None:
            self._transfer.start()

    def _gather(self, taken: list[Fragment]) -> None:
        """Complete the rollout whose fragments are copied: lags, environments and timing."""
        lag, env = self.rollout.lag, self.rollout.env
        for at, fragment in enumerate(taken):
            if lag is not None:
                self._lag[self._columns_at[at]] = float(self.schedule.lag(fragment))
            if env is not None:
                self._env[self._columns_at[at]] = self._columns_of[fragment.place]
        spent = [self.executor.spent(fragment.place) for fragment in taken]
        self._slowest.append(max(seconds for seconds, _, _ in spent))
        waited = sum(seconds for _, _, seconds in spent) / len(self.env.parts)
        self.timer.add_elsewhere("waiting for slots", waited)
        if lag is not None:
            lag.copy_(self._lag)
        if env is not None:
            env.copy_(self._env)
            self.made_of = records(taken)
        if self._transfer is not None:
            self._transfer.finish()

    def state_dict(self) -> StateDict:
        """The actors' states after the fragments learned from, and the versions of the fragments to collect next."""
        schedule = self.schedule
        states = [
            unpacked(self.executor.state(place, number - 1)) if number else None
            for place, number in enumerate(schedule.taken)
        ]
        actors = [{"taken": number, "state": state} for number, state in zip(schedule.taken, states, strict=True)]
        waiting = schedule.waiting()
        earlier = {x.version for x in waiting} - {schedule.version}
        return {
            "env": all(state is None or bool(state["env"]) for state in states),
            "version": schedule.version,
            "rounds": schedule.rounds,
            "actors": actors,
            "waiting": {f"{x.place}.{x.number}": x.version for x in waiting},
            "weights": {str(version): self.executor.weights(version) for version in earlier},
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict(). Synchronous and overlapped collection also continue from that of another number
        of actors. If "env" is None, the state is of other environments: only its "steps" count, and episodes are new.
        Raises ValueError for a number of actors that cannot continue, or a greater lag."""
        if state["env"] is None:
            state = self._begun_after(state["steps"])
        if (saved_actors := len(state["actors"])) != len(self.env.parts):
            if not (self.any_number and self.schedule.in_step):
                raise ValueError(f"saved were {saved_actors} actors, and these are {len(self.env.parts)}")
            state = for_parts(state, divided(self.env.num_copies, saved_actors), self.env.parts)
        numbers = ((version, *map(int, name.split("."))) for name, version in state["waiting"].items())
        waiting = [Fragment(version, number, place) for version, place, number in numbers]
        taken = [saved["taken"] for saved in state["actors"]]
        self._gathered = []
        self.schedule.resume(state["version"], state["rounds"], taken, waiting)
        self.executor.publish(state["version"])
        for version, weights in state["weights"].items():
            self.executor.set_weights(int(version), weights)
        for place, saved in enumerate(state["actors"]):
            before = None if saved["state"] is None else packed(saved["state"])
            self.executor.restore(place, saved["taken"], before)

    def _begun_after(self, steps: int) -> StateDict:
        """The state of actors that begin new episodes after `steps` steps of each environment."""
        rounds = -(-steps // self.rollout.num_steps)
        state = {"steps": steps, "env": None} if rounds else None
        actors = [{"taken": rounds, "state": state}] * len(self.env.parts)
        return {"version": rounds, "rounds": rounds, "actors": actors, "waiting": {}, "weights": {}}

    def spent(self) -> Tensor:
        """Timing of each actor's last fragment, float64 [actors, 3]: wall time, CPU time, and the mean time of the
        slowest fragment of the last rollouts, in s."""
        spent = [self.executor.spent(place)[:2] for place in range(len(self.env.parts))]
        return torch.tensor([(*each, fmean(self._slowest)) for each in spent], dtype=torch.float64)

    def forecast(self, learn: float, update: float, spent: Tensor | None = None) -> Forecast:
        """Estimate the time of an update from the last fragments of each actor.

        learn: s of learning from a rollout. update: s from one update to the next. spent: spent() of the actors of all
        learners; None for one learner. Rows are counted in this learner's rollouts.
        """
        seconds, core, slowest = (self.spent() if spent is None else spent).unbind(1)
        collect = seconds.clamp(min=1e-9)
        rows = self.rollout.num_steps * self.rollout.num_envs
        return Forecast(
            self.collection,
            rows,
            tuple(collect.tolist()),
            float(slowest.max()),
            float(core.sum() / collect.sum()),
            learn,
            update,
            self.executor.advice(float(collect.mean())),
        )

    def details(self) -> dict[str, float]:
        """Numbers about the actors to log."""
        return self.executor.details()

    def metrics(self) -> dict[str, float]:
        """See Collector."""
        return self.env.metrics()

    def close(self) -> None:
        """Let actors give up what they are collecting."""
        self._close()


def _columns(agents: int, copies: int, part: slice) -> Tensor:
    """Column numbers [agents, n] of some environment copies, of `copies` in all."""
    return torch.arange(agents * copies).unflatten(0, (-1, copies))[:, part]
