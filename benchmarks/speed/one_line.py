"""Programs of other libraries made faster by changing one line: steps/s before and after, and Amdahl's bound.

Programs: examples/ppo_single_file.py (plain torch, CleanRL's style) with Gymnasium's SyncVectorEnv and with
headrace.make_vec(); Stable-Baselines3's PPO with its DummyVecEnv and with headrace.sb3.VecEnv; and headrace.sb3.PPO in
place of Stable-Baselines3's. All are PPO on CartPole-v1, 4 epochs of 4 minibatches, on one thread of torch; with one
environment, Stable-Baselines3's quickstart with its default settings. The bound is what a program would reach if its
environments took no time: 1 / (1 - the fraction of its time that they take).
"""

from __future__ import annotations

import statistics
import sys

from benchmarks.common import Neighbours, Row, finish, parser, run_program, site_packages, table

SIZES = {1: 2048, 8: 128, 64: 32, 1024: 16}  # environments -> steps of each in a rollout
ROLLOUTS = {1: 25, 8: 40, 64: 40, 1024: 16}  # that are timed
VARIANTS = {  # name -> what it is compared with
    "single_file_sync": None,
    "single_file_headrace": "single_file_sync",
    "sb3_dummy": None,
    "sb3_headrace": "sb3_dummy",
    "headrace_sb3": "sb3_dummy",
}
QUICKSTARTS = {"sb3_quickstart": None, "headrace_quickstart": "sb3_quickstart"}  # with one environment
COLUMNS = ("num_envs", "program", "steps_per_second", "in_envs", "times_before", "bound", "mean_return")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--sizes", default=",".join(map(str, SIZES)), help="numbers of environments")
    flags.add_argument("--rounds", type=int, default=3, help="of all programs in turn; the median counts")
    options = flags.parse_args()
    neighbours = Neighbours()
    packages = site_packages(options.peers_home)
    rounds = 1 if options.quick else options.rounds
    rows = [
        row for size in map(int, options.sizes.split(",")) for row in measured(size, rounds, options.quick, packages)
    ]
    print(table(rows, COLUMNS))
    finish("one_line", rows, options, neighbours)


def measured(num_envs: int, rounds: int, quick: bool, packages: str | None) -> list[Row]:
    """A row for each program: medians over rounds."""
    variants = QUICKSTARTS if num_envs == 1 else VARIANTS
    names = [name for name in variants if packages or not name.startswith("sb3")]
    runs: dict[str, list[Row]] = {name: [] for name in names}
    rollouts = 2 if quick else ROLLOUTS[num_envs]
    for seed in range(rounds):
        for name in names:
            arguments = (name, num_envs, SIZES[num_envs], rollouts, seed, packages or "")
            runs[name].append(run_program(sys.executable, "speed/one_line_one.py", *arguments, timeout=600))
    rows: dict[str, Row] = {}
    for name, found in runs.items():
        medians = {key: statistics.median(run[key] for run in found) for key in found[0]}
        rows[name] = {"num_envs": num_envs, "program": name, **medians}
        if (before := rows.get(variants[name] or "")) is not None:
            rows[name]["times_before"] = medians["steps_per_second"] / before["steps_per_second"]
            if "in_envs" in before:
                rows[name]["bound"] = 1 / (1 - before["in_envs"])
    return list(rows.values())


if __name__ == "__main__":
    main()
