"""`headrace train ALGORITHM ENV`, and `headrace train --resume RUN`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
from tyro.conf import FlagCreatePairsOff

from headrace.algorithms.base import ALGORITHMS, algorithm_classes
from headrace.cli import pairs
from headrace.cli.setting_flags import (
    Flag,
    flat,
    given_settings,
    named_code,
    parser,
    path_after,
    positionals,
    typed_arguments,
)
from headrace.core.processes.state import shown
from headrace.core.stopping import Stopped
from headrace.core.terminal import say
from headrace.core.types import Json, Settings
from headrace.envs import can_render
from headrace.envs.registry import names
from headrace.evaluation.evaluator import evaluate
from headrace.evaluation.history import RATED
from headrace.evaluation.playing import Evaluation
from headrace.runs import checkpoint
from headrace.runs.logs import last_metrics
from headrace.runs.progress import EvaluationLines
from headrace.runs.run import LAST, Run
from headrace.runs.signals import Interrupts
from headrace.training.config import TrainConfig, merge_settings
from headrace.training.iteration import IterationResult
from headrace.training.loop import Training, building, looked_at_once
from headrace.training.plan import of_zoo, settings_of
from headrace.training.resuming import saved_settings
from headrace.training.scaling import settings_for
from headrace.training.torchrun import started_by_torchrun

DESCRIPTION = """Train an agent: headrace train ppo CartPole-v1

ENV is a name listed by `headrace envs`, the id of any Gymnasium environment, or path/to/file.py:Class of your own.

Flags override settings of --config, which override settings registered for ENV, which override the algorithm's
defaults.

Ctrl-C saves a checkpoint, and prints the command that resumes the run."""
FINAL_EPISODES = 100
Each = Callable[[Training, IterationResult], None]
FLAGS: dict[str, Flag] = {  # flags that are not settings
    "config": (Path | None, "FILE", None, "a TOML file of settings, such as a run's config.toml, or a preset: fasttd3"),
    "zoo": (Path | None, "FILE", None, "a YAML file of rl_zoo3, such as ppo.yml: the settings of its entry ENV"),
    "resume": (Path | None, "RUN", None, "resume this run; flags may change its limits"),
    "trust": (
        FlagCreatePairsOff[bool],
        None,
        False,
        "run code in the folder of the run that --resume or --config names",
    ),
    "final_episodes": (int, None, FINAL_EPISODES, "episodes in the reference environment after training; 0: none"),
    "diagnose": (FlagCreatePairsOff[bool], None, False, "measure where the wall time goes, as `headrace diagnose`"),
    "seeds": (
        str | None,
        "0-4",
        None,
        "train once for each seed: 0-2 for three, or 1,5,7; 3 alone is seed 3",
    ),
    "jobs": (int, None, 1, "with --seeds: trainings at the same time, in processes that share the cores"),
    "together": (
        FlagCreatePairsOff[bool],
        None,
        False,
        "with --seeds: in threads of one process; --jobs of them at a time, by default as many as cores",
    ),
}


def main(arguments: list[str]) -> None:
    """Parse the flags, train, evaluate, and print the commands for the next steps."""
    if "--diagnose" in arguments:
        from headrace.cli import diagnose

        diagnose.training([argument for argument in arguments if argument != "--diagnose"])
    elif path_after("--seeds", arguments):
        from headrace.cli.several import seeds

        with named_code(arguments):
            seeds.main(arguments, trained)
    else:
        trained(arguments)


def trained(
    arguments: list[str], quiet: bool = False, each: Each | None = None, make: Callable[..., Training] = Training
) -> tuple[Run, Evaluation | None]:
    """Train with these arguments, and evaluate. quiet: do not print the evaluation and the commands for the next steps.

    each: called after each iteration. A run that it has stopped is not evaluated. make: makes the training of its
    arguments.
    """
    resume, config = path_after("--resume", arguments), path_after("--config", arguments)
    with named_code(arguments):
        with building:
            names, options, final_episodes = _read(arguments, resume, config)
        return _trained(partial(train, *names, each=each, make=make, **options), final_episodes, quiet, each)


def _read(arguments: list[str], resume: Path | None, config: Path | None) -> tuple[tuple[str, ...], Settings, int]:
    """Parse the arguments: names and options of a training, and the number of episodes of its evaluation."""
    saved = _saved_settings(resume) if resume else {}
    typed = positionals(arguments)
    file = settings_of(config, {*typed, *given_settings(arguments)}) if config else {}
    zoo = path_after("--zoo", arguments)
    if zoo and resume:
        raise ValueError(f"--zoo {zoo} is for a new run: a resumed one has its settings; leave it out")
    if zoo and not {"-h", "--help"} & set(arguments):
        named_of_zoo = {"algorithm": None, "env": None, **file, **typed}
        file = {**of_zoo(zoo, named_of_zoo["algorithm"], named_of_zoo["env"]), **file}
    of_file = {name: file.pop(name, None) for name in ("algorithm", "env")}
    named = {name: typed.get(name) or given or saved.get(name) for name, given in of_file.items()}
    saved = {name: value for name, value in saved.items() if name not in named}
    asks_for_help = bool({"-h", "--help"} & set(arguments))
    algorithm = named["algorithm"] or next(iter(ALGORITHMS))
    if not asks_for_help:
        _check_order(algorithm, named["env"], arguments)
    kind, config_class = algorithm_classes(algorithm)
    if not asks_for_help:
        _check_names(named, resume)
    # the saved settings of a resumed run include those registered for its environment
    wanted = file.get("registered", True) and "--no-registered" not in arguments
    registered = settings_for(named["env"], kind.name, file) if named["env"] and wanted and not resume else {}
    merged = merge_settings(config_class, registered, saved | file, {}, checked=False)
    arguments_class = parser(named, *merged, FLAGS)
    if asks_for_help:
        arguments = ["--help"]  # the help omits positional arguments that are given
    args = typed_arguments(arguments, config_class, FLAGS)
    parsed = pairs.cli(arguments_class, "train", DESCRIPTION, args=args)
    if parsed.together:
        raise ValueError("--together is for several seeds: give --seeds 0-9, or leave it out")
    if parsed.jobs != 1:
        raise ValueError(f"--jobs {parsed.jobs} is for several seeds: give --seeds 0-9, or leave it out")
    settings, typed_too = flat(parsed.training, parsed.learning), given_settings(args)
    if resume:
        before = flat(*merge_settings(config_class, {}, saved, {}))
        changed = {name: value for name, value in settings.items() if value != before[name] or name in typed_too}
        return (), {"env": typed.get("env"), "resume": resume, **changed}, parsed.final_episodes
    given = {name: value for name, value in settings.items() if name in file or name in typed_too}
    return (parsed.algorithm, parsed.env), given, parsed.final_episodes


def _trained(
    run_it: Callable[[], Run], final_episodes: int, quiet: bool, each: Each | None
) -> tuple[Run, Evaluation | None]:
    """Train, evaluate and print the commands for the next steps."""
    run = run_it()
    if (started_by_torchrun() or (0, 1))[0]:
        return run, None  # another rank: rank 0 has the run's folder
    whole = each is None or run.reason in TrainConfig.__dataclass_fields__  # a limit has ended it, not `each`
    run, evaluation = _evaluated(run, final_episodes if whole else 0, quiet)
    if not (quiet or run.interrupted):
        verbs = ("eval", "play", "plot") if can_render(str(run.env)) else ("eval", "plot")
        say("\n".join(f"  {shlex.join(['headrace', verb, str(shown(run.path))])}" for verb in verbs))
    return run, evaluation


def train(*names: str, each: Each | None = None, make: Callable[..., Training] = Training, **options: Any) -> Run:
    """Run a Training, the loop of headrace.train(), with `each` as its body."""
    training = make(*names, on_interrupt="return", **options)
    with training, looked_at_once(training.trainer, {"each": each, **options}):
        for row in training:
            if each is not None:
                each(training, row)
    return training.run


def with_env(arguments: list[str], env: str) -> list[str]:
    """Replace the environment in arguments that name a run or a file of settings."""
    resume, config = path_after("--resume", arguments), path_after("--config", arguments)
    saved = _saved_settings(resume) if resume else settings_of(config, set()) if config else {}
    return [saved.get("algorithm", "ppo"), env, *arguments]


def _check_order(algorithm: str, env: str | None, arguments: list[str]) -> None:
    """Raise ValueError, with the right command, if an environment is in the place of the algorithm."""
    if algorithm not in ALGORITHMS and (algorithm in gymnasium.registry or algorithm in names()):
        others = [word for word in arguments if word not in (algorithm, env)]
        own = env if env in ALGORITHMS else "ppo"
        command = shlex.join(["headrace", "train", own, algorithm, *others])
        raise ValueError(f"{algorithm} is an environment, and the algorithm comes first: the command is\n  {command}")


def _check_names(named: dict[str, str | None], resume: Path | None) -> None:
    """Raise ValueError, TypeError if an environment is missing."""
    if named["env"] is None and resume:
        raise TypeError(f"the environment of {resume} was made in Python: resume there, train(resume=..., env=...)")
    if named["env"] is None and named["algorithm"]:
        raise ValueError(f"name an environment too, as in `headrace train {named['algorithm']} CartPole-v1`")


def _saved_settings(run: Path) -> Json:
    """The settings of a saved run; empty for a checkpoint that has only a policy."""
    folder, manifest, _ = checkpoint.read(run, LAST)
    return saved_settings(folder, manifest) if "settings" in manifest else {}


def _evaluated(run: Run, episodes: int, quiet: bool) -> tuple[Run, Evaluation | None]:
    """Evaluate, and print the result; do nothing after a signal. A signal during the evaluation ends it and becomes the
    run's signal, so that later work, such as another seed, does not begin."""
    if run.interrupted or not episodes:
        return run, None
    lines = None if quiet else EvaluationLines(episodes)
    with Interrupts() as interrupts:

        def watch(ended: int, steps: int) -> bool:
            return bool(interrupts.caught) or (lines is not None and lines(ended, steps))

        try:
            result = evaluate(run.policy, run.env, episodes, run.seed, watch=watch, **run.eval_env_kwargs)
        except Stopped:
            say(f"the evaluation of {shown(run.path)} was given up: {interrupts.caught} came first; the run is whole")
            return replace(run, signal=interrupts.caught), None
    if not quiet:
        say(f"evaluated last/: {result}")
        if (rating := last_metrics(run.path / "metrics.jsonl").get(RATED)) is not None:
            say(f"in which it played both sides; its Elo rating among the policies of this run is {rating:.0f}")
    return run, result
