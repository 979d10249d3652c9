"""Actors for a training loop of your own: start them, take the first finished fragments, publish new weights."""

from __future__ import annotations

from math import inf
from time import monotonic
from typing import Any, NamedTuple

from headrace.agent_groups.group_policy import check_spaces
from headrace.data.rollout import Column, Columns, Rollout
from headrace.envs.parts import part_maker
from headrace.envs.registry import Source
from headrace.envs.workers.process import Workers
from headrace.parallel.actor_env import ActorEnv
from headrace.parallel.actors import Actors as ActorCollector
from headrace.parallel.schedule import Fragment as Order
from headrace.policies.base import Policy, check_policy

COLUMNS: dict[str, Column | Columns] = {"log_prob": Column(), "value": Column(bootstrap=True)}
VERSIONS = 8  # number of versions of the weights kept: publish() waits for an actor that collects with an older one


class Fragment(NamedTuple):
    """T steps of one actor's environments."""

    rollout: Rollout  # [T, n], in shared memory, valid until the next get()
    envs: slice  # its environments among all
    lag: int  # number of publish() calls since the weights that it was collected with


class Actors:
    """Processes that collect with copies of a policy.

        with hr.Actors("CartPole-v1", policy, num_envs=32, num_steps=64, actors=4) as actors:
            while True:
                actors.start()                   # whoever is idle collects with the newest weights
                for fragment in actors.get(2):   # the first two that are done
                    learn(fragment.rollout)
                actors.publish()

    env: what make() takes: a name, a class, a function. policy: a Policy, which you change in place. actors: how many
    processes; or Workers, which are kept. columns: what the policy fills besides the action; {} for a QNetwork.
    options: backend, on_error, group_by, frame_stack, time_limit, reward_scale as make() has them, and step_timeout.
    Raises TypeError, ValueError for what does not fit. Exceptions of environments come out of get(), with their
    traceback.
    """

    def __init__(
        self,
        env: Source,
        policy: Policy,
        *,
        num_envs: int,
        num_steps: int,
        actors: int | Workers,
        seed: int = 0,
        columns: dict[str, Column | Columns] | None = None,
        step_timeout: float = 60.0,
        **options: Any,
    ) -> None:
        check_policy(policy, "Actors")
        make_part = part_maker(env, **options)
        again = {"on_error": options.get("on_error", "raise"), "step_timeout": step_timeout}
        self.env = ActorEnv(make_part, num_envs, actors, **again)
        declared = (COLUMNS if columns is None else columns) | policy.columns()
        try:
            check_spaces(policy, self.env.spaces, self.env.name)
            self._collector = ActorCollector(
                self.env, policy, num_steps, declared, seed, collection="async", max_policy_lag=VERSIONS - 2
            )
            self._collector.warm_up()
        except BaseException:
            self.env.close()
            raise
        self._given: list[Order] = []

    @property
    def version(self) -> int:
        """Number of publish() calls."""
        return self._collector.schedule.version

    def start(self) -> None:
        """Let every idle actor collect with the newest weights. Does not wait. An actor may be one fragment ahead."""
        self._collector.order()

    def ready(self) -> int:
        """Number of fragments that get() would return at once. Does not wait."""
        self._collector.wait(0.0)
        return len(self._collector.schedule.held) - len(self._given)

    def get(self, count: int = 1, timeout: float | None = None) -> list[Fragment]:
        """Return the first `count` finished fragments, the oldest first; fewer after `timeout` seconds, or if no more
        are being collected. Their memory is reused after the next get()."""
        schedule = self._collector.schedule
        schedule.take(self._given)
        until = inf if timeout is None else monotonic() + timeout
        while len(schedule.held) < count and schedule.open and (left := until - monotonic()) > 0:
            self._collector.wait(None if left == inf else left)
        self._given = sorted(schedule.held)[:count]
        return [self._fragment(order) for order in self._given]

    def _fragment(self, order: Order) -> Fragment:
        rollout = self._collector.executor.rollout(order)
        return Fragment(rollout, self.env.parts[order.place].slice, self._collector.schedule.lag(order))

    def publish(self) -> None:
        """Use the policy's present weights from the next start() on. Waits while an actor still collects with weights
        whose memory is needed."""
        open_orders = self._collector.schedule.open
        while any(order.version <= self.version + 1 - VERSIONS for order in open_orders.values()):
            self._collector.wait()
        self._collector.publish()

    def __enter__(self) -> Actors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes, or return Workers to their owner."""
        self._collector.close()
        self.env.close()
