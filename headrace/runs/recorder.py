"""Writes the files of a run while it trains: logs, evaluations, checkpoints, the best policy, and messages."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, TextIO

from headrace.algorithms.base import is_offline
from headrace.core.device import torch_threads
from headrace.core.looking import users_code
from headrace.core.processes.state import shown
from headrace.core.stopping import Stopped, close
from headrace.core.types import Json, StateDict
from headrace.data.finite import NotFinite
from headrace.evaluation.history import RATED
from headrace.evaluation.playing import Evaluation
from headrace.evaluation.recipe import can_be_made, source_of
from headrace.runs import checkpoint
from headrace.runs.evaluations import MOST_QUEUED, Evaluations, Queued, cancelling, copied, statistics_with
from headrace.runs.logs import COUNTERS, Logs
from headrace.runs.progress import Progress, summary
from headrace.runs.replay_files import ReplayFiles
from headrace.runs.run import BEST, LAST, LEARNED, Run, describe, identity, learned_facts, lock, starts
from headrace.runs.saver import Saver
from headrace.runs.sb3_scalars import sb3_scalars
from headrace.runs.signals import Interrupts
from headrace.training.config import to_toml
from headrace.training.iteration import IterationResult
from headrace.training.trainer import Trainer

if TYPE_CHECKING:
    from headrace.runs.trackers import Tracker

EVALUATED = ("eval_return", "eval_std", "eval_length")  # columns of evaluations
SAVE_EVERY = 60.0  # s of training between two saves of last/ and best/: the most that a crash can cost ...
SAVE_SHARE = 0.05  # ... unless saving then takes more than this share of the time: on a slow disk saves are rarer
CHOICE_EPISODES = 10  # episodes that compare the last policy with the one after the best window


class Recorder:
    """Writes a trainer's run to `folder`. Use it as a context manager around the training.

    A thread writes checkpoints from copies; the next call of record() or finish() raises its exceptions. best/ is the
    policy with the best evaluation. With eval_freq = 0 it is the policy after the best window of training episodes,
    unless the last policy is as good in 10 episodes of each at the end. If the returns of agents cancel, their mean is
    meaningless, and best/ is the last policy.
    locked: the file of lock(folder), if the folder's checkpoint had to be read before.
    """

    def __init__(self, trainer: Trainer, folder: Path, locked: TextIO | None = None) -> None:
        if trainer.config.eval_freq and not trainer.env.single:
            source_of(trainer.plan.env)  # raises errors of the first evaluation now
        self.trainer, self.folder = trainer, folder
        self._lock = locked or lock(folder)
        checkpoint.clean_up(folder)
        self._tracker = _tracker(trainer, folder)
        self.logs = Logs(folder, trainer.short_name, trainer.config.log_info, trainer.settings(), self._tracker)
        unit = "gradient steps" if is_offline(trainer.algorithm) else "steps"
        self.progress = Progress(trainer.config.progress, f"{trainer.algorithm.name} on {_short(trainer)}", unit)
        self.interrupts = Interrupts()
        self._best_score: float | None = None
        self._cancelling = False  # whether the returns of agents cancelled in the last evaluation
        self._best: tuple[StateDict, Json] | None = None  # weights and facts not yet written
        self._row: dict[str, float | None] = {}
        self._result = trainer.result()
        self._logged: dict[str, float] = {}  # logged by users since the last row
        self._measured: dict[str, float] = {}  # the algorithm's metrics since the last row: not every iteration has all
        self.chooses = True  # whether finish() compares the last policy with the one after the best window
        self.keep_next = False  # whether the next record() keeps a checkpoint
        self.loop_state: Callable[[], str] = "{}".__str__  # Training's `state` for checkpoints
        self._saved_at, self._save_seconds = trainer.seconds, 0.0
        self._saver = Saver()
        self._replays = ReplayFiles(folder, self._saver, trainer.algorithm.state_dict())
        describe(folder, to_toml(**trainer.settings()))
        if trainer.resources:
            self.progress.say(trainer.resources)
        self._evaluations = Evaluations(trainer, self.progress, self.interrupts)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        self.progress.close()
        self._evaluations.close()
        self._saver.close()
        self._replays.close()
        self.trainer.close()
        if error is not None:
            with suppress(OSError):  # the disk itself may have failed
                self.logs.close()
        self._lock.close()
        if self._tracker is not None:
            close(self._tracker, f"the tracker {self.trainer.config.track}")
        if isinstance(error, KeyboardInterrupt):
            self.progress.say(f"interrupted at once, without saving. {self._last_good()}")
        if isinstance(error, NotFinite):
            raise NotFinite(f"{error}. {self._last_good()}") from error

    def resume(self, saved: Path, positions: Mapping[str, int], evaluations: Sequence[Json] = ()) -> None:
        """Continue the files of the run from where the checkpoint `saved` was made, with the evaluations it holds."""
        self._evaluations.load_state_dict(evaluations)
        self._row = self.logs.rewind(positions, self._result.steps)
        checkpoint.set_aside(saved, self.folder / LAST)
        self._replays.adopt(saved)
        try:
            best, manifest, _ = checkpoint.read(self.folder / BEST, state="policy")
            self._best_score = manifest.get("score")
            checkpoint.set_aside(best, self.folder / BEST)
        except FileNotFoundError:  # there was none yet
            pass
        except checkpoint.DamagedCheckpoint as error:
            warnings.warn(f"{error}. The best policy is chosen again from here on", stacklevel=2)

    def record(self, result: IterationResult) -> None:
        """Log one iteration: its episodes always, the rest when it is due."""
        self._saver.check()
        before, self._result, config = self._result.steps, result, self.trainer.config
        self._measured |= result.metrics
        self.logs.episodes(result.returns, result.lengths, result.seconds, result.infos)
        self.logs.fragments(result.fragments)
        if passed(config.eval_freq, before, result.steps):
            self._evaluate()
        self._take_results()
        if config.eval_freq == 0 and result.window_full:
            self._offer(result.details.get(RATED, result.mean_return))
        if self.logs.due(result.seconds):
            self._write_row()
        keep = self.keep_next or passed(config.save_freq, before, result.steps)
        if keep:
            self.keep_next = False
            # an existing one is of this step too: a run resumed from before it reaches the step again
            self._save(self.folder / f"step_{result.steps}", keep_previous=False)
        if keep or result.seconds - self._saved_at > max(SAVE_EVERY, self._save_seconds / SAVE_SHARE):
            self._save_last()
        self._replays.follow()
        for note in result.notes:
            self.progress.say(note)
        self.progress.show(result)

    def save(self) -> None:
        """Write the present state of the training to last/."""
        self._save_last()

    def log(self, name: str, value: float) -> None:
        """Add a number of the user's to the next row. Raises ValueError for the name of a column, TypeError for a value
        that is not a number."""
        if name in self._result.row() or name in EVALUATED:
            raise ValueError(f"rows of metrics have a {name!r} of their own: log it under another name")
        try:
            self._logged[name] = float(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"log() takes numbers, and {name!r} is {value!r}") from error

    def evaluate(self, episodes: int) -> Evaluation:
        """Evaluate the present policy in the reference environment."""
        return self._evaluations.now(self._evaluations.queued({}), episodes, stops=False)

    def finish(self, reason: str) -> Run:
        """Write the last row, last/ and best/. Returns the Run."""
        self._take_results(left=0)
        if self._evaluations.queue:  # a signal cut them short
            reason = self.interrupts.caught
        trainer, result = self.trainer, replace(self._result, seconds=self.trainer.seconds)
        self.progress.close()
        self._saver.wait()
        if result.metrics and (self._logged or self._row.get("steps") != result.steps):
            self._write_row()
        if self._cancelling or (self._best is None and not (self.folder / BEST).exists()):
            # the score of an evaluation does not compare with a mean of training episodes
            self._keep(None if trainer.config.eval_freq else result.details.get(RATED, result.mean_return))
        self._save_last(ended_by=reason)  # first: the reason stays, whatever happens next, see run.ended_by()
        self._saver.wait()
        if self._evaluations.shared is None:
            trainer.close()  # frees the training's environments before those that choose the best policy are made
        if self.chooses and not self.interrupts.caught:
            self._choose()
            self._saver.wait()
        trainer.close()
        self.logs.close()
        run = Run(
            self.folder,
            trainer.policy,
            trainer.algorithm.name,
            trainer.plan.env,
            result.steps,
            result.seconds,
            self._row,
            reason,
            self.interrupts.caught,
            trainer.config.seed,
            self._evaluations.env_kwargs,
            trainer.needed_to_resume(),
        )
        if trainer.gave_up:
            self.progress.say(f"the last rollout is not part of the run: {reason} came in the middle of it")
        self.progress.say(summary(result, reason, self.progress.unit))
        self.progress.say(f"to go on: {run.resume_command}" if reason == run.signal else f"{shown(run.path)}")
        return run

    def _evaluate(self) -> None:
        """Request an evaluation of the present policy."""
        if self.trainer.config.parallel_evaluation:
            self._write_row()  # the evaluation's row follows
            self._take_results(MOST_QUEUED - 1)
        row = self._result.row()
        self._evaluations.add({name: row[name] for name in COUNTERS})

    def _take_results(self, left: int = MOST_QUEUED) -> None:
        """Log finished evaluations, and keep the best policy. left: see Evaluations.results()."""
        for queued, result in self._evaluations.results(left):
            self._cancelling = cancelling(result)
            if is_offline(self.trainer.algorithm):
                self.trainer.limits.evaluated = result.mean
            steps = queued.counters["steps"]
            if self._cancelling:
                self._keep(result.mean, queued)
            else:
                self._offer(result.mean, queued)
            self._write_evaluation(queued, result)
            self.progress.say(f"{steps:,} {self.progress.unit}: {result}")

    def _write_evaluation(self, queued: Queued, result: Evaluation) -> None:
        """Write the row of an evaluation: the row of its step, or a separate one if that is written already."""
        length = sum(result.lengths) / len(result.lengths)
        found = dict(zip(EVALUATED, (result.mean, result.std, length), strict=True))
        for name, mean in result.means().items():
            found["eval_success_rate" if name == "is_success" else f"eval/{name}"] = mean
        steps, written = queued.counters["steps"], self._row.get("steps")
        if steps == self._result.steps != written:
            self._write_row(found)
            return
        self.logs.row(queued.counters | found)
        if steps == written:
            self._row |= found

    def _choose(self) -> None:
        """Make the last policy the best one, unless the policy after the best window of training episodes is better."""
        best = checkpoint.read_manifest(self.folder / BEST)
        if (
            self.trainer.config.eval_freq
            or self.trainer.config.self_play  # in whose evaluation both players would be the policy
            or best["steps"] == self._result.steps
            or (self._evaluations.shared is None and not can_be_made(self.trainer.plan.env))
        ):
            return
        try:
            last = self._evaluations.queued({})
            kept = Queued({}, checkpoint.load(self.folder / BEST, "policy"), best.get(LEARNED, ()))
            mine, other = (self._evaluations.now(x, CHOICE_EPISODES, reference=False) for x in (last, kept))
        except Stopped:
            came = self.interrupts.caught
            self.progress.say(f"{self.folder / BEST} is chosen by training episodes alone: {came} came first")
            return
        except Exception as error:
            self.progress.say(f"{self.folder / BEST} is chosen by training episodes alone: {error}")
            return
        if other.mean > mine.mean and not cancelling(other):
            return
        self._keep(self._best_score)
        self._save_best()

    def _offer(self, score: float | None, queued: Queued | None = None) -> None:
        """Keep a policy if no earlier one was better; see _keep()."""
        if score is not None and (self._best_score is None or score > self._best_score):
            self._keep(score, queued)

    @users_code()
    def _keep(self, score: float | None, queued: Queued | None = None) -> None:
        """Keep the weights of an evaluation as the best ones; None: the present weights. The next save writes them."""
        self._best_score = score
        if queued is None:
            policy = self.trainer.policy
            queued = Queued({"steps": self._result.steps}, copied(policy), statistics_with(policy))
        facts = {"score": score, "steps": queued.counters["steps"], **learned_facts(queued.statistics)}
        self._best = queued.weights, facts

    def _write_row(self, evaluation: Json | None = None) -> None:
        self._row = self._result.row() | self._measured | self._logged | (evaluation or {})
        self._logged, self._measured = {}, {}
        self.logs.row(self._row, sb3_scalars(self.trainer.algorithm))

    def _save_last(self, ended_by: str | None = None) -> None:
        started = perf_counter()
        self._saved_at, self._save_seconds = self._result.seconds, math.inf  # not known before it is written
        self._save_best()  # before last/: a run resumed from last/ does not write it again
        ending = {} if ended_by is None else {"ended_by": ended_by, "starts": starts(self.folder)}
        self._save(self.folder / LAST, ending)
        self._replays.replaced()

        def measure() -> None:
            self._save_seconds = perf_counter() - started

        self._saver.submit(measure)

    def _save_best(self) -> None:
        if self._best is not None:
            weights, facts = self._best
            contents = checkpoint.contents({"policy": weights}, self._replays.keep)
            self._saver.submit(
                checkpoint.save, self.folder / BEST, contents, policy=identity(self.trainer.policy), **facts
            )
            self._best = None

    @users_code()
    def _save(self, folder: Path, facts: Json | None = None, keep_previous: bool = True) -> None:
        trainer, result = self.trainer, self._result
        with torch_threads(1):  # see ReplayFiles.follow()
            states = {
                "policy": trainer.policy.state_dict(),
                "training": {
                    **trainer.state_dict(),
                    "evaluations": self._evaluations.state_dict(),
                    "loop": self.loop_state(),
                },
            }
            contents = checkpoint.contents(states, self._replays.keep)
        positions = self.logs.positions()
        self._saver.submit(self.logs.sync)
        self._saver.submit(
            checkpoint.save,
            folder,
            contents,
            keep_previous,
            policy=identity(trainer.policy),
            settings=trainer.settings(),
            counters={"steps": result.steps, "seconds": result.seconds, "episodes": result.episodes},
            positions=positions,
            **learned_facts(statistics_with(trainer.policy)),
            **(facts or {}),
        )

    def _last_good(self) -> str:
        if (self.folder / LAST).exists():
            return f"The last good checkpoint is {shown(self.folder / LAST)}"
        return f"There is no checkpoint yet: one is written about every {SAVE_EVERY:.0f} s, and every save_freq steps"


def _short(trainer: Trainer) -> str:
    """The environment's name; the path of a file is relative to the working folder."""
    place, colon, name = trainer.env.name.rpartition(":")
    return f"{shown(Path(place))}{colon}{name}" if colon else name


def _tracker(trainer: Trainer, folder: Path) -> Tracker | None:
    """Make the tracker that the settings name."""
    if trainer.config.track is None:
        return None
    from headrace.runs.trackers import tracker

    return tracker(trainer.config.track, folder, trainer.settings())


def passed(every: int, before: int, steps: int) -> bool:
    """Tell whether an iteration passed a multiple of `every` steps."""
    return every > 0 and steps // every > before // every
