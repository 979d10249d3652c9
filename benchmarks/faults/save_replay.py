"""Cost of saving a large replay buffer: how long learning stops, how long the save takes in all, and its memory.

A run fills its buffer with rows of one rollout again and again. Meanwhile its rows go into pieces; then it saves a few
times, with further rows before each. `stop`: the longest time for which a save keeps the training waiting; `piece`: the
longest for which a piece does, between two saves; `whole`: until the checkpoint is on the disk. Other processes make
them longer (`others_cpu` is the load beside this program), but hardly the CPU time of the training's thread, `stop_cpu`
and `piece_cpu`, and of all threads in a save, `whole_cpu`. `second`: the same for the one save that copies all pieces.

    python -m benchmarks.faults.save_replay
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.faults.save_memory import MOST, memory

ROWS, BETWEEN, SAVES = 1_000_000, 50_000, 5  # rows of the buffer, and before each save
STOP, SHARE, PERIOD = 0.020, 0.05, 60.0  # s at most, share of the time at most, at a save in so many seconds
COMMON: dict[str, Any] = {"num_envs": 64, "num_steps": 8, "hidden": (64, 64), "progress": "none"}
CASES: dict[str, dict[str, Any]] = {
    "Pendulum": {"algorithm": "sac", "env": "Pendulum-v1"},
    "CartPole, prioritized": {"algorithm": "dqn", "env": "CartPole-v1", "prioritized": True},
    "PixelCatch": {"algorithm": "dqn", "env": "PixelCatch"},
}


def measured(case: str, rows: int) -> common.Row:
    """A row of the table."""
    import headrace as hr
    from headrace.runs.recorder import Recorder

    trainer = hr.Trainer(**COMMON, **CASES[case], buffer_size=rows, learning_starts=10**9, total_steps=10**9)
    with tempfile.TemporaryDirectory() as name, Recorder(trainer, Path(name)) as recorder:
        recorder.record(trainer.iterate())
        replay, rollout = trainer.algorithm.replay, trainer.collector.rollout
        pieces: list[tuple[float, float]] = []

        def append(number: int) -> None:
            for _ in range(number // (rollout.num_steps * rollout.num_envs)):
                replay.append(rollout)
                pieces.append(timed(recorder._replays.follow))
            recorder._saver.wait()

        append(rows)
        recorder.logs.positions()  # loads TensorBoard's writer, as the first rows of a run's log do
        for _ in range(2):  # the second one makes the other copy of every piece, as the first one after a resume does
            began = time.perf_counter()
            recorder._save_last()
            recorder._saver.wait()
            second = time.perf_counter() - began
        stops, wholes = [], []
        append(BETWEEN)
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        held = memory("VmRSS")
        for _ in range(SAVES):
            append(BETWEEN)
            began, used = time.perf_counter(), time.process_time()
            stops.append(timed(recorder._save_last))
            recorder._saver.wait()
            wholes.append((time.perf_counter() - began, time.process_time() - used))
        peak = memory("VmHWM")
        size = sum(path.stat().st_size for path in (Path(name) / "last").iterdir())
    return {
        "case": case,
        "rows": rows,
        "row_bytes": replay.row_bytes,
        "saved_mb": size / 2**20,
        "stop_ms": 1e3 * max(stops)[0],
        "stop_cpu_ms": 1e3 * max(cpu for _, cpu in stops),
        "piece_ms": 1e3 * max(pieces)[0],
        "piece_cpu_ms": 1e3 * max(cpu for _, cpu in pieces),
        "whole_s": max(wholes)[0],
        "whole_cpu_s": max(cpu for _, cpu in wholes),
        "second_s": second,
        "share": max(wholes)[0] / PERIOD,
        "held_mb": held / 2**20,
        "peak_mb": peak / 2**20,
        "ratio": peak / held,
    }


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds of a call, and of them those in which this thread used a processor."""
    began, used = time.perf_counter(), time.thread_time()
    call()
    return time.perf_counter() - began, time.thread_time() - used


def main() -> None:
    """Measure each case, and compare with the limits."""
    flags = common.parser(__doc__ or "")
    flags.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES, help="which trainings")
    options, neighbours = flags.parse_args(), common.Neighbours()
    rows = [measured(case, 50_000 if options.quick else ROWS) for case in options.cases]
    shown = ("case", "rows", "row_bytes", "saved_mb", "stop_ms", "stop_cpu_ms", "piece_ms", "piece_cpu_ms")
    shown += ("whole_s", "whole_cpu_s", "second_s", "share", "ratio")
    print(common.table(rows, shown))
    for row in rows:
        limits = {"stop_ms": 1e3 * STOP, "share": SHARE, "ratio": MOST}
        row["wrong"] = [
            f"{row['case']}: {name} is {row[name]:.3g}" for name, most in limits.items() if row[name] > most
        ]
    common.finish("save_replay", rows, options, neighbours)
    print("\n".join(wrong for row in rows for wrong in row["wrong"]) or "all within the limits")


if __name__ == "__main__":
    main()
