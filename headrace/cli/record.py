"""`headrace record RUN`: writes episodes of a trained policy in Minari's format."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated

import tyro

from headrace.cli import pairs
from headrace.cli.run_policy import Choice, load_chosen, skills_of
from headrace.core.processes.state import shown
from headrace.core.terminal import say
from headrace.core.trust import code_of
from headrace.evaluation.recording import record

DESCRIPTION = "Write episodes of a trained policy in Minari's format: headrace record runs/ppo/CartPole-v1_1"


@dataclass(frozen=True)
class Record:
    """The run, and settings of the recording."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]  # folder of a run or of a checkpoint in it
    choice: Annotated[tyro.conf.OmitArgPrefixes[Choice], tyro.conf.arg(name="policy")]
    # the folder to write; without it, episodes, or the first free name of episodes_2 ...
    output: Path | None = None
    episodes: int = 100  # number of episodes, one after the other
    seed: int = 0  # of the first episode; each later episode has the next seed


def main(arguments: list[str]) -> None:
    """Record, and print the returns and the folder."""
    options = pairs.cli(Record, "record", DESCRIPTION, args=arguments)
    with code_of(options.run, trust=options.choice.trust):
        policy, _, described, env, deterministic, kwargs = load_chosen(options.run, options.choice)
        kwargs = {**kwargs, **skills_of(options.run)}
        found = record(policy, env, options.output, options.episodes, options.seed, deterministic, **kwargs)
    say(f"{env}, {described}")
    say(f"wrote {shown(found.path)}: {len(found.returns)} episodes, {found.steps:,} steps")
    say(f"return: mean {fmean(found.returns):.4g}, lowest {min(found.returns):.4g}")
