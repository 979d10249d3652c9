"""`headrace sweep ALGORITHM ENV --search ...`: search for settings with Optuna."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from headrace.cli import pairs
from headrace.cli.setting_flags import named_code
from headrace.cli.several.sweep_trials import NO_SELF_PLAY, PRUNED, Elsewhere, Here, Outcome, Report
from headrace.cli.train import trained
from headrace.core.cores import cores
from headrace.core.packages import require
from headrace.core.terminal import say
from headrace.core.text import plain_table
from headrace.core.types import Json
from headrace.core.writing import writing
from headrace.envs.construct import entry_of
from headrace.runs.run import lock
from headrace.tuning import search_space
from headrace.tuning.search_space import Space, combinations, flags

if TYPE_CHECKING:
    from optuna import Study
    from optuna.trial import FrozenTrial, Trial

DESCRIPTION = """Search settings: headrace sweep ppo CartPole-v1 --search learning_rate=1e-4..1e-2 clip=0.1,0.2,0.3

Each trial is a training. Its score is the mean return of its last policy in --final-episodes episodes. A trial whose
learning curve is below the median of earlier trials is pruned. The same command continues a sweep that was interrupted
and, with more --trials, one that has ended.

All other flags are those of `headrace train`, for all trials."""
STUDY = "study.jsonl"  # Optuna's journal, in the sweep's folder
INTERRUPTED = "interrupted"  # marks trials to repeat


@dataclass(frozen=True)
class Sweep:
    """The search space, and the sweep's folder."""

    algorithm: tyro.conf.Positional[str]
    env: tyro.conf.Positional[str]
    # settings and their ranges (LOW..HIGH, on a logarithmic scale from a ratio of 10 on) or values (A,B,C), each of
    # which is tried, and lists alone in all combinations before one is tried again
    search: tuple[str, ...]
    trials: int = 20  # total number, including earlier calls
    # trials at the same time, in processes that share the cores; None: one, or with together the number of cores
    jobs: int | None = None
    together: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False  # trials in threads of one process
    folder: Path | None = None  # of the sweep; without it, runs/sweeps/ALGORITHM-ENV
    pruning: Annotated[bool, tyro.conf.FlagCreatePairsOff] = True  # end trials that learn worse than most
    sampler_seed: int = 0  # seed of the choice of settings

    @property
    def at_once(self) -> int:
        """Number of trials at the same time."""
        return self.jobs if self.jobs is not None else cores() if self.together else 1


def main(arguments: list[str]) -> None:
    """Search, and print a table of the trials and the command that trains with the best settings."""
    options, rest = pairs.cli(Sweep, "sweep", DESCRIPTION, args=arguments, return_unknown_args=True)
    require("optuna", "sweeps need Optuna: pip install 'headrace[sweep]'")
    if options.trials < 1 or options.at_once < 1:
        raise ValueError(f"--trials and --jobs must be at least 1, got {options.trials} and {options.at_once}")
    space = search_space.parsed(options.search, options.algorithm)
    names = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in rest if word.startswith("--")}
    if both := names & space.keys():
        raise ValueError(f"--search has {', '.join(sorted(both))}: leave out the flag of that name")
    if "self_play" in names:
        raise ValueError(NO_SELF_PLAY)
    with named_code(rest):
        entry_of(options.env)  # raises here, rather than in each trial, if it does not exist
    stem = f"{options.algorithm}-{options.env}".replace("/", "-").replace(":", "-")
    folder = options.folder or Path("runs/sweeps") / stem
    with writing(folder, "the sweep"):
        folder.mkdir(parents=True, exist_ok=True)
    folder = folder.absolute()
    with named_code(rest), lock(folder), writing(folder / STUDY, "the sweep"):
        study = _study(folder, options, space, rest)
        _Searching(study, folder, options, space, rest).run()
    _print(study, options, space, rest)


def _study(folder: Path, options: Sweep, space: Space, rest: Sequence[str]) -> Study:
    """Open the study in a folder, or begin one. Raises ValueError for a study with other settings."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    _mend(folder / STUDY)
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / STUDY)))
    study = optuna.create_study(
        storage=storage, study_name=folder.name, direction="maximize", load_if_exists=True, pruner=_pruner(options)
    )
    study.sampler = optuna.samplers.TPESampler(
        seed=options.sampler_seed + len(study.trials), constant_liar=options.at_once > 1
    )
    about = {"algorithm": options.algorithm, "env": options.env, "search": sorted(options.search), "flags": list(rest)}
    before = study.user_attrs.get("about")
    if before not in (None, about):
        changed = [f"{name} {before[name]} -> {value}" for name, value in about.items() if before[name] != value]
        raise ValueError(f"{folder} has a sweep of other settings ({'; '.join(changed)}): give another --folder")
    study.set_user_attr("about", about)
    return study


def _mend(journal: Path) -> None:
    """Cut off an incomplete last line of a journal, which a killed sweep or a full disk has left: Optuna would append
    to it. No other process may be using the journal. Raises ValueError, naming the line, for other damage."""
    journal.with_name(f"{journal.name}.lock").unlink(missing_ok=True)  # otherwise Optuna waits for half a minute
    if not journal.exists():
        return
    content = journal.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            json.loads(line)
        except ValueError as error:
            raise ValueError(
                f"line {number} of {journal} is damaged ({error}): remove it and those after it to go on from there, "
                "or give another --folder"
            ) from error
    if len(whole) < len(content):
        os.truncate(journal, len(whole))


def _pruner(options: Sweep) -> Any:
    from optuna.pruners import MedianPruner, NopPruner

    return MedianPruner(n_startup_trials=4, n_warmup_steps=2) if options.pruning else NopPruner()


class _Searching:
    """Gets settings from a study, runs their trials, and reports the outcomes to it."""

    def __init__(self, study: Study, folder: Path, options: Sweep, space: Space, rest: Sequence[str]) -> None:
        self.study, self.folder, self.options, self.space, self.rest = study, folder, options, space, list(rest)
        self.trials: dict[int, Trial] = {}  # by the number of the task
        self.interrupted = False

    def run(self) -> None:
        """Run trials until there are enough, or a signal comes."""
        self._again()
        jobs, together = min(self.options.at_once, self.options.trials), self.options.together
        executor = Elsewhere(trained, jobs, together) if together or jobs > 1 else Here(trained)
        executor.run(self._tasks(), self._done)
        if self.interrupted:
            say(f"interrupted: the same command goes on with {self.folder}")

    def _again(self) -> None:
        """Queue the settings of trials that were interrupted, or whose process was killed, again."""
        from optuna.trial import TrialState

        trials = self.study.get_trials(deepcopy=False)
        again = {trial.user_attrs.get("again") for trial in trials}
        for trial in trials:
            stale = trial.state == TrialState.RUNNING
            if stale:
                self.study.tell(trial.number, state=TrialState.FAIL)
            if (stale or INTERRUPTED in trial.user_attrs) and trial.number not in again:
                self.study.enqueue_trial(trial.params, user_attrs={"again": trial.number})

    def _tasks(self) -> Iterator[tuple[list[str], Report]]:
        """Arguments and reports of the missing trials."""
        while len(counted(self.study)) < self.options.trials:
            self._queue_untried()
            trial = self.study.ask()
            values = {name: what.suggest(trial, name) for name, what in self.space.items()}
            self.trials[len(self.trials)] = trial

            def report(point: int, mean_return: float, trial: Trial = trial) -> bool:
                trial.report(mean_return, point)
                return trial.should_prune()

            # later flags win, so the user's own override these
            common = ["--log-folder", str(self.folder), "--progress", "none", *self.rest]
            yield [self.options.algorithm, self.options.env, *common, *flags(values)], report

    def _queue_untried(self) -> None:
        """Queue a combination of values in lists that no trial has had, if there is one and nothing is queued."""
        from optuna.trial import TrialState

        trials = self.study.get_trials(deepcopy=False)
        if any(trial.state == TrialState.WAITING for trial in trials):
            return
        tried = [trial.params.items() for trial in trials]
        for values in combinations(self.space, self.options.trials):
            if not any(values.items() <= params for params in tried):
                self.study.enqueue_trial(values)
                return

    def _done(self, number: int, outcome: Outcome) -> None:
        from optuna.trial import TrialState

        trial = self.trials[number]
        trial.set_user_attr("run", outcome.path)
        trial.set_user_attr("steps", outcome.steps)
        trial.set_user_attr("follows", dict(outcome.follows))
        state, score = TrialState.COMPLETE, outcome.score
        if outcome.interrupted:
            trial.set_user_attr(INTERRUPTED, True)
            self.interrupted, state, score = True, TrialState.FAIL, None
        elif outcome.reason == PRUNED:
            state, score = TrialState.PRUNED, None
        elif score is None:
            trial.set_user_attr("error", outcome.error)
            state = TrialState.FAIL
        self.study.tell(trial.number, score, state=state)
        said = f"score {score:.4g}" if score is not None else outcome.error or outcome.reason
        say(f"trial {trial.number}: {', '.join(f'{name}={_cell(x)}' for name, x in trial.params.items())}: {said}")


def counted(study: Study) -> list[FrozenTrial]:
    """Finished trials: all but interrupted ones."""
    return [
        trial
        for trial in study.get_trials(deepcopy=False)
        if trial.state.name in ("COMPLETE", "PRUNED", "RUNNING") or "error" in trial.user_attrs
    ]


def _print(study: Study, options: Sweep, space: Space, rest: Sequence[str]) -> None:
    names = list(space)
    rows = [
        (
            str(trial.number),
            *(_cell(trial.params.get(name)) for name in names),
            _cell(trial.value if trial.state.name == "COMPLETE" else None),
            f"{trial.user_attrs.get('steps', 0):,}",
            trial.state.name.lower(),
            str(trial.user_attrs.get("run", "")),
        )
        for trial in counted(study)
    ]
    say(plain_table([("trial", *names, "score", "steps", "state", "run"), *rows]))
    if differ := _differing({trial.number: trial.user_attrs.get("follows", {}) for trial in counted(study)}):
        say(f"these followed from the settings of a trial, and differ: {differ} (--no-scale keeps them as they are)")
    if any(trial.state.name == "COMPLETE" for trial in study.get_trials(deepcopy=False)):
        best = study.best_trial
        words = flags({name: str(value) for name, value in best.params.items()})
        say(f"best: trial {best.number}, score {best.value:.4g}")
        say(f"  headrace train {shlex.join([options.algorithm, options.env, *rest, *words])}")


def _differing(follows: Mapping[int, Json]) -> str:
    """Settings that followed in some trials, with values that differ, and the trials of each value."""
    parts = []
    for name in dict.fromkeys(name for own in follows.values() for name in own):
        trials: dict[str, list[int]] = {}
        for number, own in follows.items():
            trials.setdefault(_cell(own[name]) if name in own else "as it was", []).append(number)
        if len(trials) > 1:
            parts += [f"{name} {value} in {', '.join(map(str, numbers))}" for value, numbers in trials.items()]
    return "; ".join(parts)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
