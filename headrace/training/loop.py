"""train(): collect, learn and record until a limit is met; and resuming a run that was stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from headrace.algorithms.base import Algorithm
from headrace.algorithms.registry import is_resolvable
from headrace.core.stopping import Stopped
from headrace.core.types import EnvArgument, Json, Settings
from headrace.evaluation.history import NOT_OF_LEARNING
from headrace.parallel.learners import RankLost
from headrace.runs import checkpoint
from headrace.runs.recorder import Recorder
from headrace.runs.run import LAST, Run, identity, new_folder
from headrace.runs.signals import raise_caught
from headrace.training.config import TrainConfig, read_toml
from headrace.training.scaling import registered_message, scaling_message
from headrace.training.trainer import Trainer

# what the state of a run depends on: resuming cannot change these
FIXED = ("num_envs", "num_steps", "seed", "learners", "shards")
RESTARTS = 3  # of a training with several learners that lost one of them


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

    algorithm, env, config, options: see Trainer. resume: a run's folder, or a checkpoint in one, to continue with the
    settings it had; options may change its limits.
    On Ctrl-C, SIGTERM and SIGHUP it finishes the iteration (gives up a rollout of environments that are not compiled),
    and saves. on_interrupt: what follows: "raise" KeyboardInterrupt, or for the other signals SystemExit, so that
    a loop over seeds ends too; or "return" the run.
    With several learners, the loss of a process restarts the training from last/, three times at most.
    Raises TypeError, ValueError for wrong settings; RankLost where a learner is lost again; NotFinite where a NaN or
    infinity appears; OSError where the folder cannot be written.
    """
    if on_interrupt not in ("raise", "return"):
        raise ValueError(f"on_interrupt must be 'raise' or 'return', got {on_interrupt!r}")
    recorder: Recorder | None
    if resume is None:
        trainer = Trainer(algorithm, env, config=config, **options)
        if trainer.follows:
            return _followed(trainer)
        with _closed_on_error(trainer):
            folder = new_folder(trainer.config.log_folder, trainer.algorithm.name, trainer.short_name)
            recorder = Recorder(trainer, folder)
        if trainer.plan.derived:
            recorder.progress.say(scaling_message(trainer.config.num_envs, trainer.plan.derived))
        plan = trainer.plan
        if plan.registered and (plan.tuned or plan.assumed):
            recorder.progress.say(registered_message(trainer.short_name, plan.registered, plan.assumed))
    else:
        trainer, recorder = _resumed(Path(resume), algorithm, env, config, options)
        if recorder is None:
            return _followed(trainer)
        if reason := trainer.reason_to_stop():
            limit = getattr(trainer.config, reason)
            recorder.progress.say(f"nothing to do: {reason} {limit:,} is reached already; resume with another, or none")
    if trainer.config.learners > 1:
        recorder.save()  # what a restart goes on from
    run = None
    for restart in range(1, RESTARTS + 2):
        try:
            run = _until_the_end(trainer, recorder)
            break
        except RankLost as error:
            if restart > RESTARTS:
                raise
            ready = None if isinstance(algorithm, str) else algorithm
            trainer, recorder = _resumed(recorder.folder, ready, env, None, {})
            assert recorder is not None  # this process is rank 0
            recorder.progress.say(f"{error}: going on from step {trainer.steps:,} (restart {restart} of {RESTARTS})")
    assert run is not None
    if run.interrupted and on_interrupt == "raise":
        raise_caught(run.reason)
    return run


def _followed(trainer: Trainer) -> Run:
    """Take part in a training of which rank 0 writes the files; the run is without a folder."""
    try:
        trainer.follow_orders()
    finally:
        trainer.close()
    facts = (trainer.policy, trainer.algorithm.name, trainer.plan.env, trainer.steps, trainer.seconds)
    return Run(Path(trainer.config.log_folder), *facts)


def _until_the_end(trainer: Trainer, recorder: Recorder) -> Run:
    """Iterate and record until a limit is met, or a signal has come."""
    with recorder, recorder.interrupts as interrupts:
        while not (reason := interrupts.caught or trainer.reason_to_stop()):
            with suppress(Stopped):
                recorder.record(trainer.iterate(lambda: bool(interrupts.caught) or trainer.out_of_time()))
            interrupts.caught = interrupts.caught or trainer.caught
        return recorder.finish(reason)


def _resumed(
    path: Path, algorithm: str | Algorithm | None, env: EnvArgument, config: str | Path | None, options: Settings
) -> tuple[Trainer, Recorder | None]:
    """A trainer and a recorder that continue from a checkpoint; no recorder where rank 0 records and orders that."""
    folder, manifest, state = checkpoint.read(path, LAST, state="training")
    if "settings" not in manifest or state is None:
        raise ValueError(f"{folder} holds a policy alone: resume from its run's folder, {folder.parent}")
    with checkpoint.reading(folder / checkpoint.MANIFEST, "its settings are not those of a run"):
        saved, positions = dict(manifest["settings"]), dict(manifest["positions"])
        name, source = saved.pop("algorithm"), saved.pop("env")
    given = {**(read_toml(config) if config else {}), **options}
    any_actors = saved.get("learners", 1) == 1 and _any_number_of_actors(saved, given)
    for field in FIXED if any_actors else (*FIXED, "actors"):
        if field in given and field in saved and given[field] != saved[field]:
            raise ValueError(f"{field} is {saved[field]} in {folder} and cannot become {given[field]} on resuming")
    if env is None and source is None:
        raise TypeError(f"the environment of {folder} was made by you: give it again, train(resume=..., env=...)")
    if algorithm is None and not is_resolvable(name):
        raise TypeError(
            f"{folder} was trained by an algorithm of your own: give it again, train(resume=..., algorithm=...)"
        )
    ready = algorithm is not None and not isinstance(algorithm, str)
    known = {field: value for field, value in saved.items() if not ready or field in TrainConfig.__dataclass_fields__}
    trainer = Trainer(algorithm or name, source if env is None else env, **known | given)
    with _closed_on_error(trainer):
        if algorithm is None and not _alike(identity(trainer.policy), manifest.get("policy")):
            raise TypeError(f"{folder} has a policy of your own: give its algorithm, train(resume=..., algorithm=...)")
        if trainer.follows:
            return trainer, None
        with checkpoint.reading(folder / checkpoint.MANIFEST, "it is not of such a training"):
            trainer.load_state_dict(state)
        recorder = Recorder(trainer, folder.parent)
        recorder.resume(folder, positions, state.get("evaluations", ()))
    for field, value in given.items():
        if field in saved and field not in NOT_OF_LEARNING and saved[field] != value:
            recorder.progress.say(f"{field} {saved[field]} -> {value} from step {trainer.steps:,} on")
    if not state["collectors"][0]["env"]:
        recorder.progress.say(f"{trainer.env.name} cannot be saved: resuming with fresh episodes")
    return trainer, recorder


def _any_number_of_actors(saved: Json, given: Json) -> bool:
    """Whether a run with actors may go on with another number of them: neither states nor bits depend on it then."""
    in_step = saved.get("collection") in ("sync", "overlapped") and saved.get("exchange") == "experience"
    return in_step and all(isinstance(settings.get("actors", 1), int) for settings in (saved, given))


@contextmanager
def _closed_on_error(trainer: Trainer) -> Iterator[None]:
    """Close a trainer where its run cannot begin: worker processes end, or may be used by others."""
    try:
        yield
    except BaseException:
        trainer.close()
        raise


def _alike(policy: Json, saved: Json | None) -> bool:
    """Whether a policy is described as a saved one is, in JSON's types."""
    return json.loads(json.dumps(policy)) == saved
