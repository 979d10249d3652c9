"""Latency of one action while a policy serves: one thread, a pool of threads, several processes.

An MLP of 64 x 64 tanh units on CartPole's observations, one observation a call, the most likely action: Headrace's
predict(), Stable-Baselines3's predict(), and the exported policy in NumPy and in onnxruntime; and predict() of
Headrace's other kinds of policies, `headrace-sac` and so on. Each measurement is a process of its own (serving_one.py).
p50 and p99 are of all calls of all threads and processes, in microseconds; calls follow one another without a pause, so
with more threads than cores a call also waits for its turn.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.common import Neighbours, Row, finish, interpreter_with, parser, run_program, table

KINDS = ("masked", "dqn", "sac", "td3", "gru")  # of policies besides the MLP; SAC's and TD3's have 256 x 256 units
NEEDS = {
    "headrace": "headrace",
    **{f"headrace-{kind}": "headrace" for kind in KINDS},
    **{"numpy": "numpy", "onnxruntime": "onnxruntime", "sb3": "stable_baselines3"},
}
LOADS = ((1, 1), (4, 1), (16, 1), (1, 2))  # threads in each process, processes
COLUMNS = ("library", "threads", "processes", "p50_us", "p99_us", "calls_per_s", "others_cpu")


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    flags.add_argument("--library", nargs="+", choices=NEEDS, default=list(NEEDS), help="what to measure")
    options = flags.parse_args()
    seconds = 0.1 if options.quick else options.seconds
    neighbours, rows = Neighbours(), list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        export(Path(folder))
        for library in options.library:
            python = interpreter_with(NEEDS[library], options.peers_home, library)
            if python is None:
                print(f"left out, not installed: {NEEDS[library]}")
                continue
            for threads, processes in LOADS[:2] if options.quick else LOADS:
                busy = Neighbours()
                arguments = (library, folder, threads, processes, seconds)
                row = run_program(python, "speed/serving_one.py", *arguments, timeout=60 + 4 * seconds)
                rows.append(row | {"config": f"{threads} x {processes}", "others_cpu": busy.busy()})
    print(table(rows, COLUMNS))
    finish("serving", rows, options, neighbours)


def export(folder: Path) -> None:
    """Write the policy that all but Stable-Baselines3 serve."""
    import headrace as hr

    policy = hr.ActorCritic(hr.Box(-5, 5, (4,)), hr.Discrete(2))
    for to, suffix in (("numpy", "py"), ("onnx", "onnx")):
        hr.export(policy, to, folder / f"policy.{suffix}")


if __name__ == "__main__":
    main()
