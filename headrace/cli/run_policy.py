"""Which policy of a run a verb works with, and in which environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from headrace.policies.base import Policy
from headrace.runs import checkpoint
from headrace.runs.run import BEST, LAST, load
from headrace.training.config import EVAL_ENV_SETTINGS, read_toml

Default = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="(default)")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]


@dataclass(frozen=True)
class Choice:
    """Which policy, how it acts, and where."""

    load_best: Default = False  # the policy that did best in training
    load_last: Flag = False  # the policy as training left it
    deterministic: Default = False  # the most likely actions
    stochastic: Flag = False  # actions drawn from the policy's distribution
    # another environment than the run's
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV", help_behavior_hint="")] = None

    def __post_init__(self) -> None:
        for one, other in (("load_best", "load_last"), ("deterministic", "stochastic")):
            if getattr(self, one) and getattr(self, other):
                raise ValueError(f"--{one} and --{other} exclude each other".replace("_", "-"))


def load_chosen(run: Path, choice: Choice) -> tuple[Policy, Path]:
    """The policy, and the checkpoint's folder it came from."""
    which = LAST if choice.load_last else BEST if choice.load_best else ""
    folder = checkpoint.find(run, *([which] if which else [BEST, LAST]))
    return load(folder), folder


def env_of(run: Path) -> Any:
    """The environment that a run was trained in. Raises ValueError where its config does not say."""
    for folder in (run, run.parent):
        if (folder / "config.toml").is_file():
            env = read_toml(folder / "config.toml").get("env", "none")
            if env == "none":
                raise ValueError(f"{folder}/config.toml does not say how its environment is made: give it by --env")
            return env
    raise FileNotFoundError(f"{run} has no config.toml: give the environment by --env")


def eval_env_kwargs(run: Path) -> dict[str, Any]:
    """The settings with which a run's worlds were made and are to be made again; none where its config is gone."""
    for folder in (run, run.parent):
        if (folder / "config.toml").is_file():
            settings = read_toml(folder / "config.toml")
            found = {name: settings[name] for name in EVAL_ENV_SETTINGS if name in settings}
            return {name: None if value == "none" else value for name, value in found.items()}
    return {}
