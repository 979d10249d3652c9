"""The protocol of algorithms: the columns that they need, and an update from a rollout. It also finds algorithms by
name, and users' own by `file.py:Class` or `package.module:Class`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Protocol

from gymnasium.spaces import Space
from torch import Tensor

from headrace.core.text import did_you_mean
from headrace.core.user_names import Misnamed, import_user_module
from headrace.data.rollout import Column, Columns, Rollout
from headrace.policies.base import Policy


class Algorithm(Protocol):
    """An algorithm with its policy and optimizer. It does not depend on environments, processes or devices.

    Each algorithm's module opens with one flat frozen dataclass, its config (PPOConfig); `PPO(policy, config, seed)`
    takes any policy, `PPO.build(config, observation_space, action_space, seed, device)` makes the default one.
    """

    name: ClassVar[str]  # "ppo"
    # kinds of action spaces; if it supports only some of a kind, `suits(space)` decides
    actions: ClassVar[tuple[type[Space], ...]]
    max_lag: ClassVar[int | None]  # updates by which the policy that collected may be older than the one that learns;
    # None: any number. 0 where it is left out
    policy: Policy
    config: Any
    num_steps: int  # T of the rollouts it learns from
    iteration: int  # updates done

    @classmethod
    def build(cls, config: Any, observation_space: Space, action_space: Space, seed: int, device: Any) -> Algorithm:
        """Make this algorithm with its usual policy. Raises TypeError for unsupported spaces."""

    def columns(self) -> dict[str, Column | Columns]:
        """Columns the collector's policy fills, besides those that every environment writes."""

    def warm_up(self, rollout: Rollout) -> None:
        """Learn once from a random rollout, then restore all state, so that kernels are compiled before training."""

    def prepare(self, rollout: Rollout) -> str:
        """Allocate what depends on the number of environments, such as a replay buffer. Called once, before training,
        with the collector's rollout. Returns a line for users, such as the memory planned, or an empty string.

        Raises MemoryError, with the sizes, where there is too little memory."""

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Learn from a rollout; return metrics as scalars on the device. progress: fraction of the training done,
        0 .. 1, for schedules. On a GPU the call may be captured in a CUDA graph, with `iteration` and progress as
        tensors: use them only in arithmetic and headrace.core.rng, and keep no other counts on the host."""

    def state_dict(self) -> dict[str, Any]:
        """Nested dict of tensors and numbers: policy, optimizer, counters."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from state_dict()."""


def is_offline(algorithm: Any) -> bool:
    """Return True for an algorithm, or a class, that learns from recorded data alone: it counts gradient steps."""
    return bool(getattr(algorithm, "offline", False))


def counted_steps(algorithm: Any, rollout: Rollout) -> int:
    """Steps of an iteration: valid steps of its rollout, or gradient steps if it learns from recorded data alone."""
    return int(algorithm.config.gradient_steps) if is_offline(algorithm) else rollout.valid_steps()


def past_warm_up(algorithm: Algorithm) -> bool:
    """Tell whether the next update learns: always, unless the algorithm has a past_warm_up() that decides."""
    ready = getattr(algorithm, "past_warm_up", None)
    return ready is None or ready()


INTRINSIC = {"rnd": "rnd:RND", "diayn": "diayn:DIAYN"}  # of algorithms that learn from rollouts
REPLAY_INTRINSIC = {"rnd": "rnd_replay:ReplayRND", "diayn": "diayn:ReplayDIAYN"}  # of algorithms with a replay buffer


def intrinsic_of(kinds: Mapping[str, str], policy: Any, config: Any, seed: int) -> Any:
    """Make the bonus of an algorithm; None if its config has none.

    kinds: value of the setting `intrinsic` -> "module:class" in headrace.algorithms.intrinsic. That folder imports this
    module, so it is imported here."""
    if getattr(config, "intrinsic", "none") == "none":
        return None
    module, _, kind = kinds[config.intrinsic].partition(":")
    space = getattr(policy, "critic_space", policy.observation_space)
    return getattr(import_module(f"headrace.algorithms.intrinsic.{module}"), kind)(space, config, seed, policy.device)


ALGORITHMS = {  # name -> class in headrace.algorithms.<name>, or where MODULES says
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
    "qrdqn": "QRDQN",
    "c51": "C51",
    "discrete_sac": "DiscreteSAC",
    "hybrid_sac": "HybridSAC",
    "td3_bc": "TD3BC",
    "iql": "IQL",
    "bc": "BC",
    "cql": "CQL",
    "discrete_cql": "DiscreteCQL",
}
DISCRETE = ("qrdqn", "c51", "discrete_sac", "hybrid_sac")
OFFLINE = ("td3_bc", "iql", "bc", "cql", "discrete_cql")  # learn from recorded data alone
VTRACE = ("appo", "impala")  # learn from rollouts of an earlier policy
FOLDERS = {"discrete": DISCRETE, "offline": OFFLINE, "vtrace": VTRACE}  # of headrace.algorithms
MODULES = {name: f"{folder}.{name}" for folder, names in FOLDERS.items() for name in names}
ON = "on"  # a value of ELSEWHERE for a switch, whose flag has none
RAINBOW = {"noisy": "0.5", "n_steps": "3", "double": ON, "dueling": ON, "prioritized": ON}
ELSEWHERE: dict[str, tuple[str, dict[str, str]]] = {  # algorithms of other libraries -> the closest one here
    "a3c": ("impala", {}),
    "mappo": ("ppo", {"central_critic": ON}),
    "ippo": ("ppo", {}),
    **dict.fromkeys(("ppo_lstm", "ppo_recurrent", "recurrent_ppo", "recurrentppo"), ("ppo", {"recurrent": "lstm"})),
    **dict.fromkeys(("ppo2", "maskable_ppo", "maskableppo", "ppo_continuous_action", "ppo_atari"), ("ppo", {})),
    **dict.fromkeys(("r2d2", "drqn"), ("dqn", {"recurrent": "lstm"})),
    **dict.fromkeys(("ddqn", "double_dqn", "apex", "apex_dqn"), ("dqn", {})),
    **dict.fromkeys(("noisy_dqn", "noisynet", "noisy_net"), ("dqn", {"noisy": "0.5"})),
    **dict.fromkeys(("iqn", "qr_dqn", "fqf"), ("qrdqn", {})),
    **dict.fromkeys(("categorical_dqn", "distributional_dqn"), ("c51", {})),
    **dict.fromkeys(("rainbow", "rainbow_dqn"), ("c51", RAINBOW)),
    **dict.fromkeys(("vpg", "pg", "rlpgagent"), ("reinforce", {})),  # rlPGAgent: MATLAB's
    **{f"rl{name}agent": (name, {}) for name in ("ppo", "trpo", "sac", "td3", "ddpg", "dqn")},
    "rlacagent": ("a2c", {}),
    **dict.fromkeys(("sac_discrete", "sacd", "dsac", "discretesac"), ("discrete_sac", {})),
    **dict.fromkeys(
        ("sac_hybrid", "hsac", "pdqn", "p_dqn", "mpdqn", "mp_dqn", "parameterized_sac"), ("hybrid_sac", {})
    ),
    **dict.fromkeys(("td3bc", "td3+bc", "td3_plus_bc"), ("td3_bc", {})),
    **dict.fromkeys(("awac", "crr", "marwil"), ("iql", {})),
    **dict.fromkeys(("behavior_cloning", "behaviour_cloning"), ("bc", {})),
    **dict.fromkeys(("her", "hindsight"), ("sac", {"hindsight": "4"})),
    **dict.fromkeys(("fasttd3", "fast_td3"), ("td3", {"config": "fasttd3"})),
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
    "qrdqn": "as DQN, with the distribution of returns, which is more robust",
    "c51": "as QR-DQN, for returns of a known range; with noisy networks and the others: Rainbow",
    "discrete_sac": "discrete actions, expensive environment steps; a stochastic policy",
    "hybrid_sac": "actions of a choice and a vector (Dict or Tuple), expensive environment steps",
    "td3_bc": "recorded data alone (replay), continuous actions; a deterministic policy",
    "iql": "recorded data alone (replay), also of few good episodes; a stochastic policy",
    "bc": "recorded data alone (replay), all of it of a policy to be imitated",
    "cql": "recorded data alone (replay), continuous actions; values that do not trust actions the data lack",
    "discrete_cql": "as CQL, discrete actions",
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
        module, class_name = import_module(f"headrace.algorithms.{MODULES.get(name, name)}"), ALGORITHMS[name]
    else:
        raise _unknown(name)
    for wanted in (class_name, f"{class_name}Config"):
        if not isinstance(getattr(module, wanted, None), type):
            raise ValueError(f"{place} has no class {wanted}: an algorithm has a class and a dataclass <class>Config")
    return AlgorithmClasses(getattr(module, class_name), getattr(module, f"{class_name}Config"))


def algorithms_with(setting: str) -> list[str]:
    """Names of the algorithms that have a setting of their own by this name."""
    return [name for name in ALGORITHMS if setting in algorithm_classes(name).config.__dataclass_fields__]


def _unknown(name: str) -> Misnamed:
    """The error for an unknown name of an algorithm."""
    if (close := ELSEWHERE.get(name.lower().replace("-", "_"))) is not None:
        instead, settings = close
        parts = (setting if value == ON else f"{setting}={value}" for setting, value in settings.items())
        how = f" with {', '.join(parts)}" if settings else ""
        flags = tuple(word for name, x in settings.items() for word in (f"--{name.replace('_', '-')}", x) if word != ON)
        return Misnamed(f"there is no algorithm {name!r}; the closest is {instead}{how}", name, instead, flags)
    known = f"(there is {', '.join(ALGORITHMS)}; one of your own is file.py:Class or package.module:Class)"
    instead = name.lower() if name.lower() in ALGORITHMS else ""
    return Misnamed(f"there is no algorithm {name!r}{did_you_mean(name, ALGORITHMS)} {known}", name, instead)


def is_resolvable(name: str) -> bool:
    """Tell whether algorithm_classes() takes this name, which may differ from the `name` of an algorithm's object."""
    return name in ALGORITHMS or ":" in name
