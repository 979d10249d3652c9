"""Environment steps per second: Headrace compared with Gymnasium, EnvPool and gymnax, from 1 to 2^20 environments.

Actions are given (drawn beforehand), every output is written. Counted are valid steps: where a library needs a step to
reset an environment, that one is not. Each library runs in a process of its own, one after another (env_steppers.py).
Libraries that are not installed here are looked for in --peers-home, and left out with a word where there are none.
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

from benchmarks.common import Neighbours, Row, finish, interpreter_with, parser, run_program, table


class Case(NamedTuple):
    """A library, a way of using it, and the numbers of environments that make sense for it."""

    library: str
    config: str
    module: str  # that must be importable
    num_envs: tuple[int, ...]


EVERY = (1, 64, 1024, 16_384, 131_072, 1_048_576)
CASES = [
    Case("headrace", "serial", "headrace", EVERY),
    Case("headrace", "threaded", "headrace", EVERY[2:]),
    Case("gymnasium", "loop", "gymnasium", EVERY[:1]),
    Case("gymnasium", "sync", "gymnasium", EVERY[:3]),
    Case("gymnasium", "async", "gymnasium", EVERY[:2]),  # a process each
    Case("gymnasium", "vectorised", "gymnasium", EVERY),
    Case("envpool", "sync", "envpool", EVERY[:5]),
    Case("gymnax", "scan", "gymnax", EVERY),
]
COLUMNS = ("library", "config", "backend", "num_envs", "threads", "sps", "sps_min", "sps_max", "others_cpu")


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    shared = "a name that Headrace and Gymnasium share; PixelPendulum is there put together from Gymnasium's wrappers"
    flags.add_argument("--env", default="CartPole-v1", help=shared)
    flags.add_argument("--libraries", nargs="+", default=sorted({case.library for case in CASES}))
    flags.add_argument("--num-envs", nargs="+", type=int, default=EVERY)
    flags.add_argument("--seconds", type=float, default=1.0, help="of each of the three windows")
    flags.add_argument("--peer-python", help="the Python to use for every library but Headrace")
    options = flags.parse_args()
    if options.quick:
        options.seconds, options.num_envs = 0.05, [num_envs for num_envs in options.num_envs if num_envs <= 1024]
    neighbours, rows, versions = Neighbours(), list[Row](), dict[str, dict[str, str]]()
    for case in CASES:
        sizes = [num_envs for num_envs in case.num_envs if num_envs in options.num_envs]
        if case.library not in options.libraries or not sizes:
            continue
        if case.library == "gymnasium" and case.config != "loop" and options.env.startswith("Pixel"):
            print(f"gymnasium {case.config} left out: with images, one step of 64 environments takes seconds")
            continue
        peer = options.peer_python if case.library != "headrace" else None
        python = peer or interpreter_with(case.module, options.peers_home)
        if python is None:
            print(f"{case.library} is not installed, here or in {options.peers_home}: left out")
            continue
        result = measure(case, python, sizes, options)
        rows += [{"library": case.library, "config": case.config, **row} for row in result["rows"]]
        versions[case.library] = result["versions"]
    print(table(rows, COLUMNS))
    print("sps: valid environment steps a second, median of three windows")
    finish("env_throughput", rows, options, neighbours, env=options.env, library_versions=versions)


def measure(case: Case, python: str, sizes: list[int], options: argparse.Namespace) -> Row:
    """Run env_steppers.py for one case. A peer that fails is reported and has no rows: it may lack the env."""
    print(f"{case.library} {case.config} ...", flush=True)
    flags = ["--env", options.env, "--seconds", options.seconds, "--num-envs", *sizes]
    try:
        return run_program(python, "speed/env_steppers.py", case.library, case.config, *flags, timeout=600)
    except RuntimeError as error:
        if case.library == "headrace":
            raise
        print(f"{case.library} {case.config} failed: {error}")
        return {"rows": [], "versions": {}}


if __name__ == "__main__":
    main()
