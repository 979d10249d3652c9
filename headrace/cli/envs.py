"""`headrace envs`: lists the built-in environments."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from headrace.cli import pairs
from headrace.core.terminal import say
from headrace.core.text import plain_table
from headrace.data.spaces import describe, to_json
from headrace.envs import Listing, listing
from headrace.envs.simulators.by_library import tasks

DESCRIPTION = (
    "List the built-in environments, with their spaces and backends, or the tasks of a simulator such as mjlab."
)
HINT = "Any other Gymnasium id (LunarLander-v3) and path/to/file.py:Class of your own work too."
HEADINGS = ("name", "observation", "actions", "backends")


@dataclass(frozen=True)
class Envs:
    """List environments."""

    library: Annotated[str | None, tyro.conf.Positional] = None  # list the tasks of a simulator: mjlab, brax and others
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False  # print a JSON list instead of a table


def main(arguments: list[str]) -> None:
    """Print a table or JSON."""
    options = pairs.cli(Envs, "envs", DESCRIPTION, args=arguments)
    if options.library is not None:
        names = [f"{options.library}/{task}" for task in tasks(options.library)]
        say(json.dumps(names) if options.json else "\n".join(names))
        return
    known = listing()
    if options.json:
        say(json.dumps([_to_json(one) for one in known]))
        return
    rows = [(x.name, describe(x.observation_space), describe(x.action_space), " ".join(x.backends)) for x in known]
    if sys.stdout.isatty():
        _print_rich(rows)
    else:
        say(plain_table([HEADINGS, *rows]))
    say(HINT)


def _print_rich(rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*HEADINGS, box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*row)
    Console(markup=False).print(table)


def _to_json(known: Listing) -> dict[str, object]:
    spaces = {"observation_space": to_json(known.observation_space), "action_space": to_json(known.action_space)}
    return {"name": known.name, **spaces, "backends": list(known.backends), "source": known.source}
