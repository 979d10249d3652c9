"""Time to solve against the number of envs: by settings that follow from it, and by the registered ones as they are.

The rule (docs/scaling.md) was fitted on CartPole-v1 and Pendulum-v1, for fewer environments on two more, on seeds
from 1000 up; Acrobot-v1 and MountainCar-v0 show whether it holds. Solved is as in solve.py: held for three checks in a
row by judge.py; training alone counts. A run is given up after some seconds of training, the same for all. Where width
costs nothing, as on a GPU with room, time goes with what is done one after another: updates (minibatch steps) and
vector steps are counted too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.common import Neighbours, Row, finish, parser, run_program, table
from benchmarks.figures import PAGE, canvas, dress, save

FITTED = ("CartPole-v1", "Pendulum-v1", "MountainCarContinuous-v0", "Catch")
UNSEEN = ("Acrobot-v1", "MountainCar-v0")
NUM_ENVS = (8, 16, 32, 64, 128, 512, 2048, 4096)
GIVE_UP = 3.0  # s of training
COLUMNS = ("env", "settings", "num_envs", "num_steps", "epochs", "minibatch_size", "learning_rate", "held", "held_s")
COLUMNS += ("held_min", "held_max", "held_steps", "iterations", "updates", "vector_steps")
LOOKS = {"rule": ("#0072B2", "o", "rule"), "fixed": ("#D55E00", "s", "fixed settings")}


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--env", nargs="+", default=[*FITTED, *UNSEEN])
    flags.add_argument("--num-envs", nargs="+", type=int, default=list(NUM_ENVS))
    flags.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    flags.add_argument(
        "--give-up", type=float, default=GIVE_UP, help="seconds of training after which a run has failed"
    )
    options = flags.parse_args()
    if options.quick:
        options.env, options.num_envs, options.seeds, options.give_up = options.env[:1], options.num_envs[:2], [0], 0.2
    neighbours, rows = Neighbours(), list[Row]()
    for env in options.env:
        for num_envs in options.num_envs:
            rule = measure(env, num_envs, "rule", options)
            same = not rule[0]["follows"]  # the number of envs that the settings are registered for
            rows += rule
            rows += [{**row, "settings": "fixed"} for row in rule] if same else measure(env, num_envs, "fixed", options)
    lines = summary(rows)
    print(table(lines, COLUMNS))
    print(
        "medians over all seeds, a dash where half of them were not held in time; held_min, held_max of those that were"
    )
    print(table(best(lines), ("env", "rule", "rule_envs", "fixed", "fixed_envs", "ratio")))
    print("best median seconds over the numbers of envs; ratio: rule / fixed")
    plot(lines, options.results)
    finish("scaling", rows, options, neighbours, give_up=options.give_up, fitted=FITTED)


def measure(env: str, num_envs: int, settings: str, options: argparse.Namespace) -> list[Row]:
    """A row for each seed."""
    flags = ["--env", env, "--num-envs", num_envs, "--seeds", *options.seeds, "--give-up", options.give_up]
    neighbours = Neighbours()
    done = run_program(
        sys.executable, "returns/scaling_one.py", *flags, *(["--fixed"] if settings == "fixed" else []), timeout=3600
    )
    rows = [{**row, "others_cpu": neighbours.busy()} for row in done["rows"]]
    (line,) = summary(rows)
    print(f"{env} {num_envs} {settings}: {line['held']} of {len(rows)} held, {line['held_s'] or 0:.2f} s", flush=True)
    return rows


def summary(rows: list[Row]) -> list[Row]:
    """A line for each environment, number of envs and kind of settings."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["env"], row["settings"], row["num_envs"]), []).append(row)
    return [_line(group) for group in groups.values()]


def _line(group: list[Row]) -> Row:
    held = [row for row in group if row["held"]]
    names = ("env", "settings", "num_envs", "num_steps", "epochs", "minibatch_size", "learning_rate")
    line = {name: group[0][name] for name in names} | {"held": len(held), "seeds": len(group)}
    for name in ("held_s", "held_steps", "iterations", "updates", "vector_steps"):
        # a run that was given up took longer than all others
        values = sorted(row[name] for row in held) + [None] * (len(group) - len(held))
        line[name] = median(values)
    seconds = [row["held_s"] for row in held]
    return line | {"held_min": min(seconds, default=None), "held_max": max(seconds, default=None)}


def median(values: list[float | None]) -> float | None:
    """Median of sorted values, None being above all numbers. None where that is in the middle."""
    middle = values[(len(values) - 1) // 2 : len(values) // 2 + 1]
    return None if None in middle else statistics.mean(x for x in middle if x is not None)


def best(lines: list[Row]) -> list[Row]:
    """Shortest median of both kinds of settings for each environment, over the numbers of envs."""
    found = []
    for env in dict.fromkeys(line["env"] for line in lines):
        row: Row = {"env": env}
        for settings in LOOKS:
            solved = [x for x in lines if (x["env"], x["settings"]) == (env, settings) and x["held_s"] is not None]
            shortest = min(solved, key=lambda x: x["held_s"], default={"held_s": None, "num_envs": None})
            row |= {settings: shortest["held_s"], f"{settings}_envs": shortest["num_envs"]}
        both = row["rule"] is not None and row["fixed"] is not None
        found.append(row | {"ratio": row["rule"] / row["fixed"] if both else None})
    return found


def plot(lines: list[Row], folder: Path) -> None:
    """Seconds, and updates, until held against the number of envs; a cross on top where runs were given up."""
    names = list(dict.fromkeys(line["env"] for line in lines))
    figure, first = canvas(PAGE, 3.4)
    first.remove()
    grid = figure.subplots(2, len(names), squeeze=False, sharex=True, sharey="row")
    for panels, (value, label) in zip(grid, (("held_s", "training, s"), ("updates", "updates")), strict=True):
        for panel, env in zip(panels, names, strict=True):
            for settings in LOOKS:
                curve(panel, [x for x in lines if (x["env"], x["settings"]) == (env, settings)], value)
            panel.set_xscale("log", base=2)
            panel.set_yscale("log")
            dress(panel)
        if not any(line[value] for line in lines):
            panels[0].set_ylim(0.1, 10)  # a logarithmic axis finds no limits in nothing
        panels[0].set_ylabel(label)
    for above, below, env in zip(*grid, names, strict=True):
        above.set_title(env.partition("-v")[0])
        below.set_xlabel("envs")
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    save(figure, folder, "scaling")


def curve(panel: Any, lines: list[Row], value: str) -> None:
    """One kind of settings in one environment."""
    colour, marker, label = LOOKS[lines[0]["settings"]]
    solved = [line for line in lines if line[value] is not None]
    x, y = [line["num_envs"] for line in solved], [line[value] for line in solved]
    panel.plot(x, y, color=colour, marker=marker, markersize=3.5, linewidth=1.3, label=label)
    failed = [line["num_envs"] for line in lines if line[value] is None]
    height = 0.97 if lines[0]["settings"] == "fixed" else 0.9
    panel.plot(failed, [height] * len(failed), "x", color=colour, transform=panel.get_xaxis_transform())


if __name__ == "__main__":
    main()
