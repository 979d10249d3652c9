"""The settings of a run: what TrainConfig holds, and how defaults, environment, file and keywords become one.

Imports no torch, so that a command line can be read and its help printed at once.
"""

from __future__ import annotations

import tomllib
import types
import typing
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from headrace.core.text import did_you_mean
from headrace.core.types import Json, Settings

EVAL_ENV_SETTINGS = (
    "frame_stack",
    "time_limit",
)  # settings of make() that hold for worlds to evaluate and to film in, too
SEEDS = 2**32  # seeds are one word of the counter-based generator


@dataclass(frozen=True)
class TrainConfig:
    """What a run does beside learning. Steps are valid environment steps; the first limit met ends the training."""

    num_envs: int = 64  # worlds that step together
    scale: bool = True  # of settings registered for another num_envs, those that depend on it follow it
    stagger: bool = False  # first episodes are cut off, each world's later, so that they do not stay in step
    seed: int = 0  # of weights, episodes, actions and minibatches
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    precision: Literal["float32", "tf32", "bfloat16", "auto"] = "float32"  # of hidden layers, see docs/gpu.md
    graphs: bool = True  # on CUDA: whole iterations as one CUDA graph, where they can be captured
    backend: str = "auto"  # how worlds are run: auto, or one that `headrace envs` lists
    workers: int | Literal["auto"] | None = None  # processes for worlds, uncompiled; auto: tried out; None: none
    collection: Literal["sync", "double_buffered", "async"] = "sync"  # see docs/environments.md
    drop_slowest: float = 0.0  # share of asynchronous workers whose last steps of a rollout nobody waits for
    on_error: Literal["raise", "restart"] = "raise"  # of a world in a worker: stop, or make it anew and count it
    step_timeout: float = 60.0  # seconds after which a worker that has not stepped counts as dead
    group_by: Literal["spaces", "names", "agents"] = "spaces"  # agents of a world with the same of these share a policy
    frame_stack: int = 1  # observations that are seen together
    time_limit: int | None = None  # steps after which an episode is truncated; None for the environment's own limit
    reward_scale: float = 1.0  # rewards are multiplied by it; returns that are reported are not
    total_steps: int | None = 1_000_000  # stop after this many steps; None for no such limit
    max_seconds: float | None = None  # stop after this much training time, s (evaluation and saving excluded)
    max_episodes: int | None = None  # stop after this many finished episodes
    target_return: float | None = None  # stop when the mean return of the last `window` episodes reaches it
    window: int = 100  # episodes that the reported return and length are a mean of
    eval_freq: int = 0  # steps between evaluations on the original environment; 0 for none
    eval_episodes: int = 20  # episodes of one such evaluation
    save_freq: int = 0  # steps between kept checkpoints step_N/; 0 for none (last/ and best/ are always written)
    log_folder: str = "runs"  # where the run's folder <algorithm>/<env>_<n>/ is made
    progress: Literal["auto", "rich", "plain", "none"] = "auto"  # auto: rich on a terminal, else plain lines
    # CPU threads of torch while training: more pay on an idle machine where torch itself learns, from minibatches of
    # some 2000 rows on, and cost dearly on a busy one; None leaves torch's own number. Kernels: see HEADRACE_THREADS
    threads: int | None = 1

    def __post_init__(self) -> None:
        for name in ("num_envs", "window", "eval_episodes"):
            _at_least(1, name, getattr(self, name))
        for name in ("seed", "eval_freq", "save_freq"):
            _at_least(0, name, getattr(self, name))
        if self.seed >= SEEDS:
            raise ValueError(f"seed must be below 2^32 = {SEEDS}, got {self.seed}")
        for name in ("total_steps", "max_episodes", "threads"):
            if getattr(self, name) is not None:
                _at_least(1, name, getattr(self, name))
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ValueError(f"max_seconds must be above 0, got {self.max_seconds}; None stands for no limit")
        if all(getattr(self, name) is None for name in ("total_steps", "max_seconds", "max_episodes", "target_return")):
            raise ValueError(
                "nothing would stop this run: give total_steps, max_seconds, max_episodes or target_return"
            )

    def eval_env_kwargs(self) -> Settings:
        """The settings of worlds that hold for those to evaluate and to film in, too."""
        return {name: getattr(self, name) for name in EVAL_ENV_SETTINGS}


def merge_settings(
    algorithm_config: type | None,
    env_defaults: Settings,
    file: Settings,
    options: Settings,
) -> tuple[TrainConfig, Any]:
    """TrainConfig and the algorithm's config; dataclass default < env_defaults < file < options.

    algorithm_config: the algorithm's dataclass, None for an algorithm that brings its own settings.
    Raises TypeError for a name that is no setting or a value of the wrong type, ValueError for one out of range.
    """
    known = {field.name for field in fields(TrainConfig)}
    own = {field.name for field in fields(algorithm_config)} if algorithm_config else set()
    for given in (env_defaults if algorithm_config else {}, file, options):
        for name in given:
            if name not in known | own:
                raise TypeError(f"there is no setting {name!r}{did_you_mean(name, known | own)}")
    values = {name: value for given in (env_defaults, file, options) for name, value in given.items()}
    train = _fill(TrainConfig, {name: value for name, value in values.items() if name in known})
    if algorithm_config is None:
        return train, None
    return train, _fill(algorithm_config, {name: value for name, value in values.items() if name in own})


def read_toml(path: str | Path) -> Json:
    """The settings of a TOML file. Raises ValueError, naming the file, where it is not TOML."""
    try:
        return tomllib.loads(Path(path).read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error


def to_toml(**settings: Any) -> str:
    """Settings as TOML that read_toml() and merge_settings() take back: "none" for None, dataclasses flattened in."""
    import tomli_w

    flat: Json = {}
    for name, value in settings.items():
        flat |= asdict(value) if hasattr(value, "__dataclass_fields__") else {name: value}
    return tomli_w.dumps({name: "none" if value is None else value for name, value in flat.items()})


def _fill(config: type, values: Settings) -> Any:
    hints = typing.get_type_hints(config)
    return config(**{name: _fit(name, value, hints[name]) for name, value in values.items()})


def _fit(name: str, value: Any, hint: Any) -> Any:
    """`value` as its field's type, where that loses nothing: 1e6 for an int, 3 for a float, "none" for None."""
    choices = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    if (value is None or value == "none") and type(None) in choices:
        return None
    if typing.get_origin(hint) is Literal:
        if value in typing.get_args(hint):
            return value
        raise ValueError(f"{name} must be one of {', '.join(map(str, typing.get_args(hint)))}, got {value!r}")
    for choice in choices:
        kind = typing.get_origin(choice) or choice
        if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        if kind is int and isinstance(value, float) and value.is_integer():
            return int(value)
        if kind is int and hasattr(value, "__index__") and not isinstance(value, bool):
            return int(value)
        if kind is tuple and isinstance(value, list | tuple):
            return tuple(value)
        if kind is Literal and value in typing.get_args(choice):
            return value
        if kind in (bool, str) and isinstance(value, kind):
            return value
    raise TypeError(f"{name} must be {' | '.join(map(_named, choices))}, got {value!r}")


def _named(hint: Any) -> str:
    """A type as people write it."""
    if typing.get_origin(hint) is Literal:
        return " | ".join(map(repr, typing.get_args(hint)))
    return "None" if hint is type(None) else str(getattr(hint, "__name__", hint))


def _at_least(least: int, name: str, value: int) -> None:
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
