"""What a run writes while it trains: logs, evaluations, checkpoints, the best policy, and messages."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter

from headrace.core.types import Json, StateDict
from headrace.data.finite import NotFinite
from headrace.evaluation.evaluator import evaluate, source_of
from headrace.runs import checkpoint
from headrace.runs.logs import Logs
from headrace.runs.progress import Progress, summary
from headrace.runs.run import BEST, LAST, Run, describe, identity, lock
from headrace.training.config import to_toml
from headrace.training.iteration import IterationResult
from headrace.training.trainer import Trainer

SAVE_EVERY = 60.0  # s of training between two saves of last/ and best/: what a crash can cost at most ...
SAVE_SHARE = 0.05  # ... where saving takes less than this share of the time; a large replay takes longer


class Recorder:
    """Writes a trainer's run to `folder`. Use it as a context manager around the training.

    The best policy is the one with the best evaluation; with eval_freq = 0, with the best mean return over a full
    window of training episodes.
    """

    def __init__(self, trainer: Trainer, folder: Path) -> None:
        if trainer.config.eval_freq:
            source_of(trainer.plan.env)  # raises now where the first evaluation would
        self.trainer, self.folder = trainer, folder
        self._lock = lock(folder)
        checkpoint.clean_up(folder)
        self.logs = Logs(folder, trainer.short_name)
        self.progress = Progress(trainer.config.progress, f"{trainer.algorithm.name} on {trainer.env.name}")
        self._best_score: float | None = None
        self._best: tuple[StateDict, Json] | None = None  # weights and facts not yet written
        self._evaluation: dict[str, float | None] = {}
        self._row: dict[str, float | None] = {}
        self._result = trainer.result()
        self._saved_at, self._save_seconds = trainer.seconds, 0.0
        settings = trainer.settings()
        describe(folder, to_toml(**settings))
        if trainer.resources:
            self.progress.say(trainer.resources)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        self.progress.close()
        self.trainer.close()
        if error is not None:
            with suppress(OSError):  # the disk may be what has failed
                self.logs.close()
        self._lock.close()
        if isinstance(error, KeyboardInterrupt):
            self.progress.say(f"interrupted at once, without saving. {self._last_good()}")
        if isinstance(error, NotFinite):
            raise NotFinite(f"{error}. {self._last_good()}") from error

    def resume(self, saved: Path, positions: Mapping[str, int]) -> None:
        """Continue the files of the run from where the checkpoint `saved` was made."""
        self._row = self.logs.rewind(positions, self._result.steps)
        checkpoint.set_aside(saved, self.folder / LAST)
        try:
            best, manifest, _ = checkpoint.read(self.folder / BEST, state="policy")
            self._best_score = manifest.get("score")
            checkpoint.set_aside(best, self.folder / BEST)
        except FileNotFoundError:  # there was none yet
            pass
        except checkpoint.DamagedCheckpoint as error:
            warnings.warn(f"{error}. The best policy is chosen anew from here on", stacklevel=2)

    def record(self, result: IterationResult) -> None:
        """Log one iteration: its episodes always; the rest as it comes due."""
        before, self._result, config = self._result.steps, result, self.trainer.config
        self.logs.episodes(result.returns, result.lengths, result.seconds)
        if _passed(config.eval_freq, before, result.steps):
            self._evaluate()
        elif config.eval_freq == 0 and result.window_full:
            self._offer(result.mean_return)
        if self.logs.due(result.seconds):
            self._write_row()
        keep = _passed(config.save_freq, before, result.steps)
        if keep:
            self._save(self.folder / f"step_{result.steps}")
        if keep or result.seconds - self._saved_at > max(SAVE_EVERY, self._save_seconds / SAVE_SHARE):
            self._save_last()
        self.progress.show(result)

    def finish(self, reason: str) -> Run:
        """Write the last row, last/ and best/, and give the Run."""
        trainer, result = self.trainer, self._result
        self.progress.close()
        if result.metrics and self._row.get("steps") != result.steps:
            self._write_row()
        if self._best is None and not (self.folder / BEST).exists():
            self._keep(result.mean_return)
        self._save_last()
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
            trainer.config.seed,
            trainer.config.eval_env_kwargs(),
        )
        self.progress.say(summary(result))
        self.progress.say(
            f"stopped by {run.reason}; go on with: {run.resume_command}" if run.interrupted else f"{run.path}"
        )
        return run

    def _evaluate(self) -> None:
        config = self.trainer.config
        alike = config.eval_env_kwargs()
        result = evaluate(self.trainer.policy, self.trainer.plan.env, config.eval_episodes, config.seed, **alike)
        self._offer(result.mean)
        length = sum(result.lengths) / len(result.lengths)
        self._evaluation = {"eval_return": result.mean, "eval_std": result.std, "eval_length": length}
        self._write_row()
        self.progress.say(f"{self._result.steps:,} steps: {result}")

    def _offer(self, score: float | None) -> None:
        """Keep the policy as it is now, if none before was better. The next save writes it."""
        if score is not None and (self._best_score is None or score > self._best_score):
            self._keep(score)

    def _keep(self, score: float | None) -> None:
        self._best_score = score
        weights = {name: tensor.clone() for name, tensor in self.trainer.policy.state_dict().items()}
        self._best = weights, {"score": score, "steps": self._result.steps}

    def _write_row(self) -> None:
        self._row = self._result.row() | self._evaluation
        self._evaluation = {}
        self.logs.row(self._row)

    def _save_last(self) -> None:
        started = perf_counter()
        if self._best is not None:  # before last/: what resumes from there does not write it again
            weights, facts = self._best
            checkpoint.save(self.folder / BEST, {"policy": weights}, policy=identity(self.trainer.policy), **facts)
            self._best = None
        self._save(self.folder / LAST)
        self._saved_at, self._save_seconds = self._result.seconds, perf_counter() - started

    def _save(self, folder: Path) -> None:
        trainer, result = self.trainer, self._result
        checkpoint.save(
            folder,
            {"policy": trainer.policy.state_dict(), "training": trainer.state_dict()},
            policy=identity(trainer.policy),
            settings=trainer.settings(),
            counters={"steps": result.steps, "seconds": result.seconds, "episodes": result.episodes},
            positions=self.logs.positions(),
        )

    def _last_good(self) -> str:
        if (self.folder / LAST).exists():
            return f"The last good checkpoint is {self.folder / LAST}"
        return f"There is no checkpoint yet: one is written every {SAVE_EVERY:.0f} s, and every save_freq steps"


def _passed(every: int, before: int, steps: int) -> bool:
    """Whether an iteration passed a multiple of `every` steps."""
    return every > 0 and steps // every > before // every
