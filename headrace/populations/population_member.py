"""A member of a population: a run that is trained one interval at a time, from the checkpoint at its beginning."""

from __future__ import annotations

import shutil
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Literal

from headrace.algorithms.base import Algorithm
from headrace.core.text import is_message
from headrace.core.types import EnvArgument, Json, Settings
from headrace.runs import checkpoint
from headrace.runs.recorder import Recorder
from headrace.runs.task_processes import NotTogether
from headrace.training.iteration import IterationResult
from headrace.training.loop import Training
from headrace.training.trainer import Trainer

Each = Callable[[Training, IterationResult], None]
Score = Literal["training", "evaluation"]
AT_ITS_END = "interval"  # reason for the end of such a training


@dataclass(frozen=True)
class Interval:
    """A member's training for an interval."""

    member: int
    folder: Path  # of the run
    algorithm: str | Algorithm
    env: EnvArgument
    settings: Settings  # for the first interval all that the user gave; later those that may have changed
    start: str | None  # name of the checkpoint to continue from; None for a new run
    until: int  # environment steps
    last: bool
    score: Score
    each: Each | None = None
    config: str | Path | None = None
    together: bool = False  # whether it is trained in a thread, at the same time as other members


@dataclass(frozen=True)
class Outcome:
    """The result of a member's training for an interval."""

    member: int
    steps: int = 0
    score: float | None = None  # None if no episode has ended
    signal: str = ""  # the signal that ended it
    failed: str = ""  # its exception

    def row(self) -> Json:
        """Entry of an outcome in population.jsonl."""
        return {"failed": self.failed} if self.failed else {"steps": self.steps, "score": self.score}


class _Member(Training):
    """A training in a folder of this name."""

    def __init__(self, interval: Interval) -> None:
        resume = None if interval.start is None else interval.folder / interval.start
        self._own_folder, self._chooses, self._together = interval.folder, interval.last, interval.together
        given = {**interval.settings, **({"config": interval.config} if interval.start is None else {})}
        name = interval.algorithm if resume is None or not isinstance(interval.algorithm, str) else None
        super().__init__(name, interval.env, resume=resume, on_interrupt="return", **given)

    def _new_folder(self, trainer: Trainer) -> Path:
        shutil.rmtree(self._own_folder, ignore_errors=True)  # left by a training that was killed in its first interval
        self._own_folder.mkdir(parents=True)
        return self._own_folder

    def _record_by(self, recorder: Recorder) -> None:
        recorder.chooses = self._chooses
        super()._record_by(recorder)
        if self._together:
            from headrace.runs.task_threads import check_together

            check_together(recorder.trainer)


def train(interval: Interval, ask: object = None) -> Outcome:
    """Train a member for an interval. A failure is an outcome, too, except settings that raise NotTogether."""
    try:
        return _train(interval)
    except NotTogether:
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = "" if is_message(error) else f" ({place.filename}, line {place.lineno})"
        return Outcome(interval.member, failed=f"{type(error).__name__}: {error}{where}")


def _train(interval: Interval) -> Outcome:
    with _Member(interval) as t:
        config = t.trainer.config
        returns, evaluated = deque[float](maxlen=config.window), None
        for row in t:
            if interval.each is not None:
                interval.each(t, row)
            returns.extend(row.returns)
            if row.steps >= interval.until:
                if interval.score == "evaluation":
                    evaluated = t.evaluate(config.eval_episodes).mean
                if not interval.last:
                    t.save()
                    t.stop(AT_ITS_END)
    if t.run.interrupted:
        return Outcome(interval.member, signal=t.run.signal)
    if t.run.steps < interval.until:
        ended = f"its training has ended at step {t.run.steps:,} ({t.run.reason})"
        raise RuntimeError(f"{ended}, before the end of the interval at {interval.until:,}")
    known = returns or t.trainer.episodes.returns  # if none has ended in the interval, earlier ones
    score = fmean(known) if evaluated is None and known else evaluated
    return Outcome(interval.member, t.run.steps, score)


@dataclass(frozen=True)
class Decision:
    """The source and the settings with which a member continues after an interval."""

    member: int
    source: int  # the member whose state it continues from: itself, or another one
    start: str | None  # name of the source's checkpoint; None at the beginning
    own: str | None  # name of its own checkpoint: its logs continue from there
    settings: Json = field(default_factory=dict)

    @classmethod
    def of(cls, row: Json) -> Decision:
        """Read the decision of a row in population.jsonl."""
        return cls(row["member"], row["from"], row["start"], row["own"], row["settings"])

    def row(self) -> Json:
        """Entry of a decision in population.jsonl."""
        return {
            "member": self.member,
            "from": self.source,
            "start": self.start,
            "own": self.own,
            "settings": self.settings,
        }

    def prepare(self, folder: Path, seed: int) -> None:
        """Copy the checkpoint that a replaced member begins with. May be called again.

        The copy has the source's weights, optimizer, replay buffer, environments and counters, and the member's own
        seed, logs and seconds of training. seed: the member's."""
        if self.source == self.member:
            return
        assert self.start is not None
        own, source = folder / name_of(self.member), folder / name_of(self.source) / self.start
        manifest = checkpoint.read_manifest(source)
        positions, seconds = {}, 0.0
        if self.own is None:  # it has failed in its first interval
            shutil.rmtree(own, ignore_errors=True)
            own.mkdir()
        else:
            mine = checkpoint.read_manifest(own / self.own)
            positions, seconds = mine["positions"], mine["states"]["training"]["learner"]["seconds"]
        manifest["states"]["training"]["learner"]["seconds"] = seconds
        settings = {**manifest["settings"], **self.settings, "seed": seed}
        facts = {"settings": settings, "positions": positions, "states": manifest["states"]}
        checkpoint.copied(source, own / self.start, **facts)


def name_of(member: int) -> str:
    """The name of a member's folder."""
    return f"member_{member}"
