"""A run: its folder, and loading its policy."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TextIO

from headrace.agent_groups.group_policy import GroupedPolicy
from headrace.core.packages import of_headrace
from headrace.core.processes.state import shown
from headrace.core.types import EnvArgument, Json, Settings
from headrace.core.writing import check_file, writing
from headrace.evaluation.evaluator import evaluate
from headrace.evaluation.playing import Evaluation
from headrace.policies.base import Policy, check_policy, difference
from headrace.runs import checkpoint

fcntl: Any = import_module("fcntl") if os.name == "posix" else None  # Windows has no such locks
LAST, BEST, COMMANDS = checkpoint.LAST, checkpoint.BEST, "command.txt"
MOVED = {"headrace.policies.group_policy": "headrace.agent_groups.group_policy"}  # modules now of classes in old runs
HOLDER = "writer.txt"  # the file that names the process that locked the folder last
NEW = {COMMANDS, HOLDER, "config.toml", "monitor.csv", "metrics.jsonl"}  # files of a new run
LEARNED = "wrapper_statistics"  # in manifests: see envs.gym.learned
MOMENT = 0.05  # s


@dataclass
class Run:
    """The result of a training: its folder and its policy. `hr.load(run.path)` loads the policy later."""

    path: Path
    policy: Policy  # at the end of training; `best` is the one with the best return
    algorithm: str
    env: EnvArgument  # as it was given to train()
    steps: int  # valid environment steps
    seconds: float  # of training: set-up, evaluation and saving excluded
    metrics: Json = field(default_factory=dict)  # of the last step in metrics.jsonl
    reason: str = ""  # what ended the training: "total_steps", "target_return" ..., "SIGINT"; see ended_by()
    signal: str = ""  # "SIGINT" ..., also if it came after the training, while best/ was chosen or last/ evaluated
    seed: int = 0
    eval_env_kwargs: Settings = field(default_factory=dict)  # settings of environments that also apply to evaluations
    needed_to_resume: tuple[str, ...] = ()  # arguments of train() that the run's folder does not hold

    def evaluate(self, episodes: int = 100, seed: int | None = None, deterministic: bool = True) -> Evaluation:
        """Evaluate the policy in the reference environment; see headrace.evaluate. seed: None for the run's own."""
        seed = self.seed if seed is None else seed
        return evaluate(self.policy, self.env, episodes, seed, deterministic, **self.eval_env_kwargs)

    @property
    def best(self) -> Policy:
        """The policy with the best evaluation or, without evaluations, the best mean return of training episodes."""
        return load(self.path / BEST)

    @property
    def interrupted(self) -> bool:
        """True if Ctrl-C, SIGTERM or SIGHUP came, so that a script should end too. The signal ended the training only
        if it is also the `reason`."""
        return bool(self.signal)

    @property
    def resume_command(self) -> str:
        """The shell command that resumes this run, or a call in Python if that needs objects of yours."""
        if self.needed_to_resume:
            given = "".join(f", {name}=..." for name in self.needed_to_resume)
            return f"headrace.train(resume={str(shown(self.path))!r}{given})"
        return f"headrace train --resume {shlex.quote(str(shown(self.path)))}"

    def __repr__(self) -> str:
        mean = self.metrics.get("return")
        reached = "no episode ended" if mean is None else f"return {mean:.4g}"
        if (success := self.metrics.get("success_rate")) is not None:
            reached += f", success rate {success:.0%}"
        return (
            f"Run({shown(self.path)}: {self.steps:,} steps in {self.seconds:.2f} s, {reached}, ended by {self.reason})"
        )


def new_folder(log_folder: str | Path, algorithm: str, env: str) -> Path:
    """Make runs/<algorithm>/<env>_<n>/ with the next free n. Two runs that start at once get two folders.

    Raises OSError, naming the folder, where none can be made.
    """
    parent = Path(log_folder) / algorithm
    stem = re.sub(r"[^\w.-]+", "-", env).strip("-")
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


def remove_unbegun(folder: Path) -> None:
    """Remove the folder of a run that failed before its first step was recorded, unless it has more than a new run."""
    if {path.name for path in folder.iterdir()} <= NEW:
        shutil.rmtree(folder, ignore_errors=True)


def lock(folder: Path, holder: bool = True) -> TextIO:
    """Lock a run's folder until the returned file is closed or its process ends. Read the folder after this call, since
    another training may change it before.

    holder: whether this process is going to write there; its name is then shown to other processes that try.
    Raises RuntimeError, naming the process, if another training has the lock: two would damage each other's files.
    """
    with writing(folder / COMMANDS):
        file = open(folder / COMMANDS, "a")  # noqa: SIM115
    if fcntl is not None:
        try:
            _lock(file)
        except BlockingIOError as error:
            file.close()
            who = _holder(folder)
            raise RuntimeError(
                f"another training{who} is writing to {folder}: wait until it ends, or stop it"
            ) from error
        except OSError:  # a file system without locks
            pass
    if holder:
        with suppress(OSError):
            (folder / HOLDER).write_text(f"process {os.getpid()} on {platform.node()}")
    return file


def _holder(folder: Path) -> str:
    """The process that has locked a run's folder, in parentheses; empty if unknown."""
    with suppress(OSError, UnicodeDecodeError):
        return f" ({ascii((folder / HOLDER).read_text()[:100])[1:-1]})"
    return ""


def _lock(file: TextIO) -> None:
    """Lock a file. Raises BlockingIOError if another process keeps the lock for longer than MOMENT. runs.listing has it
    for microseconds, to see whether a run is being written."""
    until = monotonic() + MOMENT
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # type: ignore[no-any-return]
        except BlockingIOError:
            if monotonic() > until:
                raise
            sleep(MOMENT / 10)


def starts(folder: Path) -> int:
    """Number of times that the training of a run's folder was started; 0 if unknown."""
    try:
        check_file(folder / COMMANDS)
        return (folder / COMMANDS).read_bytes().count(b"\n")
    except OSError:
        return 0


def ended_by(folder: Path) -> str:
    """The reason for the end of a run's training, as Run.reason: a limit, a signal, or the user's own word. Empty while
    it runs, and if it ended without saving: by an exception, or killed."""
    try:
        manifest = checkpoint.read_manifest(folder / LAST)
    except (OSError, ValueError, checkpoint.DamagedCheckpoint):  # there is none, or it cannot be read
        return ""
    since = starts(folder)
    is_of_last_start = manifest.get("starts", since) == since or not since
    return str(manifest.get("ended_by", "")) if is_of_last_start else ""


def describe(folder: Path, config: str) -> None:
    """Write config.toml, and to command.txt one line for each start of the run. Raises OSError, naming the file."""
    with writing(folder / "config.toml"):
        checkpoint.write_file(folder / "config.toml", config.encode())
    with writing(folder / COMMANDS), open(folder / COMMANDS, "a") as file:
        file.write(shlex.join(sys.argv) + "\n")


def identity(policy: Policy) -> Json:
    """The manifest's entry from which load() builds the policy."""
    kind = type(policy)
    return {"class": f"{kind.__module__}:{kind.__qualname__}", "config": policy.config()}


def difference_from(policy: Policy, saved: Json) -> str:
    """Describe the difference between a policy and the one with identity() `saved`; empty if only weights differ."""
    members = saved["config"].get("members", [])
    parts = list(policy.policies) if isinstance(policy, GroupedPolicy) else []
    if len(parts) != len(members):
        return "groups of agents"
    if members:
        found = [difference_from(part, member) for part, member in zip(parts, members, strict=True)]
        return next(filter(None, found), "")
    kind, (module, _, qualname) = type(policy), saved["class"].partition(":")
    if f"{MOVED.get(module, module)}:{qualname}" != f"{kind.__module__}:{kind.__qualname__}":
        return f"a {qualname}, not a {kind.__qualname__}"
    return difference(kind, policy.config(), saved["config"])


def learned_facts(statistics: Sequence[Json]) -> Json:
    """The manifest's entry for statistics that wrappers of environments have learned, if there are any."""
    return {LEARNED: list(statistics)} if statistics else {}


def save(policy: Policy, folder: str | Path) -> Path:
    """Write a policy to a folder for load(), replacing one that was there. Returns the folder.

    Use it for a training that you step yourself: `hr.save(trainer.policy, "my_policy")`. A folder of train() has more.
    Raises OSError where the folder cannot be written.
    """
    check_policy(policy, "save")
    statistics = getattr(policy, "wrapper_statistics", ())
    checkpoint.save(folder, {"policy": policy.state_dict()}, policy=identity(policy), **learned_facts(statistics))
    return Path(folder)


def load(path: str | Path, policy_class: type[Policy] | None = None, which: str = "") -> Policy:
    """Load the policy of a run's folder, or of its best/, last/ or step_N/. Needs no environment.

    `action, state = policy.predict(observation)` takes one observation or a batch of them, as NumPy arrays.
    which: "best" or "last" of a run's folder; by default the best, or the last if there is no best.
    policy_class: for a policy whose class is not Headrace's own.
    Raises FileNotFoundError, DamagedCheckpoint, and ValueError for an unknown class.
    """
    if which not in ("", BEST, LAST):
        raise ValueError(f"which must be 'best' or 'last', got {which!r}")
    return load_with_folder(path, [which] if which else [BEST, LAST], policy_class)[0]


def load_with_folder(
    path: str | Path, names: Sequence[str], policy_class: type[Policy] | None = None
) -> tuple[Policy, Path]:
    """Load the policy of the first of some checkpoints, as load() does. Returns the policy and its folder."""
    folder, manifest, weights = checkpoint.read(path, *names, state="policy")
    with checkpoint.using(folder, manifest, "it describes no policy that can be made"):
        saved = manifest["policy"]
        kind = policy_class or _policy_class(saved["class"])
        policy = kind.from_config(saved["config"])
        policy.load_state_dict(weights)
        policy.wrapper_statistics = list(manifest.get(LEARNED, []))
    return policy.eval(), folder


def _policy_class(name: str) -> type[Policy]:
    module, _, qualname = name.partition(":")
    module = MOVED.get(module, module)
    # a checkpoint is data: it may name a policy of Headrace, but must not cause another module to be imported
    if not of_headrace(module):
        raise ValueError(f"this policy is a {name}, not one of Headrace's own: give load(path, policy_class=...)")
    kind = getattr(import_module(module), qualname)
    if not (isinstance(kind, type) and issubclass(kind, Policy)):
        raise TypeError(f"{name} is no policy")
    return kind
