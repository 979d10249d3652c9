"""The time of one step against the work in it, CartPole with its computation repeated, and the number of environments.

Each repetition is a sub-step that needs the one before (repeated.py). As the work grows, the cost of passing one
to a process, or an operation to torch, weighs less and less; the figure shows from where on.
"""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.common import Neighbours, Row, finish, parser, table
from benchmarks.figures import PAGE, canvas, dress, line, save
from benchmarks.speed import repeated, stepping

TIMES = (1, 4, 16, 64, 256)
SIZES = (1, 4, 16, 64, 256, 1024, 4096, 16_384)
SHOWN = (1, 16, 256)  # repetitions in the figure against the number of environments
COMMON = 64  # environments in the figure against the work
COLUMNS = ("config", "times", "num_envs", "step_us", "step_us_max", "sps", "others_cpu")
WAYS = (stepping.SUBPROCESS, stepping.TORCH, stepping.KERNEL)


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--times", nargs="+", type=int, default=TIMES, help="repetitions of the computation")
    flags.add_argument("--num-envs", nargs="+", type=int, default=SIZES)
    flags.add_argument("--seconds", type=float, default=0.1, help="of each of the three windows")
    options = flags.parse_args()
    if options.quick:
        options.times, options.num_envs, options.seconds = [4], [1, 4], 0.01
    torch.set_num_threads(1)
    neighbours, rows = Neighbours(), list[Row]()
    for times in options.times:
        kernel, original = repeated.kernel(times), repeated.original(times)
        for way in WAYS:
            for num_envs in options.num_envs:
                if num_envs <= way.most:
                    row = stepping.measure(way, kernel, original, num_envs, options.seconds)
                    rows.append({**row, "times": times, "step_us": 1e6 * row["step_s"]})
                    rows[-1]["step_us_max"] = 1e6 * row["step_s_max"]
    print(table(rows, COLUMNS))
    print(f"figure: {draw(rows, options.results)}")
    finish("work_per_step", rows, options, neighbours, env="CartPole-v1 in sub-steps")


def draw(rows: list[Row], folder: Path) -> Path:
    figure, (work, number) = canvas(PAGE, 2.9, 2, sharey=True)
    common = max(n for n in {row["num_envs"] for row in rows} if n <= COMMON)
    shown = [times for times in dict.fromkeys(row["times"] for row in rows) if times in SHOWN]
    for way in WAYS:
        mine = [row for row in rows if row["config"] == way.name]
        at = [row for row in mine if row["num_envs"] == common]
        line(work, way.name, [row["times"] for row in at], [row["step_s"] for row in at], way.label)
        for times, dash in zip(shown, ("-", "--", ":"), strict=False):
            at = [row for row in mine if row["times"] == times]
            line(number, way.name, [row["num_envs"] for row in at], [row["step_s"] for row in at], linestyle=dash)
    for times, dash in zip(shown, ("-", "--", ":"), strict=False):
        line(number, "kernel", [], [], f"{times} x", linestyle=dash, color="0.3", marker="")
    work.set_ylabel("time of one step of all (s)")
    work.set_xlabel("work in a step (sub-steps)")
    work.set_title(f"(a) {common} environments", loc="left")
    number.set_xlabel("number of environments")
    number.set_title("(b) by sub-steps in a step", loc="left")
    for panel in (work, number):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        dress(panel)
    figure.legend(loc="outside lower center", ncols=6, frameon=False)
    return save(figure, folder, "work_per_step")


if __name__ == "__main__":
    main()
