"""train(): collect, learn and record until a limit is met; and Training, the same loop with a body of one's own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from torch import nn

from headrace.algorithms.base import Algorithm
from headrace.core.looking import looked_once
from headrace.core.processes.state import held, same_folder
from headrace.core.stopping import Stopped
from headrace.core.types import EnvArgument, Json
from headrace.envs.base import Env
from headrace.evaluation.playing import Evaluation
from headrace.parallel.learners import RankLost
from headrace.policies.base import Policy
from headrace.policies.examination import called_by_training, modules_in, of_users
from headrace.runs.recorder import Recorder, passed
from headrace.runs.run import Run, new_folder, remove_unbegun
from headrace.runs.signals import raise_caught
from headrace.training.iteration import IterationResult
from headrace.training.resuming import closed_on_error, resumed
from headrace.training.scaling import registered_message, scaling_message
from headrace.training.trainer import Trainer

RESTARTS = 3  # largest number of restarts after the loss of one of several learners
COMPILED = ("cpu", "cuda")  # backends of environments that run no Python
PLAIN = (int, float, Path, type(None))
LEFT = "break"  # the reason for a training's end if its loop is left early
building = threading.RLock()  # held while a training is made: threads make their trainings one after another


def train(
    algorithm: str | Algorithm | None = None,
    env: EnvArgument = None,
    *,
    config: str | Path | None = None,
    resume: str | Path | None = None,
    on_interrupt: Literal["raise", "return"] = "raise",
    **options: Any,
) -> Run:
    """Train until a limit is met, and write everything to a run's folder, `runs/<algorithm>/<env>_<n>/`.

    algorithm, env, config, zoo, options: see Trainer. resume: a run's folder, or a checkpoint in one, to continue with
    the settings it had; options may change its limits.
    On Ctrl-C, SIGTERM and SIGHUP it finishes the iteration and saves. A rollout that environments in Python are filling
    is given up instead of finished. on_interrupt: what follows: "raise" KeyboardInterrupt, or for the other signals
    SystemExit, so that a loop over seeds ends too; or "return" the run.
    With several learners, the loss of a process restarts the training from last/, three times at most.
    Raises TypeError, ValueError for wrong settings; RankLost where a learner is lost again; NotFinite where a NaN or
    infinity appears; OSError where the folder cannot be written.
    """
    training = Training(algorithm, env, config=config, resume=resume, on_interrupt=on_interrupt, **options)
    with training, looked_at_once(training.trainer, {"algorithm": algorithm, **options}):
        for _ in training:
            pass
    return training.run


@contextmanager
def looked_at_once(trainer: Trainer, given: Json) -> Iterator[None]:
    """Examine functions and modules once within this block, of a whole training, rather than before each call of a
    kernel, if no code of the user's can change them. given: the training's arguments.

    The conditions are compiled environments; a policy and an algorithm of the package, or of user classes whose methods
    are compiled; and no function or object of the user's among the other settings.
    """
    settings = {name: x for name, x in {**trainer.settings(), **given}.items() if not _is_class(name, x)}
    kinds = {type(trainer.algorithm), *(type(part) for own in _networks(trainer) for part in own.modules())}
    if trainer.env.backend not in COMPILED or not _is_plain(settings) or any(map(called_by_training, kinds)):
        yield
        return
    with looked_once(none_of_the_users=not any(map(of_users, kinds))):
        yield


def _networks(trainer: Trainer) -> list[nn.Module]:
    return [trainer.policy, *modules_in(trainer.algorithm)]


def _is_class(name: str, value: Any) -> bool:
    """True for a class, or its name, as the value of a setting that takes classes."""
    return name in ("algorithm", "env", "policy") and isinstance(value, str | type)


def _is_plain(value: Any) -> bool:
    """True for numbers and text, also in lists and dicts, except names of functions and classes in files or modules."""
    if isinstance(value, str):
        return not (":" in value and value.rpartition(":")[2].isidentifier())
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    return all(map(_is_plain, value)) if isinstance(value, list | tuple) else isinstance(value, PLAIN)


class Training:
    """train() with a body of your own after each iteration:

        with hr.Training("ppo", "CartPole-v1") as t:
            for row in t:
                t.log("level", level)
                if row.mean_return is not None and row.mean_return > 400:
                    t.stop("good enough")

    The arguments are those of train(), and so are the run's folder, resuming, signals and errors. Each `row` is an
    IterationResult. The iteration is recorded once the body is done, so what it logs is in the same row. An exception
    in the body ends the run without saving; last/ is written about every minute, less often on a slow disk.

    state: a dict for the body's own values, in JSON's types: checkpoints hold it, and a resumed training has it again.
    trainer, env, policy: those of the training, within the `with` block; env.set_params(...) changes the environments.
    run: the Run, after the block. With torchrun, the body runs in rank 0 alone.
    """

    def __init__(
        self,
        algorithm: str | Algorithm | None = None,
        env: EnvArgument = None,
        *,
        config: str | Path | None = None,
        resume: str | Path | None = None,
        on_interrupt: Literal["raise", "return"] = "raise",
        **options: Any,
    ) -> None:
        if on_interrupt not in ("raise", "return"):
            raise ValueError(f"on_interrupt must be 'raise' or 'return', got {on_interrupt!r}")
        if resume is not None and "zoo" in options:
            raise ValueError(
                f"zoo={str(options['zoo'])!r} is for a new run: a resumed one has its settings; leave it out"
            )
        self._arguments = (algorithm, env, config, options)
        self._resume, self._on_interrupt = resume, on_interrupt
        self.state: Json = {}
        self._trainer: Trainer | None = None
        self._recorder: Recorder | None = None  # None outside of the block, and where rank 0 records
        self._stack, self._outer = ExitStack(), ExitStack()
        self._run: Run | None = None
        self._row: IterationResult | None = None  # which is not recorded yet
        self._steps = 0  # before it
        self._reason = ""
        self._restarts = 0

    def __enter__(self) -> Self:
        if self._trainer is not None:
            raise RuntimeError("this training has begun already: make another Training for another run")
        with building, ExitStack() as stack:
            stack.enter_context(same_folder())
            self._enter()
            self._outer = stack.pop_all()
        return self

    def _enter(self) -> None:
        """Make a trainer and a recorder."""
        if self._resume is None:
            self._begin()
        else:
            self._continue(Path(self._resume).absolute(), *self._arguments)
        recorder, trainer = self._recorder, self.trainer
        if recorder is None:
            return
        if self._resume is not None and (reason := trainer.reason_to_stop()):
            limit = getattr(trainer.config, reason)
            recorder.progress.say(f"nothing to do: {reason} {limit:,} is reached already; resume with another, or none")
        if trainer.config.learners > 1 or trainer.config.cluster is not None:
            recorder.save()  # a restart continues from here; Ray may end this process without an exception

    def _begin(self) -> None:
        """Make a trainer, and a recorder with a new folder unless another rank records."""
        algorithm, env, config, options = self._arguments
        trainer = self._trainer = Trainer(algorithm, env, config=config, **options)
        if trainer.follows:
            return
        with closed_on_error(trainer):
            recorder = Recorder(trainer, self._new_folder(trainer))
        self._record_by(recorder)
        if trainer.plan.derived:
            recorder.progress.say(scaling_message(trainer.config, trainer.plan.derived))
        if line := _no_episode(trainer):
            recorder.progress.say(line)
        plan = trainer.plan
        if plan.registered and (plan.tuned or plan.assumed or plan.published or plan.facts):
            how = plan.assumed, plan.published, plan.facts
            recorder.progress.say(registered_message(trainer.short_name, plan.registered, *how))

    def _new_folder(self, trainer: Trainer) -> Path:
        """Make a folder for a new run."""
        return new_folder(self._log_folder(), trainer.algorithm.name, trainer.short_name)

    def _continue(self, path: Path, *arguments: Any) -> None:
        """Do as _begin() does, from a checkpoint."""
        self._trainer, recorder, self.state = resumed(path, *arguments)
        if recorder is not None:
            self._record_by(recorder)

    def _record_by(self, recorder: Recorder) -> None:
        self._recorder = recorder
        recorder.loop_state = lambda: _as_json(self.state)
        self._stack.enter_context(recorder)
        self._stack.enter_context(recorder.interrupts)

    def __iter__(self) -> Iterator[IterationResult]:
        trainer = self.trainer
        if trainer.follows:
            return self._follow()
        if self._recorder is None:
            raise RuntimeError("this training has ended: make another Training, with resume= to go on")
        return self._rows()

    def _rows(self) -> Iterator[IterationResult]:
        """Iterate until a limit is met, a signal has come or stop() was called."""
        while True:
            self._record()
            recorder = self._recorder
            assert recorder is not None
            self._reason = recorder.interrupts.caught or self._reason or self.trainer.reason_to_stop()
            if self._reason:
                return
            self._steps = self.trainer.steps
            try:
                self._row = self._iterate(recorder)
            except RankLost as error:
                self._restart(recorder, error)
                continue
            if self._row is not None:
                yield self._row

    def _iterate(self, recorder: Recorder) -> IterationResult | None:
        """Run an iteration; None if its rollout was given up."""
        trainer, interrupts = self.trainer, recorder.interrupts
        try:
            return trainer.iterate(lambda: bool(interrupts.caught) or trainer.out_of_time())
        except Stopped:
            return None
        finally:
            if caught := trainer.caught:  # empty otherwise, which must not replace what a handler of the user's noted
                interrupts.caught = interrupts.caught or caught

    def _restart(self, recorder: Recorder, error: RankLost) -> None:
        """Continue from last/ after the loss of a learner. Raises the error after RESTARTS restarts."""
        self._restarts += 1
        if self._restarts > RESTARTS:
            raise error
        self._stack.__exit__(RankLost, error, None)
        self._stack = ExitStack()
        algorithm, env = self._arguments[:2]
        self._continue(recorder.folder, None if isinstance(algorithm, str) else algorithm, env, None, {})
        assert self._recorder is not None  # this process is rank 0
        place = f"step {self.trainer.steps:,} (restart {self._restarts} of {RESTARTS})"
        self._recorder.progress.say(f"{error}: going on from {place}")

    def _record(self) -> None:
        """Record the last iteration, with what the body has logged."""
        if self._row is not None:
            assert self._recorder is not None
            row, self._row = self._row, None
            self._recorder.record(row)

    def _follow(self) -> Iterator[IterationResult]:
        """Take part in a training whose files rank 0 writes."""
        self.trainer.follow_orders()
        return iter(())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._outer, held(self.trainer.process_state):
            self._end(kind, error, at)

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._recorder is None:
            self.trainer.close()
            self._run = self._without_folder()
            return
        try:
            if error is not None:
                self._stack.__exit__(kind, error, at)
                if self._resume is None and not self.trainer.steps and isinstance(error, Exception):
                    remove_unbegun(self._recorder.folder)
                return
            with self._stack:
                self._record()
                self._run = self._recorder.finish(self._recorder.interrupts.caught or self._reason or LEFT)
        finally:
            self._recorder = None
        if self._run.interrupted and self._on_interrupt == "raise":
            raise_caught(self._run.signal, f"the run is saved; to go on: {self._run.resume_command}")

    def _without_folder(self) -> Run:
        """The run, for a rank that rank 0 gives orders."""
        trainer = self.trainer
        facts = (trainer.policy, trainer.algorithm.name, trainer.plan.env, trainer.steps, trainer.seconds)
        return Run(self._log_folder(), *facts)

    def _log_folder(self) -> Path:
        """The folder for runs, relative to the working folder at the beginning, since environments may change that."""
        return Path(self.trainer.process_state.folder or "", self.trainer.config.log_folder)

    @property
    def trainer(self) -> Trainer:
        """The training. Raises RuntimeError before the block."""
        if self._trainer is None:
            raise RuntimeError("the training begins with its block: `with hr.Training(...) as t:`")
        return self._trainer

    @property
    def env(self) -> Env:
        """The environments that it trains in."""
        return self.trainer.env

    @property
    def policy(self) -> Policy:
        """The policy that is learning."""
        return self.trainer.policy

    @property
    def run(self) -> Run:
        """The run, once the training has ended. Raises RuntimeError before."""
        if self._run is None:
            raise RuntimeError("the run is there once its block has been left without an exception")
        return self._run

    @property
    def folder(self) -> Path:
        """The run's folder, for files of your own."""
        return self._recording().folder

    def _recording(self) -> Recorder:
        if self._recorder is None:
            raise RuntimeError("this is for the block of a training: `with hr.Training(...) as t:`")
        return self._recorder

    def log(self, name: str, value: float) -> None:
        """Write a number into this iteration's row of metrics.jsonl, and to TensorBoard: under its own name if that has
        a slash ("curriculum/level"), else under train/. Rows that follow in less than a tenth of a second are not
        written; the next row has the last value.

        Raises ValueError for the name of another column, TypeError for a value that is not a number.
        """
        self._recording().log(name, value)

    def stop(self, why: str) -> None:
        """End the training after this iteration. why: what `headrace runs` and Run.reason say."""
        if not why or why.startswith("SIG"):
            raise ValueError(f"say why the training ends in a few words, got {why!r}")
        self._recording()
        self._reason = why

    def every(self, steps: int) -> bool:
        """Tell whether this iteration has passed a multiple of so many environment steps. Raises ValueError below 1."""
        if steps < 1:
            raise ValueError(f"every() takes a number of environment steps, 1 or more, got {steps}")
        return passed(steps, self._steps, self.trainer.steps)

    def evaluate(self, episodes: int = 20) -> Evaluation:
        """Evaluate the present policy in the reference environment, with the settings of the training."""
        return self._recording().evaluate(episodes)

    def save(self) -> Path:
        """Keep a checkpoint of the training after this iteration, step_N/, and return its path. It is written once the
        body is done."""
        self._recording().keep_next = True
        return self.folder / f"step_{self.trainer.steps}"


def _as_json(state: Json) -> str:
    """Write `state` as JSON. Raises TypeError, naming the value, for one that JSON does not have."""
    for name, value in state.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"state[{name!r}] is {value!r}, which a checkpoint cannot hold: {error}") from error
    return json.dumps(state)


def _no_episode(trainer: Trainer) -> str:
    """A line for a training that ends before any episode can; empty for others, and where that is unknown."""
    env, total, most = trainer.env, trainer.config.total_steps, trainer.env.max_steps
    if (
        not env.truncates_only
        or most is None
        or trainer.config.stagger
        or total is None
        or total >= most * env.num_envs
    ):
        return ""
    return (
        f"no episode ends, and there is no return, before step {most * env.num_envs:,}: {most:,} in each of "
        f"{env.num_envs:,} environments; total_steps is {total:,}"
    )
