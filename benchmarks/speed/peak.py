"""Share of the processor's peak that training reaches, and how its speed varies: PPO `large` and SAC, ten runs each.

The peak is that of multiply-adds in registers, on all cores at once, measured before each run: it follows the
processor's clock, and what its neighbours leave of it. Of the trainings, operations of matrix products alone count: two
for each weight and sample in a forward pass, in the gradient of the weights and in that of the inputs, where it is
needed. Runs take turns, each in a process of its own, as in ppo_throughput.py and off_policy.py. Those that began while
the two cores had an L3 cache in common (core_latency.py) are counted apart from those that did not.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.common import Neighbours, Row, core_latency, cores, finish, parser, run_program, table

COLUMNS = ("what", "runs", "per_second", "largest / smallest", "GFLOP/s", "peak, GFLOP/s", "of peak", "core_ns")
APART = 100.0  # ns: cores of one L3 cache are nearer
ROUND = 1 << 20  # multiply-adds of each chain in a call


class Dense(NamedTuple):
    """A network of dense layers, by its widths."""

    widths: tuple[int, ...]

    def forward(self) -> int:
        """Operations for one sample."""
        return 2 * sum(a * b for a, b in zip(self.widths, self.widths[1:], strict=False))

    def inputs(self, first: int = 0) -> int:
        """Operations of the gradient at the inputs of all layers but the first, whose `first` inputs alone count."""
        return 2 * sum(a * b for a, b in zip((first, *self.widths[1:]), self.widths[1:], strict=False))


def ppo_operations(actor: Dense, critic: Dense, epochs: int) -> int:
    """Count the operations for an environment step: acting; in each epoch the forward pass, and the gradients of the
    weights and of the inputs."""
    forward = actor.forward() + critic.forward()
    return forward + epochs * (2 * forward + actor.inputs() + critic.inputs())


def sac_operations(actor: Dense, critic: Dense, actions: int, batch: int) -> int:
    """Count the operations for a gradient step: targets by the actor and two critics, both critics' step, and the
    actor's step through both critics."""
    targets = actor.forward() + 2 * critic.forward()
    of_critics = 2 * (2 * critic.forward() + critic.inputs())
    of_actor = 2 * actor.forward() + actor.inputs() + 2 * (critic.forward() + critic.inputs(actions))
    return batch * (targets + of_critics + of_actor)


CASES = {  # name -> (program and arguments, operations of one of what it counts); CartPole's and Pendulum's sizes
    "PPO large, steps": (
        ("speed/ppo_one.py", "headrace", "--config", "large", "--warm", 1.0),
        ppo_operations(Dense((4, 64, 64, 2)), Dense((4, 64, 64, 1)), 4),
    ),
    "SAC 256, 256, gradient steps": (
        ("speed/off_policy_one.py", "headrace", "sac"),
        sac_operations(Dense((3, 256, 256, 2)), Dense((4, 256, 256, 1)), 1, 256),
    ),
}


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--runs", type=int, default=10)
    flags.add_argument("--seconds", type=float, default=2.0, help="of a run")
    options = flags.parse_args()
    if options.quick:
        options.runs, options.seconds = 1, 0.2
    neighbours = Neighbours()
    rates: dict[str, list[tuple[float, float, float]]] = {name: [] for name in CASES}
    peak = Peak()
    for number in range(options.runs):
        for name, ((program, *arguments), _) in CASES.items():
            before, apart = peak.measure(options.seconds / 4), core_latency() or 0.0
            if program == "speed/ppo_one.py":
                arguments += ["--seed", number, "--threads", cores()]
            row = run_program(sys.executable, program, *arguments, "--seconds", options.seconds, timeout=300)
            rates[name].append((row["sps"], before, apart))
    rows = [
        summary(name, operations, runs)
        for name, (_, operations) in CASES.items()
        for runs in ([x for x in rates[name] if (x[2] > APART) == far] for far in (False, True))
        if runs
    ]
    print(table(rows, COLUMNS))
    finish("peak", rows, options, neighbours)


def summary(name: str, operations: int, runs: Sequence[tuple[float, float, float]]) -> Row:
    """One case's row. runs: of each its rate, the peak before it, and nanoseconds from core to core."""
    found, peaks, apart = zip(*runs, strict=True)
    reached = [rate * operations / 1e9 for rate in found]
    shares = [a / b for a, b in zip(reached, peaks, strict=True)]
    return {
        "what": name,
        "runs": len(found),
        "per_second": statistics.median(found),
        "largest / smallest": max(found) / min(found),
        "GFLOP/s": statistics.median(reached),
        "peak, GFLOP/s": statistics.median(peaks),
        "of peak": statistics.median(shares),
        "threads": cores(),
        "core_ns": statistics.median(apart),
        "operations": operations,
        "all": list(found),
        "peaks": list(peaks),
    }


class Peak:
    """Multiply-adds in registers: enough independent chains that none waits for another."""

    def __init__(self) -> None:
        from headrace.kernels.rows.cpu_code import is_wide
        from headrace.kernels.runtime.machine_code import object_code
        from headrace.kernels.runtime.native import Native

        self.chains = 12 if is_wide() else 5  # of 16 numbers
        arguments = (np.uint64(ROUND), np.zeros(16 * self.chains, np.float32))
        self.function = Native(object_code(chains(self.chains), arguments))

    def measure(self, seconds: float) -> float:
        """GFLOP/s of all cores together."""
        counts = [0] * cores()
        start = threading.Barrier(cores() + 1)
        over = threading.Event()

        def work(core: int) -> None:
            from headrace.kernels.runtime.native import Call

            call = Call(self.function, (np.uint64(ROUND), np.zeros(16 * self.chains, np.float32)))
            call()
            start.wait()
            while not over.is_set():
                call()
                counts[core] += 1

        threads = [threading.Thread(target=work, args=(core,)) for core in range(cores())]
        for thread in threads:
            thread.start()
        start.wait()
        began = time.perf_counter()
        time.sleep(seconds)
        over.set()
        for thread in threads:
            thread.join()
        return sum(counts) * ROUND * self.chains * 16 * 2 / (time.perf_counter() - began) / 1e9


def chains(number: int):  # type: ignore[no-untyped-def]
    """A function that runs `number` chains of multiply-adds of 16 numbers, for object_code()."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    from headrace.kernels.nn.simd import fma_vector, load_vector, vector
    from headrace.kernels.runtime.intrinsics import ARRAY, operation
    from headrace.kernels.runtime.jit import ENTRY, njit

    @operation(types.void, types.uint64, ARRAY)
    def run(builder, count, numbers):  # type: ignore[no-untyped-def]
        places = [ir.Constant(count.type, 16 * c) for c in range(number)]
        values = [cgutils.alloca_once_value(builder, load_vector(builder, numbers, place)) for place in places]
        factor = builder.load(values[0])
        with cgutils.for_range(builder, count):
            for value in values:
                builder.store(fma_vector(builder, builder.load(value), factor, factor), value)
        for value, place in zip(values, places, strict=True):
            target = builder.bitcast(builder.gep(numbers, [place]), vector.as_pointer())
            builder.store(builder.load(value), target, align=4)

    @njit(**ENTRY)
    def multiply_add(count, numbers):  # type: ignore[no-untyped-def]
        run(count, numbers)

    return multiply_add


if __name__ == "__main__":
    main()
