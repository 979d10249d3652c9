"""Load the policy of a run for a verb, with its environment and its way of acting."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import tyro

from headrace.core.types import Json, Settings
from headrace.data.spaces import Discrete
from headrace.envs.strangers import check_settings
from headrace.policies.base import Policy
from headrace.runs import checkpoint
from headrace.runs.run import BEST, LAST, ended_by, load_with_folder
from headrace.training.config import EVAL_ENV_SETTINGS, read_toml
from headrace.training.initial_policy import own_policy
from headrace.training.plan import is_nameless

Default = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="(default)")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]


@dataclass(frozen=True)
class Choice:
    """Choice of the policy, its way of acting, and its environment."""

    load_best: Default = False  # the policy with the best return during training
    load_last: Flag = False  # the policy at the end of training
    deterministic: Default = False  # take the most likely actions
    stochastic: Flag = False  # sample actions from the policy's distribution
    trust: Flag = False  # run code that lies in the run's own folder
    # another environment than the run's
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV", help_behavior_hint="")] = None

    def __post_init__(self) -> None:
        for one, other in (("load-best", "load-last"), ("deterministic", "stochastic")):
            if all(getattr(self, name.replace("-", "_")) for name in (one, other)):
                raise ValueError(f"--{one} and --{other} exclude each other")


class Chosen(NamedTuple):
    """A loaded policy, and the other arguments of evaluate() and play()."""

    policy: Policy
    folder: Path  # of the checkpoint
    described: str  # the checkpoint in words
    env: str
    deterministic: bool
    env_kwargs: Settings


def load_chosen(run: Path, choice: Choice) -> Chosen:
    """Load the chosen policy of a run, within code_of() of that run.

    Raises FileNotFoundError or ValueError, see env_of and checkpoint.read; Untrusted."""
    which = [LAST] if choice.load_last else [BEST] if choice.load_best else [BEST, LAST]
    policy, folder = load_with_folder(run, which, own_policy_of(run))
    check_settings(run, {**_config(run), "env": None if choice.env else env_of(run)})
    env, deterministic = choice.env or env_of(run), not choice.stochastic
    return Chosen(policy, folder, describe(folder), env, deterministic, eval_env_kwargs(run))


def describe(folder: Path) -> str:
    """Describe a checkpoint: `runs/ppo/CartPole-v1_1/best, after 81,920 steps; the run ended by total_steps`."""
    manifest = checkpoint.read_manifest(folder)
    steps = manifest.get("steps", manifest.get("counters", {}).get("steps"))
    ended = ended_by(folder.parent)
    text = str(folder) if not isinstance(steps, int) else f"{folder}, after {steps:,} steps"
    return f"{text}; the run ended by {ended}" if ended else text


def own_policy_name(run: Path) -> str | None:
    """The name of a run's policy class, if it is the user's own."""
    name = _config(run).get("policy", "none")
    return None if name == "none" else str(name)


def own_policy_of(run: Path) -> type[Policy] | None:
    """The class of a run's policy, if config.toml names one of the user's own; otherwise None.

    Raises ValueError if it was defined in a process that is gone.
    """
    name = own_policy_name(run)
    if name is None:
        return None
    if is_nameless(name):
        raise ValueError(
            f"the policy of {run} is {name}, made in Python: load it there, hr.load(run, policy_class=...)"
        )
    return own_policy(name)


def env_of(run: Path) -> str:
    """The environment of a run. Raises ValueError if its config does not name one, FileNotFoundError without config."""
    config = _config(run)
    if not config:
        raise FileNotFoundError(f"{run} has no config.toml: give the environment by --env")
    env = config.get("env", "none")
    if env == "none":
        raise ValueError(f"the config.toml of {run} does not name an environment: give it by --env")
    return env


def eval_env_kwargs(run: Path) -> Settings:
    """Settings of a run's environments that also apply to evaluations; empty without a config."""
    settings = _config(run)
    given = [name for name in EVAL_ENV_SETTINGS if name in settings and settings[name] not in ({}, [])]
    return {name: None if settings[name] == "none" else settings[name] for name in given}


def eval_counts(run: Path) -> Settings:
    """Numbers of environments in a run's evaluations, and the infos that it logs, as arguments of evaluate(); empty
    without a config."""
    settings = _config(run)
    counts = {"training_envs": settings.get("num_envs"), "eval_envs": settings.get("eval_envs")}
    found = {name: number for name, number in counts.items() if isinstance(number, int)}
    return found | ({"log_info": infos} if (infos := settings.get("log_info")) else {})


def skills_of(run: Path) -> Settings:
    """The agent_info for evaluate(), if the run's training drew skills."""
    settings = _config(run)
    return {"agent_info": Discrete(settings["skills"])} if settings.get("intrinsic") == "diayn" else {}


def _config(run: Path) -> Json:
    """The config.toml of a run, given its folder or a checkpoint in it; empty if there is none."""
    paths = [folder / "config.toml" for folder in (run, run.parent)]
    return next((read_toml(path) for path in paths if path.is_file()), {})
