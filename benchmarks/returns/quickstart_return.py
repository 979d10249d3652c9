"""Time to equal return: PPO of Stable-Baselines3 with its default settings, and `from headrace.sb3 import PPO`.

Both train in one environment (LunarLander-v3, which needs Box2D for Stable-Baselines3), on one thread of torch, in
turns. The return is the mean of the last 100 episodes of the training. Stable-Baselines3 trains for --steps steps;
Headrace, for up to twice as many, until its return is that which Stable-Baselines3 had at its end. Time counts in
learn() alone.
"""

from __future__ import annotations

import statistics
import sys

from benchmarks.common import Neighbours, Row, finish, parser, run_program, site_packages, table

COLUMNS = ("env", "seed", "program", "steps", "seconds", "mean_return", "times_faster")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--env", default="LunarLander-v3", help="an environment of both")
    flags.add_argument("--steps", type=int, default=102_400, help="of Stable-Baselines3")
    flags.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one training each")
    options = flags.parse_args()
    neighbours, rows = Neighbours(), list[Row]()
    packages = site_packages(options.peers_home)
    if packages is None:
        return
    steps = 4096 if options.quick else options.steps
    for seed in options.seeds[:1] if options.quick else options.seeds:
        arguments = (options.env, steps, seed, packages)
        before = run_program(sys.executable, "returns/quickstart_return_one.py", "sb3", *arguments, "inf", timeout=1200)
        wanted = (options.env, 2 * steps, seed, packages, before["mean_return"])
        after = run_program(sys.executable, "returns/quickstart_return_one.py", "headrace", *wanted, timeout=1200)
        if after["mean_return"] >= before["mean_return"]:
            after["times_faster"] = before["seconds"] / after["seconds"]
        rows += [before, after]
    print(table(rows, COLUMNS))
    reached = [row["times_faster"] for row in rows if "times_faster" in row]
    if reached:
        print(f"{statistics.median(reached):.1f} times faster to the same return (median of {len(reached)} seeds)")
    finish("quickstart_return", rows, options, neighbours)


if __name__ == "__main__":
    main()
