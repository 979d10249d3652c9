"""`headrace plot RUN...`: plots learning curves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from headrace.cli import pairs
from headrace.core.terminal import say
from headrace.evaluation.curves import plot
from headrace.populations import lineages

DESCRIPTION = """Plot learning curves against environment steps and wall time: headrace plot runs/ppo/CartPole-v1_*

Runs of the same algorithm, environment and settings are treated as seeds: their mean is plotted, of four and more the
interquartile mean.

The folder of a population is plotted with the lineages of its members, and their settings.

Folders of other libraries are read too: *.monitor.csv of Stable-Baselines3, logs/ppo/CartPole-v1_1 of rl_zoo3,
TensorBoard's events of CleanRL and Stable-Baselines3."""


@dataclass(frozen=True)
class Plot:
    """Plot the learning curves of runs."""

    # folders of runs, in one or several environments, also of other libraries; or that of a population
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...", help_behavior_hint="")]
    # the file to write: a .png, .svg or .pdf; without it, curves.png, or the first free name of curves_2.png ...
    output: Path | None = None
    # group runs by these settings, such as learning_rate; without it, by all that differ and concern learning
    by: tuple[str, ...] | None = None
    # the column to plot in place of returns: a name of log_info, or one of metrics.jsonl, such as value_loss
    metric: str | None = None


def main(arguments: list[str]) -> None:
    """Plot, and print the path of the image."""
    options = pairs.cli(Plot, "plot", DESCRIPTION, args=arguments)
    if len(options.runs) == 1 and lineages.is_population(options.runs[0]):
        if options.by is not None:
            raise ValueError(f"--by {' '.join(options.by)} groups runs, and {options.runs[0]} is a population")
        if options.metric is not None:
            raise ValueError(f"--metric is of runs, and {options.runs[0]} is a population: name its members' folders")
        say(f"wrote {lineages.plot(options.runs[0], options.output)}")
        return
    say(f"wrote {plot(options.runs, options.output, options.by, options.metric)}")
