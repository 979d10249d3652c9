"""A million reads of weights that another process writes: none may be half of one version and half of another.

The learner writes versions as fast as actors allow it, all of a version's numbers alike, into the slots and by the
schedule that training uses (asynchronous, max_policy_lag 2). Each reader looks for a read whose numbers differ, or are
not those of the version that its order names. Other processes keep the cores busy meanwhile. As a check of the program
itself, `--unordered` writes without asking the schedule: then torn reads are found.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from multiprocessing.connection import Connection, wait
from typing import Any

from benchmarks.common import Neighbours, Row, finish, parser, table

FLOATS = (20_000, 1_000_000)  # of a policy
EACH = 100  # reads of an order
COLUMNS = ("floats", "readers", "reads", "torn", "versions", "read_us", "write_us", "seconds")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--reads", type=int, default=1_000_000)
    flags.add_argument("--readers", type=int, default=3)
    flags.add_argument("--load", type=int, default=2, help="processes that do nothing but keep a core busy")
    flags.add_argument("--unordered", action="store_true", help="write into slots that are being read")
    options = flags.parse_args()
    neighbours = Neighbours()
    reads = 2_000 if options.quick else options.reads
    rows = [measured(floats, reads if floats < 100_000 else reads // 50, options) for floats in FLOATS]
    print(table(rows, COLUMNS))
    finish("torn_weights", rows, options, neighbours)
    if not options.unordered and any(row["torn"] for row in rows):
        sys.exit("torn weights were read")


def measured(floats: int, reads: int, options: Any) -> Row:
    """Reads by some processes under load, until there were so many."""
    context = multiprocessing.get_context("fork")
    load = [context.Process(target=_busy, daemon=True) for _ in range(options.load)]
    for process in load:
        process.start()
    began = time.perf_counter()
    try:
        found = written(floats, reads, options.readers, options.unordered)
    finally:
        for process in load:
            process.kill()
    return {"floats": floats, "readers": options.readers, **found, "seconds": time.perf_counter() - began}


def written(floats: int, reads: int, readers: int, unordered: bool = False) -> Row:
    """Write versions while processes read them. Returns counts: reads, torn ones, versions; and microseconds."""
    import torch

    from headrace.parallel.schedule import Schedule
    from headrace.parallel.weights import Weights

    torch.set_num_threads(1)
    policy = torch.nn.ParameterDict({"a": torch.zeros(floats // 3), "b": torch.zeros(floats - floats // 3)})
    max_lag = 2
    weights = Weights(policy, max_lag + 2)  # type: ignore[arg-type]
    schedule = Schedule(readers, in_step=False, max_lag=max_lag)
    context = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for _ in range(readers):
        mine, theirs = context.Pipe()
        process = context.Process(target=_read, args=(theirs, weights, floats), daemon=True)
        process.start()
        theirs.close()
        pipes.append(mine)
        processes.append(process)
    done = torn = 0
    writes, read_seconds = [], []

    def order(learning: bool = False) -> None:
        for x in schedule.orders(learning):
            pipes[x.place].send((weights.slot(x.version), x.version))

    try:
        while done < reads:
            order()
            while not (taken := schedule.complete()):
                for pipe in wait(pipes):
                    more, bad, seconds = pipe.recv()
                    done, torn = done + more, torn + bad
                    read_seconds.append(seconds / more)
                    schedule.answer(pipes.index(pipe))
                order()
            schedule.take(taken)
            order(learning=True)
            for _ in range(10 if unordered else 1):
                schedule.version += 1
                with torch.no_grad():
                    for parameter in policy.values():
                        parameter.fill_(schedule.version)
                began = time.perf_counter()
                weights.write(schedule.version)
                writes.append(time.perf_counter() - began)
            if unordered:
                schedule.version -= 9
    finally:
        for process in processes:
            process.kill()
            process.join()
    return {
        "reads": done,
        "torn": torn,
        "versions": schedule.version,
        "read_us": 1e6 * statistics.median(read_seconds),
        "write_us": 1e6 * statistics.median(writes),
    }


def _read(pipe: Connection, weights: Any, floats: int) -> None:
    """A reader: it reads its copy of the policy EACH times an order."""
    import torch

    from headrace.parallel.weights import WeightsReader

    policy = torch.nn.ParameterDict({"a": torch.zeros(floats // 3), "b": torch.zeros(floats - floats // 3)})
    reader = WeightsReader(policy, weights.layout, weights.memory, 1, slice(0, 1))  # type: ignore[arg-type]
    tensors = list(policy.values())
    while True:
        slot, version = pipe.recv()
        torn, seconds = 0, 0.0
        for _ in range(EACH):
            began = time.perf_counter()
            reader.read(slot)
            seconds += time.perf_counter() - began
            torn += any(bool((x != version).any()) for x in tensors)
        pipe.send((EACH, torn, seconds))


def _busy() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        for _ in range(1_000_000):
            pass


if __name__ == "__main__":
    main()
