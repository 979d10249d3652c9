"""`headrace tune ALGORITHM ENV`: find the fastest settings for a training on this machine."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Literal

from tyro.conf import FlagCreatePairsOff

from headrace.cli import setting_flags
from headrace.cli.setting_flags import Flag, named_code, path_after
from headrace.core.terminal import say, tell
from headrace.core.writing import free, replacing
from headrace.tuning.tuner import Tuning, tune

DESCRIPTION = """Find the fastest settings for a training on this machine: headrace tune ppo LunarLander-v3

It trains with one process, workers, actors in each mode, other numbers of environments, threads and devices, measures
steps per second, and compares the time to the same return. It prints a table and its choice, and writes a file for
`headrace train --config`. Settings given by flags or --config are not changed.

Ctrl-C prints the best settings so far. A second Ctrl-C ends at once."""
FLAGS: dict[str, Flag] = {  # flags that are not settings
    "seconds": (float, None, 120.0, "time to try, s; starting processes and compiling for the first time not counted"),
    "by": (Literal["return", "steps"], None, "return", "what decides: time to the same return, or steps per second"),
    "config": (Path | None, "FILE", None, "a TOML file of settings"),
    "trust": (FlagCreatePairsOff[bool], None, False, "run code that lies in the folder of the run that --config is of"),
    "output": (Path | None, "FILE", None, "the file to write; without it, a free name such as ppo-LunarLander-v3.toml"),
}


def main(arguments: list[str]) -> None:
    """Tune, print the result, and write the file."""
    config = path_after("--config", arguments)
    with named_code(arguments):
        _tune(arguments, config)


def _tune(arguments: list[str], config: Path | None) -> None:
    parsed, given = setting_flags.parsed("tune", "ppo LunarLander-v3", DESCRIPTION, FLAGS, arguments, config)
    output = parsed.output or free(f"{parsed.algorithm}-{_short(parsed.env)}.toml")
    _check_folder(output.parent)
    found = tune(parsed.algorithm, parsed.env, seconds=parsed.seconds, by=parsed.by, watch=tell, **given)
    say(_report(found))  # before writing the file, which may fail
    with replacing(output, "the settings") as fresh:
        fresh.write_text(found.toml(), encoding="utf-8")
    say(f"wrote {output}\n  headrace train --config {shlex.quote(str(output))}")


def _check_folder(folder: Path) -> None:
    """Raise errors of writing the file before the measurements."""
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} to write to: make it, or give another --output")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"the folder {folder.resolve()} cannot be written to: give another --output")


def _report(found: Tuning) -> str:
    early = "\nended early: what was found until then" if found.interrupted else ""
    kept = f"\nkept in {found.kept}: --workers auto, --actors auto and --device auto go by it" if found.kept else ""
    return f"{found}{early}{kept}"


def _short(env: str) -> str:
    """An environment's name without its file, module or folder."""
    return env.rpartition(":")[2].rpartition("/")[2].removesuffix(".py")
