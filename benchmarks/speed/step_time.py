"""The time of one step against the number of environments: processes, batched torch, the compiled kernel.

CartPole-v1, 1 to 2^17 environments. `subprocess` is Gymnasium's AsyncVectorEnv, a process for each. On a machine with
a GPU also torch there and the CUDA kernel at several numbers of threads a block. Where a line turns from flat to
straight up, more environments take more time: the turning point is the first N whose step takes twice as long as
that of one environment.
"""

from __future__ import annotations

from pathlib import Path

import gymnasium
import torch

from benchmarks.common import Neighbours, Row, finish, parser, table
from benchmarks.figures import COLUMN, canvas, dress, line, save
from benchmarks.speed import stepping
from headrace.envs.builtin.cartpole import CartPole

SIZES = tuple(2**power for power in range(18))
COLUMNS = ("config", "num_envs", "step_us", "step_us_max", "sps", "others_cpu")


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--num-envs", nargs="+", type=int, default=SIZES)
    flags.add_argument("--seconds", type=float, default=0.15, help="of each of the three windows")
    options = flags.parse_args()
    if options.quick:
        options.num_envs, options.seconds = [1, 8], 0.01
    torch.set_num_threads(1)
    neighbours, rows = Neighbours(), list[Row]()
    for way in stepping.ways():
        for num_envs in options.num_envs:
            if num_envs <= way.most:
                rows.append(stepping.measure(way, CartPole, original, num_envs, options.seconds))
    print(table([in_microseconds(row) for row in rows], COLUMNS))
    points = turning_points(rows)
    for name, num_envs in points.items():
        print(f"{name}: the turning point is at {num_envs:,} environments" if num_envs else f"{name}: no turning point")
    print(f"figure: {draw(rows, options.results)}")
    finish("step_time", rows, options, neighbours, env="CartPole-v1", turning_points=points)


def original() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1", disable_env_checker=True)


def in_microseconds(row: Row) -> Row:
    return row | {f"step_us{end}": 1e6 * row[f"step_s{end}"] for end in ("", "_max")}


def turning_points(rows: list[Row]) -> dict[str, int | None]:
    """First number of environments whose step takes twice as long as that of the fewest environments, by way."""
    points = {}
    for name in dict.fromkeys(row["config"] for row in rows):
        line = [row for row in rows if row["config"] == name]
        later = (row["num_envs"] for row in line if row["step_s"] >= 2 * line[0]["step_s"])
        points[name] = next(later, None)
    return points


def draw(rows: list[Row], folder: Path) -> Path:
    ways = stepping.ways()
    figure, panel = canvas(COLUMN, 2.55 + 0.08 * len(ways))
    for way in ways:
        mine = [row for row in rows if row["config"] == way.name]
        line(panel, way.name, [row["num_envs"] for row in mine], [row["step_s"] for row in mine], way.label)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.set_xlabel("number of environments")
    panel.set_ylabel("time of one step of all (s)")
    panel.set_title("CartPole-v1, random actions", loc="left")
    dress(panel)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return save(figure, folder, "step_time")


if __name__ == "__main__":
    main()
