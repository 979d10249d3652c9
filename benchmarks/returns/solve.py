"""Time until an environment is solved: train seconds, and total seconds from the start of the process.

Solved: 100 deterministic episodes on Gymnasium's own environment reach the threshold. Reported are the first check that
passes and, as the headline, the third of three in a row (held). Every seed runs in a fresh process (solve_one.py), so
that total seconds are true. Time spent evaluating is not counted, and everybody is checked at the same interval of
environment steps (or at the end of an iteration, where that is longer).

Hyperparameters are to be chosen on seeds from 1000 up; seeds 0 to 9 are for reporting.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile

from benchmarks.common import Neighbours, Row, finish, interpreter_with, parser, run_program, table
from benchmarks.judge import TASKS
from benchmarks.peers import PEERS, WORKS

COLUMNS = ("library", "config", "env", "cache", "seeds", "solved", "held", "train_s", "total_s")
COLUMNS += ("held_train_s", "held_min", "held_max", "held_total_s", "held_steps")


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--env", nargs="+", default=["CartPole-v1"], help="environments, or 'all'")
    flags.add_argument("--library", nargs="+", default=["headrace"], choices=PEERS)
    flags.add_argument("--seeds", default="0-9", help="as in 0-9 or 3,5,8")
    flags.add_argument("--cache", nargs="+", default=["warm"], choices=("warm", "cold"), help="of compiled kernels")
    flags.add_argument(
        "--config",
        nargs="+",
        choices=("own", *WORKS),
        help="own: Headrace's for each environment; zoo, large: for all alike",
    )
    flags.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="other settings for Headrace")
    flags.add_argument("--threads", type=int, help="of every library; by default as many as each likes")
    flags.add_argument("--max-steps", type=int, help="give up after so many steps (by default the environment's)")
    flags.add_argument("--peer-python", help="the Python to use for every library but Headrace")
    options = flags.parse_args()
    if options.quick:
        options.seeds, options.max_steps = options.seeds.split("-")[0].split(",")[0], options.max_steps or 4096
    neighbours, rows = Neighbours(), list[Row]()
    for library, config, cache in cases(options):
        peer = options.peer_python if library != "headrace" else None
        python = peer or interpreter_with(PEERS[library].module, options.peers_home, PEERS[library].home)
        if python is None:
            print(f"{library} is not installed, here or in {options.peers_home}: left out")
            continue
        for env in TASKS if options.env == ["all"] else options.env:
            rows += measure(python, library, config, env, cache, options)
    print(table(summary(rows), COLUMNS))
    print("medians over the seeds that got there; held: at the third passed check in a row")
    finish("solve", rows, options, neighbours, settings=options.set)


def cases(options: argparse.Namespace) -> list[tuple[str, str | None, str | None]]:
    """(library, config, cache) of everything asked for. Only Headrace has settings of its own (config None) and a
    cache, whose state matters to those alone."""
    asked = options.config or []
    chosen: list[tuple[str, str | None, str | None]] = []
    for library in options.library:
        ours = library == "headrace"
        if ours and (not asked or "own" in asked):
            chosen += [(library, None, cache) for cache in options.cache]
        alike = [config for config in WORKS if config in (asked or ([] if ours else WORKS))]
        chosen += [(library, config, "warm" if ours else None) for config in alike]
    return chosen


def measure(
    python: str, library: str, config: str | None, env: str, cache: str | None, options: argparse.Namespace
) -> list[Row]:
    """A row for each seed."""
    flags = ["--env", env, *(["--config", config] if config else []), *(["--set", *options.set] if options.set else [])]
    limit = ["--max-steps", options.max_steps] if options.max_steps else []
    if cache == "warm":  # fill it, untimed
        run_program(python, "returns/solve_one.py", library, *flags, "--seed", 999, "--max-steps", 1, timeout=600)
    rows = []
    for seed in seeds(options.seeds):
        with tempfile.TemporaryDirectory() as empty:
            settings = {"HEADRACE_CACHE": empty} if cache == "cold" else {}
            if options.threads:
                settings |= {"OMP_NUM_THREADS": str(options.threads), "HEADRACE_THREADS": str(options.threads)}
            neighbours = Neighbours()
            row = run_program(
                python, "returns/solve_one.py", library, *flags, *limit, "--seed", seed, timeout=3600, env=settings
            )
        rows.append({**row, "cache": cache, "others_cpu": neighbours.busy()})
        print(f"{library} {config or ''} {env} seed {seed} {cache or ''}: {in_words(row)}", flush=True)
    return rows


def seeds(text: str) -> list[int]:
    """'0-2,7' -> [0, 1, 2, 7]."""
    chosen = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        chosen += range(int(first), int(last or first) + 1)
    return chosen


def in_words(row: Row) -> str:
    if not row["held"]:
        return f"not held within {row['last_step']:,} steps, last mean {row['last_mean']:.1f}"
    return f"held after {row['held_train_s']:.2f} s of training, {row['held_total_s']:.2f} s in total"


def summary(rows: list[Row]) -> list[Row]:
    """A line for each library, config, environment and cache."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault((row["library"], row["config"], row["env"], row["cache"]), []).append(row)
    return [_summary(key, group) for key, group in groups.items()]


def _summary(key: tuple, group: list[Row]) -> Row:
    held = [row["held_train_s"] for row in group if row["held"]]
    line = dict(zip(("library", "config", "env", "cache"), key, strict=True)) | {"seeds": len(group)}
    line |= {name: sum(row[name] for row in group) for name in ("solved", "held")}
    for name in ("train_s", "total_s", "held_train_s", "held_total_s", "held_steps"):
        got = [row[name] for row in group if row[name] is not None]
        line[name] = statistics.median(got) if got else None
    return line | {"held_min": min(held, default=None), "held_max": max(held, default=None)}


if __name__ == "__main__":
    main()
