"""PPO on each backend: return on Gymnasium's own CartPole-v1 against wall time, mean and band of 5 seeds.

The same PPO with the same hyperparameters (`large`, peers/__init__.py) steps environments inline in Python, as batched
torch, and as a compiled kernel; Stable-Baselines3 trains with the same settings. Two more lines show what each reaches
with settings tuned for it: Headrace's for CartPole, SB3's zoo's. Time spent looking is left out, compiled kernels are
in the cache.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import Neighbours, Row, finish, interpreter_with, parser, run_program, table
from benchmarks.figures import PAGE, canvas, dress, line, save
from benchmarks.peers import PEERS

GRID = 120  # points of a mean curve
RESAMPLES = 2000
SOLVED = 475.0
COLUMNS = ("config", "seeds", "final_mean", "mean_reaches_475_s", "steps", "others_cpu")


class Line(NamedTuple):
    """A line of the figure."""

    name: str  # of its style
    label: str
    library: str
    config: str
    backend: str = "auto"
    panel: int = 0


LINES = (
    Line("inline", "inline (Gymnasium)", "headrace", "large", "inline"),
    Line("torch", "torch", "headrace", "large", "torch"),
    Line("kernel", "kernel", "headrace", "large", "cpu"),
    Line("sb3", "SB3", "sb3", "large"),
    Line("kernel", "kernel, tuned", "headrace", "own", "cpu", panel=1),
    Line("sb3", "SB3, tuned (zoo)", "sb3", "zoo", panel=1),
)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--seeds", type=int, default=5)
    flags.add_argument("--seconds", type=float, default=8.0, help="of training")
    flags.add_argument("--lines", nargs="+", default=[line.label for line in LINES], help="labels of those wanted")
    flags.add_argument("--peer-threads", type=int, help="of other libraries; by default as many as they like")
    options = flags.parse_args()
    if options.quick:
        options.seeds, options.seconds = 1, 0.3
    neighbours, rows = Neighbours(), list[Row]()
    for wanted in LINES:
        if wanted.label in options.lines:
            rows += measure(wanted, options)
    print(table(summaries(rows), COLUMNS))
    print(f"figure: {draw(rows, options.results)}")
    finish("return_over_time", rows, options, neighbours, env="CartPole-v1")


def measure(wanted: Line, options: Any) -> list[Row]:
    """A row for each seed; none where the library is missing."""
    peer = PEERS[wanted.library]
    python = sys.executable if not peer.home else interpreter_with(peer.module, options.peers_home, peer.home)
    if python is None:
        print(f"{wanted.library} is not installed, here or in {options.peers_home}: left out")
        return []
    flags = [wanted.library, "--config", wanted.config, "--backend", wanted.backend]
    if wanted.library == "headrace":  # fill the cache, untimed
        run_program(python, "returns/return_one.py", *flags, "--seed", 999, "--seconds", 0, timeout=300)
    threads = {"OMP_NUM_THREADS": str(options.peer_threads)} if peer.home and options.peer_threads else {}
    rows = []
    for seed in range(options.seeds):
        limit = ["--seed", seed, "--seconds", options.seconds]
        one = run_program(python, "returns/return_one.py", *flags, *limit, timeout=900, env=threads)
        about = {"library": wanted.library, "config": wanted.label, "settings": wanted.config}
        rows.append({**about, "backend": wanted.backend, **one})
        print(f"{wanted.label}, seed {seed}: {one['points'][-1]['mean_return']:.0f} at the end", flush=True)
    return rows


def grouped(rows: list[Row]) -> list[tuple[Line, list[Row]]]:
    """The rows of each line."""
    groups = [(wanted, [row for row in rows if row["config"] == wanted.label]) for wanted in LINES]
    return [(wanted, group) for wanted, group in groups if group]


def mean_curve(group: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Seconds [G], and the return of each seed at these [S, G]."""
    start = max(row["points"][0]["seconds"] for row in group)
    end = max(min(row["points"][-1]["seconds"] for row in group), start * 1.001)
    seconds = np.geomspace(start, end, GRID)
    curves = []
    for row in group:
        at = [point["seconds"] for point in row["points"]]
        curves.append(np.interp(np.log(seconds), np.log(at), [point["mean_return"] for point in row["points"]]))
    return seconds, np.stack(curves)


def summaries(rows: list[Row]) -> list[Row]:
    """A line of the table for each of the figure."""
    table_rows = []
    for wanted, group in grouped(rows):
        seconds, curves = mean_curve(group)
        there = np.flatnonzero(curves.mean(0) >= SOLVED)
        table_rows.append(
            {
                "config": wanted.label,
                "seeds": len(group),
                "final_mean": float(np.mean([row["points"][-1]["mean_return"] for row in group])),
                "mean_reaches_475_s": float(seconds[there[0]]) if len(there) else None,
                "steps": int(np.median([row["points"][-1]["steps"] for row in group])),
                "others_cpu": max(row["others_cpu"] or 0.0 for row in group),
            }
        )
    return table_rows


def draw(rows: list[Row], folder: Path) -> Path:
    """Means with 95 % bootstrap bands of the mean over seeds: on equal settings, and on settings tuned for each."""
    figure, panels = canvas(PAGE, 2.9, 2, sharey=True)
    random = np.random.default_rng(0)
    for wanted, group in grouped(rows):
        panel = panels[wanted.panel]
        seconds, curves = mean_curve(group)
        label = wanted.label if wanted.panel == 0 else None
        line(panel, wanted.name, seconds, curves.mean(0), label, marker="")
        colour = panel.lines[-1].get_color()
        chosen = random.integers(0, len(curves), (RESAMPLES, len(curves)))
        low, high = np.percentile(curves[chosen].mean(1), (2.5, 97.5), axis=0)
        panel.fill_between(seconds, low, high, color=colour, alpha=0.15, linewidth=0)
    titles = ("(a) the same settings for all", "(b) settings tuned for each")
    for panel, title in zip(panels, titles, strict=True):
        panel.axhline(SOLVED, color="0.6", linewidth=0.8, linestyle=":")
        panel.set_xscale("log")
        panel.set_xticks([0.03, 0.1, 0.3, 1, 3, 10], ["0.03", "0.1", "0.3", "1", "3", "10"])
        panel.set_xlim(0.05, 1.05 * max(row["points"][-1]["seconds"] for row in rows))
        panel.set_xticks([], minor=True)
        panel.set_ylim(0, 510)
        panel.set_title(title, loc="left")
        panel.set_xlabel("wall time of training (s)")
        dress(panel)
    panels[0].set_ylabel("return on Gymnasium's CartPole-v1")
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return save(figure, folder, "return_over_time")


if __name__ == "__main__":
    main()
