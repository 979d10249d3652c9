"""`headrace population ALGORITHM ENV --mutate ...`: Population Based Training."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

import tyro
from tyro.conf import FlagCreatePairsOff

from headrace.cli import setting_flags
from headrace.cli.setting_flags import Flag, named_code, path_after
from headrace.core.processes.state import shown
from headrace.core.terminal import say
from headrace.core.text import plain_table
from headrace.populations.train_population import Member, Population, population

DESCRIPTION = """Train a population: headrace population ppo CartPole-v1 --mutate clip=0.1..0.3 --interval 20_000

Members are trained with different settings. After each interval of environment steps those with the lowest scores
continue as copies of the best, with changed settings (Jaderberg et al. 2017). The same command continues a population
that was interrupted.

All other flags are those of `headrace train`, for all members; --total-steps counts the steps of each member."""
FLAGS: dict[str, Flag] = {  # flags that are not settings
    "mutate": (
        tuple[str, ...],
        "NAME=LOW..HIGH",
        tyro.MISSING,
        "settings that change, and their ranges (on a logarithmic scale from a ratio of 10 on) or values, NAME=A,B,C",
    ),
    "interval": (int, None, tyro.MISSING, "environment steps of a member between two comparisons"),
    "members": (int, None, 8, "members of the population"),
    "quantile": (float, None, 0.2, "share of members that are replaced, and that are copied"),
    "resample": (float, None, 0.25, "probability that a copy's setting is drawn again; else it is times 0.8 or 1.2"),
    "score": (
        Literal["training", "evaluation"],
        None,
        "training",
        "the mean return of the last --window training episodes in the interval, or of --eval-episodes evaluated",
    ),
    "jobs": (int | None, None, None, "members trained at the same time, in processes that share the cores"),
    "together": (
        FlagCreatePairsOff[bool],
        None,
        False,
        "members in threads of one process; --jobs of them at a time, by default as many as cores",
    ),
    "folder": (Path | None, "FOLDER", None, "of the population; without it, runs/populations/ALGORITHM-ENV"),
    "config": (Path | None, "FILE", None, "a TOML file of settings"),
    "trust": (FlagCreatePairsOff[bool], None, False, "run code that lies in the folder of the run that --config is of"),
}


def main(arguments: list[str]) -> None:
    """Train a population, and print a table of its members."""
    config = path_after("--config", arguments)
    with named_code(arguments):
        _train(arguments, config)


def _train(arguments: list[str], config: Path | None) -> None:
    parsed, given = setting_flags.parsed("population", "ppo CartPole-v1", DESCRIPTION, FLAGS, arguments, config)
    own = {name: getattr(parsed, name) for name in FLAGS if name not in ("mutate", "config", "trust")}
    found = population(parsed.algorithm, parsed.env, mutate=_by_name(parsed.mutate), watch=say, **own, **given)
    _print(found)


def _by_name(words: tuple[str, ...]) -> dict[str, str]:
    """Ranges by name of the setting. Raises ValueError for a word without a range."""
    found: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not (equals and text) or name in found:
            raise ValueError(f"--mutate takes NAME=LOW..HIGH or NAME=A,B,C, each name once, got {word!r}")
        found[name.replace("-", "_")] = text
    return found


def _print(found: Population) -> None:
    if not found.members:
        return
    names = list(found.members[0].settings)
    say(plain_table([("member", "score", *names, "run"), *map(_cells, found.members)]))
    best, where = str(shown(found.members[0].path)), str(shown(found.path))
    say("\n".join(f"  headrace {verb} {shlex.quote(path)}" for verb, path in (("eval", best), ("plot", where))))


def _cells(member: Member) -> tuple[str, ...]:
    values = [f"{x:.4g}" if isinstance(x, float) else str(x) for x in member.settings.values()]
    return str(member.number), f"{member.score:.4g}", *values, str(shown(member.path))
