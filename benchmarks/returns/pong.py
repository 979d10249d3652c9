"""Atari's Pong on one core of a CPU: how far DQN comes in less than two hours, against steps and time.

    python -m benchmarks.returns.pong                # --minutes 105
    python -m benchmarks.returns.pong --run FOLDER   # the figure of a run that was trained before

The settings are those registered for Atari's games, rl-baselines3-zoo's, with three parts of Rainbow (Hessel et al.
2018, arXiv:1710.02298): double, priorities, returns of three steps; learning starts earlier. An episode's return is
that of training, with a random action in a hundred. A step is four frames.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np

from benchmarks.common import ROOT, Neighbours, Row, finish, parser, table
from benchmarks.figures import PAGE, canvas, dress, line, save

ENV, REACHED, WINDOW = "ALE/Pong-v5", 15.0, 20  # episodes of which the mean is drawn
SETTINGS = {
    **{"n_steps": 3, "double": True, "prioritized": True, "adam_eps": 1.5e-4, "learning_starts": 20_000},
    **{"threads": 1, "total_steps": 1_250_000},
}
QUICK = {"total_steps": 6_000, "learning_starts": 5_900, "buffer_size": 6_000}
COLUMNS = ("seed", "steps", "minutes", "steps_per_s", "best", "last", "reached_steps", "reached_minutes")


def main() -> None:
    flags = parser((__doc__ or "").splitlines()[0])
    flags.add_argument("--minutes", type=float, default=105.0, help="of training")
    flags.add_argument("--seed", type=int, default=1)
    flags.add_argument("--run", type=Path, help="folder of a run, instead of training")
    options = flags.parse_args()
    neighbours = Neighbours()
    folder = options.run or train(options.seed, options.minutes, options.quick)
    row = summary(folder)
    print(table([row], COLUMNS))
    if not options.quick:
        print(draw(row["points"], options.results))
    finish("pong", [row], options, neighbours)


def train(seed: int, minutes: float, quick: bool) -> Path:
    """The folder of a new run, in runs/ of the repository, which git ignores."""
    import headrace as hr

    settings = {**SETTINGS, **(QUICK if quick else {}), "seed": seed, "max_seconds": 60 * minutes}
    return hr.train("dqn", ENV, log_folder=ROOT / "runs" / "pong", **settings).path


def summary(folder: Path) -> Row:
    """Result of a run, and its curve: for each episode that ended, steps and minutes by then, and the mean return of
    the last WINDOW."""
    episodes = np.loadtxt(folder / "monitor.csv", delimiter=",", skiprows=2, ndmin=2)
    returns, steps, minutes = episodes[:, 0], np.cumsum(episodes[:, 1]), episodes[:, 2] / 60
    window = min(WINDOW, len(returns))
    means = np.lib.stride_tricks.sliding_window_view(returns, window).mean(1)
    points = [
        {"steps": int(at), "minutes": float(when), "return": float(mean)}
        for at, when, mean in zip(steps[window - 1 :], minutes[window - 1 :], means, strict=True)
    ]
    there = next((point for point in points if point["return"] >= REACHED), None)
    config = tomllib.loads((folder / "config.toml").read_text())
    config.pop("log_folder", None)  # of this machine alone
    return {
        **{"env": ENV, "algorithm": config["algorithm"], "seed": config["seed"], "settings": config},
        **{"steps": int(steps[-1]), "minutes": float(minutes[-1]), "steps_per_s": steps[-1] / minutes[-1] / 60},
        **{"best": max(point["return"] for point in points), "last": points[-1]["return"]},
        "reached_steps": there and there["steps"],
        "reached_minutes": there and there["minutes"],
        "points": points,
    }


def draw(points: list[Row], folder: Path) -> Path:
    """The mean return of the last WINDOW episodes against steps and against time."""
    figure, panels = canvas(PAGE, 2.6, 2, sharey=True)
    returns = [point["return"] for point in points]
    for panel, name, label in zip(panels, ("steps", "minutes"), ("environment steps", "minutes"), strict=True):
        line(panel, "kernel", [point[name] for point in points], returns, marker="")
        panel.axhline(REACHED, color="0.6", linewidth=0.8, linestyle=":")
        panel.set_ylim(-21.5, 21.5)
        panel.set_xlabel(label)
        dress(panel)
        panel.set_xlim(0)
        panel.locator_params("x", nbins=6)
    panels[0].xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    panels[0].set_ylabel(f"return, mean of {WINDOW} episodes")
    return save(figure, folder, "pong")


if __name__ == "__main__":
    main()
