"""`headrace compare sb3 ALGORITHM ENV`: train one task with Headrace and with Stable-Baselines3."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import tyro

from headrace.cli import pairs
from headrace.cli.several import seeds
from headrace.core.terminal import say
from headrace.core.text import plain_table
from headrace.core.writing import free
from headrace.evaluation.curves import plot

DESCRIPTION = """Train the same task with Headrace and Stable-Baselines3: headrace compare sb3 ppo CartPole-v1

Both have the same arguments, Stable-Baselines3's defaults or those of --arguments and --zoo, the same steps and seeds,
and train one after the other in this process. Prints a table, and plots the learning curves."""
HEADINGS = ("library", "seed", "return", "evaluated", "steps", "seconds", "steps per second", "seconds before")


@dataclass(frozen=True)
class Compare:
    """The task, and settings of both trainings."""

    library: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="sb3")]  # the other library: sb3
    algorithm: Annotated[str, tyro.conf.Positional]  # ppo, a2c, sac, td3, dqn, ddpg, tqc, crossq, trpo, qrdqn
    env: Annotated[str, tyro.conf.Positional]  # the id of an environment of Gymnasium
    # arguments of Stable-Baselines3's constructor, and n_envs, as in learning_rate=1e-3 n_envs=8
    arguments: dict[str, Any] = field(default_factory=dict)
    # a YAML file of rl_zoo3: the arguments of its entry ENV
    zoo: Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")] = None
    # environment steps of each training; without it, those of the entry, or 100,000
    total_steps: Annotated[int | None, tyro.conf.arg(metavar="STEPS", help_behavior_hint="")] = None
    seeds: str = "0"  # each library trains once for each seed: 0-4 for five, or 1,5,7
    episodes: int = 20  # of each policy after its training
    folder: Path = Path("compared")  # where the runs are written
    # the image, a .png, .svg or .pdf; without it, compared.png, or the first free name of compared_2.png ...
    output: Path | None = None


def main(arguments: list[str]) -> None:
    """Train, print the table, and plot."""
    options = pairs.cli(Compare, "compare", DESCRIPTION, args=arguments)
    from headrace.sb3.zoo import side_by_side

    if options.library != "sb3":
        raise ValueError(f"compare has one other library, sb3, got {options.library!r}")
    steps = options.total_steps
    if (steps is not None and steps < 1) or options.episodes < 1:
        raise ValueError(f"--total-steps and --episodes must be 1 or more, got {steps} and {options.episodes}")
    task = side_by_side.task(options.algorithm, options.env, options.arguments, steps, options.zoo)
    folder, results = free(str(options.folder)), list[side_by_side.Result]()
    for seed in seeds.parsed(options.seeds):
        for train in (side_by_side.train_ours, side_by_side.train_theirs):
            results.append(train(task, seed, folder, options.episodes))
            say(f"seed {seed}: {results[-1].library} has trained in {results[-1].seconds:.1f} s")
    say(table(results))
    paths = [result.path for result in results]
    say(f"wrote {plot(paths, free('compared.png') if options.output is None else options.output)}")
    say(f"  headrace plot {shlex.join(map(str, paths))}")


def table(results: list[Any]) -> str:
    """A row for each training, and the means of each library."""
    rows = [_cells(one.library, str(one.seed), [one]) for one in results]
    for library in dict.fromkeys(one.library for one in results):
        members = [one for one in results if one.library == library]
        if len(members) > 1:
            rows.append(_cells(library, "mean", members))
    return plain_table([HEADINGS, *rows])


def _cells(library: str, seed: str, members: list[Any]) -> tuple[str, ...]:
    names = ("mean_return", "evaluated", "steps", "seconds", "before")
    total, evaluated, steps, seconds, before = (fmean(getattr(one, name) for one in members) for name in names)
    returns = f"{total:.4g}", f"{evaluated:.4g}"
    return library, seed, *returns, f"{steps:,.0f}", f"{seconds:.1f}", f"{steps / seconds:,.0f}", f"{before:.1f}"
