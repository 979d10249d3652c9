"""Resume a run: make a trainer and a recorder that continue from its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from math import isclose, log
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import torch

from headrace import setting_schedules
from headrace.algorithms.base import ALGORITHMS, Algorithm, algorithm_classes, is_offline, is_resolvable
from headrace.algorithms.on_policy import OnPolicy
from headrace.core.terminal import tell
from headrace.core.trust import code_of, run_of
from headrace.core.types import MADE_WITH, TAKE_EFFECT, EnvArgument, Json, Settings, StateDict
from headrace.envs.strangers import check_settings
from headrace.evaluation.history import NOT_OF_LEARNING
from headrace.policies.base import OFF
from headrace.runs import checkpoint
from headrace.runs.recorder import Recorder
from headrace.runs.run import LAST, difference_from, lock
from headrace.training.config import TrainConfig, default_of, has_default, merge_settings, needless
from headrace.training.limits import Limits
from headrace.training.plan import nameless_settings, settings_of
from headrace.training.shards import Sharded
from headrace.training.torchrun import started_by_torchrun
from headrace.training.trainer import Trainer

# what the state of a run depends on: resuming cannot change these
FIXED = ("seed", "shards", "init_from", "replay")
# nor these, unless only rollouts depend on them: then learning continues, in new episodes
SIZES = ("num_envs", "num_steps", "learners")

# with actors if sums depend on these settings, too
SUMS_STAY = (
    "with several learners, or actors that send gradients, sums are divided among them; leave it out, or begin another "
    "run with init_from"
)


class Continued(NamedTuple):
    """A resumed training."""

    trainer: Trainer
    recorder: Recorder | None  # None if another rank records
    state: Json  # Training.state as it was saved


def resumed(
    path: Path, algorithm: str | Algorithm | None, env: EnvArgument, config: str | Path | None, options: Settings
) -> Continued:
    """Make a trainer and a recorder that continue from a checkpoint. The arguments are those of Training."""
    with code_of(path, run_of(config)), ExitStack() as stack:
        locked = _locked(path)
        if locked is not None:
            stack.enter_context(locked)
        found = _continued(path, locked, algorithm, env, config, options)
        stack.pop_all()
    return found


def _locked(path: Path) -> TextIO | None:
    """Lock a run's folder before its state is read, since another training may be writing to it. None if rank 0 has the
    lock. Raises RuntimeError if another training has it, ValueError for a path that is not of a run."""
    folder, manifest, _ = checkpoint.read(path, LAST)
    if "settings" not in manifest:
        raise ValueError(f"{folder} holds a policy alone: resume from its run's folder, {folder.parent}")
    return lock(folder.parent) if (started_by_torchrun() or (0, 1))[0] == 0 else None


def _continued(
    path: Path,
    locked: TextIO | None,
    algorithm: str | Algorithm | None,
    env: EnvArgument,
    config: str | Path | None,
    options: Settings,
) -> Continued:
    """See resumed()."""
    folder, manifest, state = checkpoint.read(path, LAST, state="training")
    if state is None:
        raise ValueError(f"{folder} holds no state of a training: resume from its run's folder, {folder.parent}")
    with checkpoint.using(folder, manifest, "its settings are not those of a run"):
        saved, positions = saved_settings(folder, manifest), dict(manifest["positions"])
        name, source = saved.pop("algorithm"), saved.pop("env")
    file = settings_of(config, options) if config else {}
    _check_names(file, {"algorithm": (name, algorithm), "env": (source, env)}, config, folder)
    given = {**_values(file, name if algorithm is None else algorithm), **options}
    replaced = {**({} if env is None else {"env": None}), **dict.fromkeys(given)}
    check_settings(path, {"env": source, **saved, **replaced})
    changed = _check_fixed(folder, saved, given)
    given = _read(given, saved)
    if env is None and source is None:
        raise TypeError(f"the environment of {folder} was made by you: give it again, train(resume=..., env=...)")
    if algorithm is None and not is_resolvable(name):
        raise TypeError(
            f"{folder} was trained by an algorithm of your own: give it again, train(resume=..., algorithm=...)"
        )
    for name_of in nameless_settings(saved) if algorithm is None else ():
        if name_of not in given:
            missing = f"train(resume=..., {name_of}=...)"
            raise TypeError(f"the {name_of} of {folder} was made by you: give it again, {missing}")
    ready = algorithm is not None and not isinstance(algorithm, str)
    known = {field: value for field, value in saved.items() if not ready or field in TrainConfig.__dataclass_fields__}
    # the checkpoint has the weights and rows that the run began with; their source may be gone
    options = {**known, **given, "init_from": None, "replay": None}
    if is_offline(algorithm if ready else algorithm_classes(name).algorithm):
        options["replay"] = str(folder)  # with all rows of the data
    if "num_steps" in changed and not options.get("sequence_length", 1):
        options["sequence_length"] = saved["num_steps"]  # the length that a recurrent policy was made for
    if {"num_steps", "train_freq"} & given.keys() and options.get("sde_sample_freq", 0) == -1:
        options["sde_sample_freq"] = manifest["policy"]["config"].get("sde_sample_freq", -1)
    if (policy := options.get("policy")) and not ready:  # the run's file has all settings: drop unread ones
        from headrace.training import initial_policy

        reads = initial_policy.own_policy(policy), algorithm_classes(name).algorithm
        for field in {*initial_policy.unread(*reads, known)} - given.keys():
            del options[field]
    trainer = Trainer(algorithm or name, source if env is None else env, **options)
    trainer.config = replace(trainer.config, init_from=saved.get("init_from"), replay=saved.get("replay"))
    with closed_on_error(trainer):
        with checkpoint.using(folder, manifest, "it describes no policy"):
            different = "" if algorithm is not None else difference_from(trainer.policy, manifest["policy"])
        if different:
            by = checkpoint.written_by(manifest)
            raise TypeError(
                f"{folder}, written by {by}, has another policy than its settings give here ({different}): where it is "
                "of your own, give its algorithm, train(resume=..., algorithm=...)"
            )
        if trainer.follows:
            return Continued(trainer, None, {})
        if others := checkpoint.other_versions(manifest):
            state = {**state, "compiled": {}}  # this version may compile what the other one refused
        if "temperature" in given and not options.get("learn_temperature", True):
            state = _with_temperature(state, given["temperature"])
        with checkpoint.using(folder, manifest, "it is not of such a training"):
            trainer.load_state_dict(_resized(trainer, state, changed, folder, saved))
        recorder = Recorder(trainer, folder.parent, locked)
        recorder.resume(folder, positions, state.get("evaluations", ()))
    for field, value in given.items():
        if field in saved and field not in NOT_OF_LEARNING and _plain(saved[field]) != _plain(value):
            recorder.progress.say(f"{field} {saved[field]} -> {value} from step {trainer.steps:,} on")
    for line in _jumps(trainer, saved):
        recorder.progress.say(line)
    if others and not changed:
        recorder.progress.say(
            f"written by {others}: the run goes on from its weights and the optimizer's moments, and its numbers will "
            "not be those of a run that was not interrupted, bit for bit"
        )
    if changed:
        what = " and ".join("number of actors" if name == "actors" else name for name in changed)
        recorder.progress.say(f"with another {what} new episodes begin: the run is not the one that it would have been")
    elif not _games(state["collectors"][0]["env"]):
        recorder.progress.say(f"{trainer.env.name} cannot be saved: resuming with fresh episodes")
    return Continued(trainer, recorder, json.loads(state.get("loop", "{}")))


def _check_names(file: Json, names: Mapping[str, tuple[Any, Any]], config: Any, folder: Path) -> None:
    """Remove the algorithm and the environment from a file's settings. names: the saved and the given name of each.
    Raises ValueError if the file's name differs from the run's and none is given."""
    for which, (saved, given) in names.items():
        named = file.pop(which, saved)
        if given is None and named != saved:
            raise ValueError(
                f"{which} is {named!r} in {config} and {saved!r} in {folder}: take it out of the file, or give "
                f"{which}={named!r}"
            )


def _values(file: Json, algorithm: str | Algorithm) -> Json:
    """Convert a file's settings to the types of their fields: "none" is None. Raises as merge_settings()."""
    kind = algorithm_classes(algorithm).config if isinstance(algorithm, str) else None
    filled = merge_settings(kind, {}, file, {})
    return {name: getattr(filled[name not in TrainConfig.__dataclass_fields__], name) for name in file}


def _read(given: Settings, saved: Settings) -> Json:
    """Drop given settings that nothing reads because of the others, and report them."""
    unused = needless(given, {**saved, **given})
    for name in unused:
        if _plain(given[name]) != _plain(saved.get(name)):
            tell(unused[name])
    return {name: value for name, value in given.items() if name not in unused}


def _games(env: Mapping[str, Any] | bool) -> Any:
    """The state of the stepped environments; with self-play it is stored next to the snapshots. For actors, a bool:
    whether their environments can be saved."""
    return env["env"] if isinstance(env, Mapping) and "league" in env else env


def _jumps(trainer: Trainer, saved: Json) -> list[str]:
    """Describe settings that jump because a limit or a schedule changed."""

    def values(config: Any, own: Any) -> Mapping[str, float]:
        done = trainer.steps, trainer.episodes.count, trainer.seconds
        return setting_schedules.values(own, Limits(config).progress(*done))

    def before(config: Any) -> Any:
        known = config.__dataclass_fields__.keys() - nameless_settings(saved)
        return replace(config, **{name: x for name, x in saved.items() if name in known})

    own = trainer.algorithm.config
    if not hasattr(own, "schedules"):
        return []
    now, then = values(trainer.config, own), values(before(trainer.config), before(own))
    return [
        f"{name} jumps from {then[name]:g} to {x:g} at step {trainer.steps:,}, where its schedule is now"
        for name, x in now.items()
        if name in then and not isclose(x, then[name], rel_tol=1e-6)
    ]


def _check_fixed(folder: Path, saved: Json, given: Settings) -> list[str]:
    """Raise ValueError for given settings that resuming cannot change. Returns the changed settings with which the
    saved state of environments does not fit: SIZES, actors whose states cannot be divided again, and a smaller replay
    buffer."""
    both = saved, {**saved, **given}
    by_actors = any(settings.get("actors") is not None for settings in both)
    alone = all((settings.get("learners", 1), settings.get("exchange")) == (1, "experience") for settings in both)
    fixed = FIXED + ("actors", *SIZES) * (by_actors and not alone)
    changed = [name for name in given if name in saved and _plain(given[name]) != _plain(saved[name])]
    for field in changed:
        if field in fixed:
            why = "" if field in FIXED else SUMS_STAY
        else:
            why = _why_it_stays(field, saved, {**saved, **given})
        if why or field in fixed:
            what = f"{field} is {saved[field]} in {folder} and cannot become {given[field]} on resuming"
            raise ValueError(f"{what}: {why}" if why else what)
    smaller = "buffer_size" in changed and given["buffer_size"] < saved["buffer_size"]
    in_step = all(settings.get("collection") != "async" for settings in both)
    same_fragments = in_step and all(isinstance(settings.get("actors"), int) for settings in both)
    others = ["actors"] * (by_actors and not same_fragments) + ["collection"] * (by_actors and not in_step)
    return [name for name in SIZES if name in changed] + [x for x in others if x in changed] + ["buffer_size"] * smaller


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _why_it_stays(name: str, saved: Settings, settings: Settings) -> str:
    """Reason why a setting cannot change on resuming, and what to do; empty if it can."""
    if name == "temperature" and settings.get("learn_temperature", True):
        return "it was learned since; give learn_temperature=False too, or leave it out"
    compared = (name == "sequence_length" and settings.get("recurrent", "none") != "none") or (
        name == "sde_sample_freq" and settings.get("use_sde")
    )  # with the values that the policy was made with: defaults 0 and -1 follow from num_steps, which may change
    kept = (name == "buffer_size" and settings.get("prioritized")) or (
        name == "hindsight" and not (saved["hindsight"] and settings["hindsight"])
    )
    takes_effect = (name in TAKE_EFFECT and not kept) or name == "temperature" or compared
    if name not in MADE_WITH or takes_effect:
        return ""
    return "networks or buffers were made by it, and the checkpoint has those; leave it out, or begin another run"


def _with_temperature(state: Any, temperature: float) -> Any:
    """Replace the entropy temperature in a state, which is not learned."""
    if isinstance(state, Mapping):
        return {
            name: torch.full_like(x, log(temperature))
            if name == "log_temperature"
            else _with_temperature(x, temperature)
            for name, x in state.items()
        }
    return [_with_temperature(x, temperature) for x in state] if isinstance(state, list) else state


def _resized(trainer: Trainer, state: StateDict, changed: list[str], folder: Path, saved: Json) -> StateDict:
    """Convert the state of a training to other environments or learners: learning continues, in new episodes.

    Raises ValueError if the state is tied to its number of environments."""
    if not changed:
        return state
    learner, before = state["learner"], state["collectors"][0]
    steps = before["steps"] if "steps" in before else before["rounds"] * saved["num_steps"]  # of each environment
    fresh = {"steps": steps, "env": None}
    if not isinstance(trainer.algorithm, OnPolicy | Sharded):
        from headrace.training.from_data import resized

        resized.check(trainer.algorithm, trainer.settings(), learner, changed)
        spaces = trainer.env.observation_space, trainer.env.action_space
        scale, like = trainer.config.reward_scale, trainer.collector.rollout
        then = {**saved, "state": learner["algorithm"]}
        own = resized.refill(trainer.algorithm, folder, spaces, like, scale, then)
        return {**state, "learner": {**learner, "algorithm": own}, "collectors": [fresh]}
    if trainer.config.self_play:
        raise ValueError(
            f"{' and '.join(changed)} cannot change on resuming with self_play, whose games are saved with its "
            "snapshots: leave it out, or begin another run with init_from"
        )
    own = learner["algorithm"].get("shards", [learner["algorithm"]])[0]
    own = {"shards": [own]} if isinstance(trainer.algorithm, Sharded) else own
    collectors = [fresh] * trainer.config.learners
    return {**state, "learner": {**learner, "algorithm": own}, "collectors": collectors}


@contextmanager
def closed_on_error(trainer: Trainer) -> Iterator[None]:
    """Close a trainer if its run cannot begin, so that worker processes end or become free for others."""
    try:
        yield
    except BaseException:
        trainer.close()
        raise


def saved_settings(folder: Path, manifest: Json) -> Json:
    """Read a run's settings. Settings that its version did not have get their defaults, rather than values registered
    for the environment today. Raises OtherVersion for a setting that this version does not have, unless it was off."""
    saved = dict(manifest["settings"])
    name = saved["algorithm"]
    own: list[Any] = [algorithm_classes(name).config] if name in ALGORITHMS else []  # imports no code of others
    known = {setting.name: setting for config in [TrainConfig, *own] for setting in fields(config)}
    for name in set(saved) - {*known, "algorithm", "env", "agent_info"} if own else ():
        if saved.pop(name) not in OFF:
            raise checkpoint.other_version(folder, manifest, f"it has the setting {name}, which is not known here")
    return {name: default_of(setting) for name, setting in known.items() if has_default(setting)} | saved
