"""The role of a worker that steps some of the environments, on their part of the shared rollouts."""

from __future__ import annotations

import pickle
import traceback
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.core.types import Settings

if TYPE_CHECKING:
    from gymnasium.spaces import Space

    from headrace.data.rollout import Columns, Rollout
    from headrace.envs.gym.agent_groups import AgentGroups
    from headrace.envs.gym.learned import Learned

BIND, UNBIND, RESET, STEP, CUT_OFF, RESET_ALL, TAKE_OVER, PARAMS, APPLY = range(9)
ROWS = 2**32  # a rollout's number is stored in the bits above its row


class EnvFacts(NamedTuple):
    """Report of a worker whose environments are made."""

    observation_space: Space
    action_space: Space
    max_steps: int | None
    agent_groups: AgentGroups | None  # of several agents
    learned: tuple[Learned, ...]  # wrappers that learn


class Raised(NamedTuple):
    """An exception of a function of apply()."""

    error: Exception


class Stepping:
    """A Role (envs.workers.protocol): environments and the rollouts they write into. The answer to a step or reset is
    the number of environments that have been made again so far.

    factory: a function that makes an environment, pickled by cloudpickle. size: number of environments. part: see
    envs.gym.pettingzoo.inline().
    """

    def __init__(self, factory: bytes, size: int, name: str, part: Settings, orders: Connection) -> None:
        from headrace.envs.gym.pettingzoo import inline

        self.orders = orders
        self.env = env = inline(pickle.loads(factory), size, name, **part)
        self.rollouts: dict[int, Rollout] = {}
        self.facts = EnvFacts(
            env.observation_space, env.action_space, env.max_steps, env.agent_groups, tuple(env.learned)
        )

    def carry_out(self, what: int, where: int) -> Any:
        """Carry out one of the orders above, for a rollout's row."""
        number, t = divmod(where, ROWS)
        if what == STEP:
            self.env.step(self.rollouts[number], t)
        elif what == RESET:
            seed, episodes = self.orders.recv()
            if episodes is None:
                self.env.reset(self.rollouts[number], seed)
            else:
                self.env.begin(self.rollouts[number], seed, episodes)
        elif what == CUT_OFF:
            self.env.step(self.rollouts[number], t, lost=True)
        elif what == PARAMS:
            self.env.set_params(**self.orders.recv()[0])
        elif what == APPLY:
            return self._applied(*self.orders.recv())
        else:
            if what == BIND:
                self._bind(where, *self.orders.recv())
            elif what == UNBIND:
                del self.rollouts[where]
            elif what == TAKE_OVER:
                *lost, params = self.orders.recv()
                self.env.take_over(*lost)
                self.env.set_params(**params)
            else:
                self.env.load_state_dict({})  # RESET_ALL
            return None
        return self.env.restarts

    def _applied(self, function: bytes, numbers: list[int]) -> bytes:
        """Call a function with some of the environments, and return its results, pickled; or its exception, in a
        Raised. The environments do not change."""
        try:
            found: Any = self.env.apply(pickle.loads(function), [number - self.env.first_env for number in numbers])
            return pickle.dumps(found)
        except Exception as error:
            try:
                pickle.loads(pickled := pickle.dumps(Raised(error)))
            except Exception:  # some exceptions cannot be pickled or unpickled
                return pickle.dumps(Raised(RuntimeError("".join(traceback.format_exception(error)))))
            return pickled

    def _bind(self, number: int, num_steps: int, num_envs: int, columns: Columns, size: int) -> None:
        """Write into this rollout from now on. Its memory follows the message."""
        from headrace.data.shared_memory import Memory, SharedRollout

        memory = Memory(size, recv_handle(self.orders))
        rollout = SharedRollout(num_steps, num_envs, columns, memory)
        memory.close()
        self.rollouts[number] = self.env.part(rollout)

    def close(self) -> None:
        """Close the environments."""
        self.env.close()
