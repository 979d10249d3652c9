"""Environments that several functions make in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gymnasium

Factory = Callable[..., "gymnasium.Env"]


class Several:
    """Functions that make environments: environment i of a set is made by number i modulo theirs."""

    def __init__(self, factories: Sequence[Factory]) -> None:
        self.factories = tuple(factories)

    def __call__(self, **kwargs: Any) -> gymnasium.Env:
        """Make an environment of the first kind."""
        return self.factories[0](**kwargs)

    def of_env(self, number: int) -> Factory:
        """The function that makes the environment with this number."""
        return self.factories[number % len(self.factories)]


def factory_of(factory: Factory, number: int) -> Factory:
    """The function that makes environment `number`: one of Several, or the function itself."""
    return factory.of_env(number) if isinstance(factory, Several) else factory


def check_same_spaces(
    first: gymnasium.Env, other: gymnasium.Env, number: int, error: type[Exception] = ValueError
) -> None:
    """Raise an error if environment `number` has other spaces than the first; TypeError for several agents."""
    for space in ("observation_space", "action_space"):
        known, found = getattr(first, space), getattr(other, space)
        if callable(known):
            raise TypeError(f"{first} has several agents: a list of functions is for environments of one")
        if known != found:
            raise error(f"the {space} of environment {number} is {found}, and that of the first one is {known}")


class Made:
    """The environments that a function has made for `name`, to detect one that it returns again."""

    def __init__(self, name: str) -> None:
        self.name, self._ids = name, set[int]()

    def new(self, env: gymnasium.Env) -> gymnasium.Env:
        """Register an environment that was just made. Raises ValueError for one that is in use already."""
        own = _own(env)
        if own in self._ids:
            raise ValueError(
                f"the function for {self.name} gave the same environment again, and each call must make a new one: "
                "give `lambda: gymnasium.make(...)`, with everything that makes it inside"
            )
        self._ids.add(own)
        return env

    def discard(self, env: gymnasium.Env) -> None:
        """Forget an environment that is no longer used, since another one may get its id()."""
        self._ids.discard(_own(env))


def _own(env: gymnasium.Env) -> int:
    return id(getattr(env, "unwrapped", env))  # a MultiAgentEnv may have none
