"""`headrace train ALGORITHM ENV`, and `headrace train --resume RUN`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, Positional, arg

from headrace import envs
from headrace.algorithms.registry import ALGORITHMS, algorithm_classes
from headrace.runs import checkpoint
from headrace.runs.run import LAST, Run
from headrace.training.config import TrainConfig, merge_settings, read_toml
from headrace.training.loop import train

DESCRIPTION = """Train an agent: headrace train ppo CartPole-v1

ENV is a name that `headrace envs` lists, the id of any Gymnasium environment, or path/to/file.py:Class of your own.
Defaults are the algorithm's, then those registered for ENV, then those of --config; a flag goes before all of them.
Ctrl-C saves, and prints the command that goes on."""
FINAL_EPISODES = 100
CLASS_REFERENCE = re.compile(r"[^-=].*[^:]:[^\W\d]\w*")  # my_algorithm.py:VPG


def main(arguments: list[str]) -> None:
    """Parse the flags, train, evaluate, and say what to do next."""
    if "--diagnose" in arguments:
        from headrace.cli import diagnose

        diagnose.training([word for word in arguments if word != "--diagnose"])
        return
    resume, config = _path_after("--resume", arguments), _path_after("--config", arguments)
    saved = _saved_settings(resume) if resume else {}
    file = read_toml(config) if config else {}
    typed = _positionals(arguments)
    named = {name: typed.get(name) or file.pop(name, None) or saved.get(name) for name in ("algorithm", "env")}
    saved = {name: value for name, value in saved.items() if name not in named}
    algorithm = named["algorithm"] or next(iter(ALGORITHMS))
    kind, config_class = algorithm_classes(algorithm)
    # a run that is resumed has had its environment's defaults
    registered = envs.spec(named["env"]).defaults.get(kind.name, {}) if named["env"] and not resume else {}
    parser = _parser(named, *merge_settings(config_class, registered, saved | file, {}))
    if {"-h", "--help"} & set(arguments):
        arguments = ["--help"]  # help leaves out positional arguments that are given already
    words = [_written_out(word) for word in arguments]
    parsed = tyro.cli(parser, prog="headrace train", description=DESCRIPTION, args=words)
    settings = _flat(parsed.training, parsed.learning)
    if resume:
        before = _flat(*merge_settings(config_class, {}, saved, {}))
        changed = {name: value for name, value in settings.items() if value != before[name]}
        run = train(env=typed.get("env"), resume=resume, **changed)
    else:
        asked = {name: value for name, value in settings.items() if name in file or name in _asked_for(words)}
        run = train(parsed.algorithm, parsed.env, **asked)
    _conclude(run, parsed.final_episodes)


def _parser(named: dict[str, str | None], training: TrainConfig, learning: Any) -> Any:
    """A dataclass of all that can be said on the command line; what is known already is its default."""
    group = (named["algorithm"] or next(iter(ALGORITHMS))).rpartition(":")[2]
    known = f"{', '.join(ALGORITHMS)}, or path/to/file.py:Class of your own"
    helps = {"algorithm": f"what to learn by: {known}", "env": "what to learn in"}
    return make_dataclass(
        "Train",
        [
            *(
                (name, Annotated[str, Positional, arg(metavar=name.upper(), help=helps[name])], value or tyro.MISSING)
                for name, value in named.items()
            ),
            (
                "config",
                Annotated[
                    Path | None, arg(metavar="FILE", help="a TOML file of settings, such as a run's config.toml")
                ],
                None,
            ),
            (
                "resume",
                Annotated[Path | None, arg(metavar="RUN", help="go on with this run; flags may move its limits")],
                None,
            ),
            (
                "final_episodes",
                Annotated[int, arg(help="episodes on the original environment after training; 0 for none")],
                FINAL_EPISODES,
            ),
            (
                "diagnose",
                Annotated[bool, FlagCreatePairsOff, arg(help="say where the wall time goes, as `headrace diagnose`")],
                False,
            ),
            ("training", Annotated[OmitArgPrefixes[type(training)], arg(name="run")], field(default=training)),  # type: ignore[misc]
            ("learning", Annotated[OmitArgPrefixes[type(learning)], arg(name=group)], field(default=learning)),  # type: ignore[misc]
        ],
        frozen=True,
    )


def _positionals(arguments: Sequence[str]) -> dict[str, str]:
    """The algorithm and the environment among the arguments, wherever they stand: they decide which flags there are."""
    places = range(len(arguments)) if arguments and arguments[0].startswith("-") else ()
    tests = (ALGORITHMS.__contains__, CLASS_REFERENCE.fullmatch)
    start = next((place for test in tests for place in places if test(arguments[place])), 0)
    words = []
    for word in arguments[start : start + 2]:
        if word.startswith("-"):
            break
        words.append(word)
    return dict(zip(("algorithm", "env"), words, strict=False))


def _path_after(flag: str, arguments: Sequence[str]) -> Path | None:
    """The value of a flag that is needed before there can be a parser."""
    for word, following in zip(arguments, [*arguments[1:], None], strict=False):
        if word == flag and following is not None:
            return Path(following)
        if word.startswith(f"{flag}="):
            return Path(word.removeprefix(f"{flag}="))
    return None


def _asked_for(words: Sequence[str]) -> set[str]:
    """The names of the flags among the words: what is typed stays as it is, what is not may follow from that."""
    flags = {word.lstrip("-").partition("=")[0].replace("-", "_") for word in words if word.startswith("--")}
    return flags | {flag.removeprefix("no_") for flag in flags}


def _written_out(word: str) -> str:
    """ "1000000" for "1e6", so that people may type it for whole numbers too; any other word as it is."""
    number = float(word) if re.fullmatch(r"\d+(\.\d*)?[eE]\+?\d{1,2}", word) else 0.5
    return str(int(number)) if number.is_integer() else word


def _saved_settings(run: Path) -> dict[str, Any]:
    """The settings with which a run was saved; none where a checkpoint holds a policy alone."""
    return dict(checkpoint.read_manifest(checkpoint.find(run, LAST)).get("settings", {}))


def _flat(*configs: Any) -> dict[str, Any]:
    return {member.name: getattr(config, member.name) for config in configs for member in fields(config)}


def _conclude(run: Run, episodes: int) -> None:
    """How good the policy is, and the commands that look at the run. Nothing after Ctrl-C: people want to leave."""
    if run.interrupted:
        return
    if episodes:
        print(f"evaluated: {run.evaluate(episodes)}")
    print("\n".join(f"  headrace {verb} {run.path}" for verb in ("eval", "play", "plot")))
