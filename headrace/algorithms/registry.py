"""Algorithms by name, and users' own by `file.py:Class` or `package.module:Class`."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

from headrace.algorithms.base import Algorithm
from headrace.core.text import did_you_mean
from headrace.core.user_names import import_user_module

ALGORITHMS = {  # name -> class in headrace.algorithms.<name>
    "ppo": "PPO",
    "a2c": "A2C",
    "appo": "APPO",
    "impala": "IMPALA",
    "reinforce": "Reinforce",
    "trpo": "TRPO",
    "ddpg": "DDPG",
    "td3": "TD3",
    "sac": "SAC",
    "tqc": "TQC",
    "crossq": "CrossQ",
    "dqn": "DQN",
    "pqn": "PQN",
}
ELSEWHERE = {  # algorithms that others have -> what comes closest here
    "a3c": "impala",
    **dict.fromkeys(("ppo_lstm", "ppo_recurrent", "recurrent_ppo", "recurrentppo"), "ppo ENV --recurrent lstm"),
    **dict.fromkeys(("ppo2", "maskable_ppo", "maskableppo", "ppo_continuous_action", "ppo_atari"), "ppo"),
    **dict.fromkeys(("r2d2", "drqn"), "dqn ENV --recurrent lstm"),
    **dict.fromkeys(("ddqn", "double_dqn", "rainbow", "qrdqn", "c51", "iqn", "apex", "apex_dqn"), "dqn"),
    **dict.fromkeys(("vpg", "pg"), "reinforce"),
    "discrete_sac": "dqn",
}
PURPOSES = {  # name -> the problem that it is for: docs/algorithms.md says more
    "ppo": "cheap environment steps, many environments; the first thing to try",
    "a2c": "gradient steps that are cheap compared with environment steps",
    "appo": "as PPO, with asynchronous actors, whose policy is some updates old",
    "impala": "as A2C, with asynchronous actors, whose policy is some updates old",
    "reinforce": "studying how policy gradients work",
    "trpo": "a policy that must not change much in one iteration",
    "ddpg": "comparison with TD3, which improves on it",
    "td3": "continuous actions, expensive environment steps, a deterministic policy",
    "sac": "continuous actions, expensive environment steps; explores without tuning",
    "tqc": "as SAC, with more computing against overestimated values",
    "crossq": "as SAC, with more computing for fewer environment steps",
    "dqn": "discrete actions, expensive environment steps",
    "pqn": "discrete actions, thousands of environments",
}


class AlgorithmClasses(NamedTuple):
    """An algorithm's class, and the dataclass of its settings, which is called <class>Config and in the same module."""

    algorithm: type[Algorithm]
    config: type[Any]


def algorithm_classes(name: str) -> AlgorithmClasses:
    """The classes of an algorithm: "ppo", or a user's own, "my_algorithm.py:VPG" or "my_package.module:VPG".

    Raises ValueError for an unknown name or class, FileNotFoundError for a missing file, ImportError for a missing
    module.
    """
    place, _, class_name = name.rpartition(":")
    if place:
        module = import_user_module(place)
    elif name in ALGORITHMS:
        module, class_name = import_module(f"headrace.algorithms.{name}"), ALGORITHMS[name]
    else:
        if (close := ELSEWHERE.get(name.lower().replace("-", "_"))) is not None:
            command = close if " ENV" in close else f"{close} ENV"
            raise ValueError(f"there is no algorithm {name!r}; what comes closest is\n  headrace train {command}")
        raise ValueError(
            f"there is no algorithm {name!r}{did_you_mean(name, ALGORITHMS)} (there is {', '.join(ALGORITHMS)}; one of "
            "your own is file.py:Class or package.module:Class)"
        )
    for wanted in (class_name, f"{class_name}Config"):
        if not isinstance(getattr(module, wanted, None), type):
            raise ValueError(f"{place} has no class {wanted}: an algorithm has a class and a dataclass <class>Config")
    return AlgorithmClasses(getattr(module, class_name), getattr(module, f"{class_name}Config"))


def is_resolvable(name: str) -> bool:
    """Whether this is a name in the form that algorithm_classes() takes, rather than that of an algorithm's object."""
    return name in ALGORITHMS or ":" in name
