"""A run: its folder, what is kept there, and the way back from it to a policy."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from headrace.core.types import EnvArgument, Json, Settings, StateDict
from headrace.evaluation.evaluator import Evaluation, evaluate
from headrace.policies.base import Policy
from headrace.runs import checkpoint
from headrace.runs.logs import writing

fcntl: Any = import_module("fcntl") if os.name == "posix" else None  # Windows has no such locks
LAST, BEST, COMMANDS = "last", "best", "command.txt"


@dataclass
class Run:
    """What a training left: its folder and its policy. `hr.load(run.path)` gives the policy again, any time later."""

    path: Path
    policy: Policy  # as training left it; `best` is the one that did best
    algorithm: str
    env: EnvArgument  # as it was given to train(): where evaluate() looks for the original
    steps: int  # valid environment steps
    seconds: float  # of training: set-up, evaluation and saving excluded
    metrics: Json = field(default_factory=dict)  # the last row of metrics.jsonl
    reason: str = ""  # what ended the training: "total_steps", "target_return" ..., "SIGINT"
    seed: int = 0
    eval_env_kwargs: Settings = field(default_factory=dict)  # settings with which worlds are made to evaluate in

    def evaluate(self, episodes: int = 100, seed: int | None = None, deterministic: bool = True) -> Evaluation:
        """Returns of the policy on the original environment; see headrace.evaluate. seed: None for the run's own."""
        seed = self.seed if seed is None else seed
        return evaluate(self.policy, self.env, episodes, seed, deterministic, **self.eval_env_kwargs)

    @property
    def best(self) -> Policy:
        """The policy with the best evaluation, or, without evaluations, the best mean of training episodes."""
        return load(self.path / BEST)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C, SIGTERM or SIGHUP ended it."""
        return self.reason.startswith("SIG")

    @property
    def resume_command(self) -> str:
        """What goes on with this run, typed into a shell."""
        return f"headrace train --resume {shlex.quote(str(self.path))}"

    def __repr__(self) -> str:
        mean = self.metrics.get("return")
        reached = "no episode ended" if mean is None else f"return {mean:.4g}"
        return f"Run({self.path}: {self.steps:,} steps in {self.seconds:.2f} s, {reached}, ended by {self.reason})"


def new_folder(log_folder: str | Path, algorithm: str, env: str) -> Path:
    """Make runs/<algorithm>/<env>_<n>/ with the next free n. Two runs that start together get two folders.

    Raises OSError, naming the folder, where none can be made.
    """
    parent = Path(log_folder) / algorithm
    stem = re.sub(r"[^\w.-]+", "-", env)
    with writing(parent):
        parent.mkdir(parents=True, exist_ok=True)
        taken = [path.name.removeprefix(f"{stem}_") for path in parent.glob(f"{stem}_*")]
        number = max((int(name) for name in taken if name.isdecimal()), default=0) + 1
        while True:
            try:
                (parent / f"{stem}_{number}").mkdir()
                return parent / f"{stem}_{number}"
            except FileExistsError:
                number += 1


def lock(folder: Path) -> TextIO:
    """An open file that marks a run's folder as being written, until it is closed or its process ends.

    Raises RuntimeError where another training has it: two would spoil each other's files.
    """
    with writing(folder / COMMANDS):
        file = open(folder / COMMANDS, "a")  # noqa: SIM115
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise RuntimeError(f"another training is writing to {folder}: wait for it, or end it first") from error
        except OSError:  # a file system without locks
            pass
    return file


def describe(folder: Path, config: str) -> None:
    """Write config.toml, and to command.txt one line for each start of the run. Raises OSError, naming the file."""
    with writing(folder / "config.toml"):
        checkpoint.write_file(folder / "config.toml", config.encode())
    with writing(folder / COMMANDS), open(folder / COMMANDS, "a") as file:
        file.write(shlex.join(sys.argv) + "\n")


def save_policy(folder: Path, policy: Policy, weights: StateDict, **facts: Any) -> None:
    """Write a checkpoint that holds a policy and nothing else."""
    checkpoint.save(folder, {"policy": weights}, policy=identity(policy), **facts)


def identity(policy: Policy) -> Json:
    """What a manifest tells of a policy, so that load() can build it."""
    kind = type(policy)
    return {"class": f"{kind.__module__}:{kind.__qualname__}", "config": policy.config()}


def load(path: str | Path, policy_class: type[Policy] | None = None, which: str = "") -> Policy:
    """The policy of a run's folder, or of one of its best/, last/, step_N/. Needs no environment.

    `policy.predict(observation)` then gives actions for one observation or a batch of them, numpy in and out.
    which: "best" or "last" of a run's folder; the best where neither is said.
    policy_class: for a policy whose class is not Headrace's own.
    Raises FileNotFoundError, DamagedCheckpoint, ValueError where the class is not known.
    """
    if which not in ("", BEST, LAST):
        raise ValueError(f"which must be 'best' or 'last', got {which!r}")
    folder = checkpoint.find(path, *([which] if which else [BEST, LAST]))
    saved = checkpoint.read_manifest(folder)["policy"]
    kind = policy_class or _policy_class(saved["class"])
    policy = kind.from_config(saved["config"])
    policy.load_state_dict(checkpoint.load(folder, "policy"))
    return policy.eval()


def _policy_class(name: str) -> type[Policy]:
    module, _, qualname = name.partition(":")
    # a checkpoint is data: it may choose among Headrace's policies, but not have any module imported
    if module.partition(".")[0] != "headrace":
        raise ValueError(f"this policy is a {name}, not one of Headrace's own: give load(path, policy_class=...)")
    kind: type[Policy] = getattr(import_module(module), qualname)
    return kind
