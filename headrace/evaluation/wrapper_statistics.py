"""Statistics that wrappers of the environments learn in a training, for evaluations and checkpoints of its policy."""

from __future__ import annotations

from functools import partial

from headrace.core.types import StateDict
from headrace.envs.base import Env
from headrace.envs.gym.learned import give, pooled, statistics_of, tell_learned
from headrace.policies.base import Policy

KEY = "wrappers"  # in a training's state
BACKENDS = ("inline", "workers")  # backends whose environments can be asked


class WrapperStatistics:
    """Keeps a policy's wrapper_statistics equal to those of the environments, if their backend can report them.

    waits: whether no environment is in a step between two rollouts."""

    def __init__(self, env: Env, waits: bool) -> None:
        self.env = env
        self.known = any(one.known for one in env.learned) and waits and env.backend in BACKENDS
        tell_learned(env.name, env.learned, self.known)

    def follow(self, policy: Policy) -> None:
        """Copy the present statistics of the environments' wrappers to a policy."""
        if self.known:
            policy.wrapper_statistics = pooled(self.env.apply(statistics_of))

    def state_dict(self) -> StateDict:
        """The statistics of each environment."""
        return {KEY: self.env.apply(statistics_of)} if self.known else {}

    def load_state_dict(self, state: StateDict, policy: Policy) -> None:
        """Continue from state_dict(), which is part of a training's state."""
        if self.known and state.get(KEY):
            for number, statistics in enumerate(state[KEY]):
                self.env.apply(partial(give, statistics=statistics), [number])
            self.follow(policy)
