"""The settings of a run: TrainConfig, and how defaults, environment, file and keywords are merged into one.

Imports no torch, so that a command line can be read and its help printed at once.
"""

from __future__ import annotations

import tomllib
import typing
from collections.abc import Collection
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from headrace.core.setting_types import fit, fit_fields, hints_of, no_setting
from headrace.core.text import shown
from headrace.core.types import Json, Settings
from headrace.core.writing import check_file
from headrace.setting_schedules import ADAPTIVE

# settings of make() that evaluations and videos also use
WRAPPING = ("frame_stack", "time_limit", "ignore", "info_mask")
OF_MAKING = ("params", "env_kwargs", "wrapper")  # `wrapper` is make()'s `wrappers`
EVAL_ENV_SETTINGS = (*WRAPPING, *OF_MAKING)
MAKE_SETTINGS = ("workers", "on_error", "step_timeout", "group_by", *WRAPPING, "reward_scale")  # of make()
LEAST = {  # smallest allowed values
    **dict.fromkeys(("num_envs", "actors", "learners", "shards", "max_policy_lag", "threads"), 1),
    **dict.fromkeys(("total_steps", "max_episodes", "window", "eval_episodes", "eval_envs"), 1),
    **dict.fromkeys(("opponents", "pool_size", "snapshot_freq"), 1),
    **dict.fromkeys(("seed", "eval_freq", "save_freq"), 0),
}
OF_SELF_PLAY = ("opponents", "latest_share", "best_share", "pool_size", "snapshot_freq")
SEEDS = 2**32  # seeds are one word of the counter-based generator


NEEDS: tuple[tuple[tuple[str, ...], str, tuple[Any, ...]], ...] = (  # (settings, other, values of other): no effect
    (("sde_sample_freq", "use_expln", "use_sde_at_warmup"), "use_sde", (False,)),
    (("v_min", "v_max"), "num_atoms", (1,)),
    (("rnn_size", "sequence_length", "burn_in"), "recurrent", ("none",)),
    (("priority_alpha", "priority_beta"), "prioritized", (False,)),
    (("target_entropy",), "learn_temperature", (False,)),
    (("hindsight_goals",), "hindsight", (0,)),
    (("eval_episodes", "eval_device"), "eval_freq", (0,)),
    (("cluster_open",), "cluster", (None, "none")),
    (("intrinsic_coef", "extrinsic_coef", "intrinsic_hidden"), "intrinsic", ("none",)),
    (("intrinsic_gamma", "intrinsic_share", "intrinsic_features"), "intrinsic", ("none", "diayn")),
    (("skills",), "intrinsic", ("none", "rnd")),
)


@dataclass(frozen=True)
class TrainConfig:
    """Settings that do not depend on the algorithm. Training stops at the first limit that is reached."""

    num_envs: int = 64  # environments that are stepped together
    registered: bool = True  # begin with the settings registered for the environment, if any
    # adapt settings to num_envs where they were found with another number, and to actors that lag, see docs/scaling.md
    scale: bool = True
    stagger: bool = False  # cut off first episodes at different steps, so that the environments are out of phase
    seed: int = 0  # of weights, episodes, actions and minibatches
    device: str = "auto"  # auto, cpu, cuda, cuda:1, mps
    collect_device: str | None = None  # device of the policy that collects; None: where it learns, of actors the CPU
    eval_device: str | None = None  # device of evaluations during training; None: where it learns
    precision: Literal["float32", "tf32", "bfloat16", "auto"] = "float32"  # of hidden layers, see docs/gpu.md
    graphs: bool = True  # on CUDA: run iterations as CUDA graphs, one or two, if they can be captured
    backend: str = "auto"  # of the environments: auto, or one listed by `headrace envs`
    # processes for uncompiled environments; auto: measure; None: none. Where it is not given, ids of Gymnasium for
    # which nothing is registered get those that the time of a step asks for
    workers: int | Literal["auto"] | None = None
    # processes that collect with a copy of the policy each; auto: try; None: none. See docs/parallel.md
    actors: int | Literal["auto"] | None = None
    collection: Literal["sync", "double_buffered", "overlapped", "async"] = "sync"  # see docs/parallel.md
    max_policy_lag: int = 2  # with actors and async: largest number of updates between collecting and learning
    # with actors and async: a run whose order of fragments is repeated, for the same bits
    replay_order: str | None = None
    advantages: Literal["learner", "actor"] = "learner"  # which process computes them, with actors; same results
    exchange: Literal["experience", "gradients"] = "experience"  # what actors send, see docs/parallel.md
    learners: int = 1  # processes that learn from a part of the environments each, and add their gradients
    # parts of each minibatch whose sums are added in order; None: one for each of the learners, see docs/learners.md
    shards: int | None = None
    # actors on a Ray cluster: local (one of this machine alone), auto, or its address. See docs/cluster.md
    cluster: str | None = None
    cluster_open: bool = False  # allow Ray to listen beyond loopback, or a cluster without a token
    drop_slowest: float = 0.0  # with async: fraction of workers that may miss the last steps of a rollout
    on_error: Literal["raise", "restart"] = "raise"  # if an environment fails: stop, or make it again
    step_timeout: float = 60.0  # time without a step after which a worker counts as dead, s
    group_by: Literal["spaces", "names", "agents"] = "spaces"  # agents that have this in common share a policy
    # with several agents: the critic sees the state of all, the actor its own observation (MAPPO)
    central_critic: bool = False
    # with two agents: learn as one of them, against policies of this run's past. See docs/self-play.md
    self_play: bool = False
    # opponents of self-play at a time, each in its part of the environments. None: 8, or half of num_envs if that is
    # less
    opponents: int | None = None
    latest_share: float = 0.5  # share of opponents that are the present policy
    best_share: float = 0.125  # share of opponents that are the snapshot with the highest rating
    pool_size: int = 16  # largest number of snapshots that opponents are drawn from
    snapshot_freq: int = 200_000  # steps between snapshots of the policy for self-play, and draws of opponents
    frame_stack: int = 1  # successive observations stacked into one
    time_limit: int | None = None  # steps after which an episode is truncated; None: the environment's own limit
    info_mask: bool = False  # take only actions that info["action_mask"] of Gymnasium environments allows
    reward_scale: float = 1.0  # factor of rewards; reported returns are not scaled
    # parameters of the environments, such as gravity=20: a number each. See docs/curricula.md
    params: dict[str, Any] = field(default_factory=dict)
    # arguments of what makes an environment that is not compiled, such as continuous=true
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    # wrappers of a Gymnasium environment, the innermost first: file.py:Class or package.module:function
    wrapper: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()  # members of a Dict observation that are left out, such as text
    policy: str | None = None  # a policy of your own, file.py:Class; see docs/own-policy.md
    # a run whose policy the training begins with, best/ or else last/; or a checkpoint in one
    init_from: str | None = None
    # data that the replay buffer has before the first step, or that td3_bc, iql, cql and bc learn from: a folder of
    # `headrace record`, a dataset of Minari, or a run that has a replay buffer. See docs/data.md
    replay: str | None = None
    # stop after this many environment steps, gradient steps of td3_bc, iql, cql and bc; None: no limit
    total_steps: int | None = 1_000_000
    max_seconds: float | None = None  # stop after this training time without evaluation and saving, s; None: no limit
    max_episodes: int | None = None  # stop after this many finished episodes; None: no limit
    target_return: float | None = None  # stop when the mean return of the last `window` episodes reaches this
    window: int = 100  # number of episodes for the mean return and length that are reported
    log_info: tuple[str, ...] = ()  # numbers in the info of an episode's last step to log, such as is_success
    # levels of parameters of the environments, gravity=[9.8,12,15] above=400, see docs/curricula.md
    curriculum: dict[str, Any] = field(default_factory=dict)
    eval_freq: int = 0  # environment steps between evaluations in the reference environment; 0: none
    eval_episodes: int = 20  # episodes per evaluation
    # environments of an evaluation at most, where they are not compiled; None: as many as num_envs
    eval_envs: int | None = None
    parallel_evaluation: bool = False  # evaluate in a process of its own while training goes on
    save_freq: int = 0  # environment steps between the checkpoints step_N/; 0: only last/ and best/
    track: Literal["wandb"] | None = None  # send the rows of metrics.jsonl to this tracker, too
    log_folder: str = "runs"  # the run's folder is LOG_FOLDER/<algorithm>/<env>_<n>/
    progress: Literal["auto", "rich", "plain", "none"] = "auto"  # auto: rich in a terminal, otherwise plain lines
    # CPU threads of torch during training. More than 1 is faster for minibatches of about 2000 rows and more on an idle
    # machine, and much slower on a busy one. None: torch's default. Where it is not given, images of 64 x 64 pixels and
    # more get all cores. For the kernels' threads see HEADRACE_THREADS
    threads: int | None = 1

    @property
    def largest_lag(self) -> int:
        """Largest number of updates between the policy that collects and the one that learns from its experience."""
        lags = {"overlapped": 1, "async": self.max_policy_lag if self.actors else 0}
        return lags.get(self.collection, 0) if self.exchange == "experience" else 0

    def __post_init__(self) -> None:
        fit_fields(self)
        for name, least in LEAST.items():
            value = getattr(self, name)
            if isinstance(value, int) and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if self.seed >= SEEDS:
            raise ValueError(f"seed must be below 2^32 = {SEEDS}, got {self.seed}")
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise ValueError(f"max_seconds must be above 0, got {self.max_seconds}; None stands for no limit")
        if all(getattr(self, name) is None for name in ("total_steps", "max_seconds", "max_episodes", "target_return")):
            raise ValueError(
                "nothing would stop this run: give total_steps, max_seconds, max_episodes or target_return"
            )
        if self.parallel_evaluation and not self.eval_freq:
            raise ValueError("parallel_evaluation is for evaluations during training: give eval_freq, their interval")

        for name, value in self.params.items():
            if isinstance(value, str) or not hasattr(value, "__float__"):
                many = ": give train() hr.make(source, num_envs, params={...}) for one of each environment"
                raise ValueError(f"params has one number for each name, and {name} is {value!r}{many}")

    def eval_env_kwargs(self) -> Settings:
        """Settings of make() that evaluations and videos also use."""
        return {name: getattr(self, name) for name in EVAL_ENV_SETTINGS}


def default_of(setting: Field) -> Any:
    """The default of a field of a config."""
    return setting.default if setting.default_factory is MISSING else setting.default_factory()


def has_default(setting: Field) -> bool:
    """Tell whether a field of a config may be left out."""
    return setting.default is not MISSING or setting.default_factory is not MISSING


def needless(given: Collection[str], values: Settings) -> dict[str, str]:
    """Given settings that have no effect because of others, each with a sentence that says so."""
    found = {name: other for names, other, off in NEEDS if values.get(other) in off for name in names if name in given}
    if "desired_kl" in given and values.get("schedule") != ADAPTIVE:
        found["desired_kl"] = "schedule"
    return {
        name: f"{name}={values[name]!r} is without effect, since {other} is {values[other]!r}: leave it out, or change "
        f"{other}"
        for name, other in found.items()
    }


def _names(wrapper: Any) -> Any:
    """Names of wrappers, also of classes and functions: the settings of a run are text.

    Raises TypeError for one that is not found again by its name.
    """
    given = wrapper if isinstance(wrapper, list | tuple) else (wrapper,)
    return tuple(_name(each) if callable(each) else each for each in given)


def _name(wrapper: Any) -> str:
    from headrace.envs.sources import reference  # which imports torch

    name = reference(wrapper)
    own = name.rpartition(":")[2]
    if not own.isidentifier() or wrapper.__module__ == "__main__":  # importing a script would run it again
        raise TypeError(
            f"wrapper has {shown(wrapper, 60)}, which workers and a resumed run cannot import by a name: put it into a "
            "file of its own and import it from there, or give env a function that makes and wraps an environment"
        )
    return name


def merge_settings(
    algorithm_config: type | None,
    env_defaults: Settings,
    file: Settings,
    options: Settings,
    checked: bool = True,
) -> tuple[TrainConfig, Any]:
    """Merge settings into a TrainConfig and the algorithm's config: dataclass default < env_defaults < file < options.

    checked: False for a parser's defaults. A training checks its settings once it has those that follow from others.
    algorithm_config: the algorithm's dataclass, None for an algorithm that brings its own settings.
    Raises TypeError for a name that is no setting or a value of the wrong type, ValueError for one out of range.
    """
    known = {field.name for field in fields(TrainConfig)}
    own = {field.name for field in fields(algorithm_config)} if algorithm_config else set()
    for given in (env_defaults if algorithm_config else {}, file, options):
        for name in given:
            if name not in known | own:
                from headrace.algorithms.base import algorithms_with  # which loads torch

                raise TypeError(no_setting(name, known | own, owners=algorithms_with(name)))
    values = {name: value for given in (env_defaults, file, options) for name, value in given.items()}
    if "wrapper" in values:
        values["wrapper"] = _names(values["wrapper"])
    kinds: tuple[Any, Any] = (TrainConfig, algorithm_config)
    training, learning = (kind and _fill(kind if checked else _unchecked(kind), values) for kind in kinds)
    return training, learning


def _unchecked(config: type) -> type:
    """The dataclass without checks of values."""
    kept = {name: getattr(config, name) for name in ("__doc__", "__module__", "__qualname__")}
    return type(config.__name__, (config,), {**kept, "__post_init__": lambda self: None})


def read_toml(path: str | Path) -> Json:
    """Read the settings of a TOML file, or of the preset of this name. Raises FileNotFoundError, and ValueError, naming
    the file, if it is not TOML."""
    if str(path) in (known := presets()) and not Path(path).exists():
        return _preset(str(path))
    try:
        return tomllib.loads(check_file(Path(path)).read_text())
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no file {path} of settings, nor a preset ({', '.join(known)})") from error
    except ValueError as error:  # UnicodeDecodeError, too
        raise ValueError(f"{path} is not valid TOML: {error}") from error


def presets() -> list[str]:
    """Names of the presets, files of settings that are part of the package."""
    folder = files("headrace.training") / "presets"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def _preset(name: str) -> Json:
    """A preset's settings. Those of its table `gpu` replace others of the same name on a machine with a GPU."""
    import torch

    found = tomllib.loads((files("headrace.training") / "presets" / f"{name}.toml").read_text())
    of_gpu = found.pop("gpu")
    return found | of_gpu if torch.cuda.is_available() else found


def to_toml(**settings: Any) -> str:
    """Settings as TOML for read_toml() and merge_settings(): "none" for None, with the fields of dataclasses among the
    rest.

    Raises TypeError for values that TOML cannot hold: env_kwargs may have any.
    """
    import tomli_w

    flat: Json = {}
    for name, value in settings.items():
        flat |= asdict(value) if hasattr(value, "__dataclass_fields__") else {name: value}
    for name, value in flat.get("env_kwargs", {}).items():
        try:
            tomli_w.dumps({name: value})
        except TypeError as error:
            raise TypeError(
                f"env_kwargs has {name}={shown(value, 60)}, and the files of a run hold numbers, text, bools, lists "
                f"and dicts: train on a function that makes the environment, such as `lambda: Env({name}=...)`"
            ) from error
    return tomli_w.dumps({name: "none" if value is None else value for name, value in flat.items()})


def takes_none(config: type) -> set[str]:
    """Names of a config's settings that may be None."""
    hints = hints_of(config)
    return {field.name for field in fields(config) if type(None) in typing.get_args(hints[field.name])}


def _fill(config: type, values: Settings) -> Any:
    """Make a config of those values that are its settings."""
    hints = hints_of(config)
    return config(**{name: fit(name, value, hints[name]) for name, value in values.items() if name in hints})
