"""`headrace plot RUN...`: learning curves as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from headrace.evaluation.curves import plot

DESCRIPTION = """Learning curves against environment steps and wall time: headrace plot runs/ppo/CartPole-v1_*

Runs of the same algorithm and environment are taken as seeds, and joined by their interquartile mean."""


@dataclass(frozen=True)
class Plot:
    """What to draw, and where."""

    # folders of runs, of one environment or several
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN...", help_behavior_hint="")]
    output: Path = Path("curves.png")  # where to draw: a .png, .svg or .pdf


def main(arguments: list[str]) -> None:
    """Draw and say where the picture lies."""
    options = tyro.cli(Plot, prog="headrace plot", description=DESCRIPTION, args=arguments)
    print(f"wrote {plot(options.runs, options.output)}")
