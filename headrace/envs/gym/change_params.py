"""Parameters of a Gymnasium environment that change while it is used."""

from __future__ import annotations

import gymnasium

from headrace.core.types import Settings
from headrace.envs.base import MultiAgentEnv

METHOD = "set_params"


def change_params(env: gymnasium.Env | MultiAgentEnv, params: Settings) -> None:
    """Call the method set_params(**params) of an environment or of one of its wrappers; where there is none, set the
    attributes of these names.

    Raises AttributeError where there is no such attribute.
    """
    if not params:
        return
    own = getattr(env, "unwrapped", env)
    if isinstance(env, gymnasium.Env) and env.has_wrapper_attr(METHOD):
        env.get_wrapper_attr(METHOD)(**params)
    elif hasattr(own, METHOD):
        getattr(own, METHOD)(**params)
    else:
        for name in params:
            if not hasattr(own, name):
                kind = type(own).__name__
                raise AttributeError(f"{kind} has neither a method {METHOD}() nor an attribute {name!r}: give it one")
        for name, value in params.items():
            setattr(own, name, value)
