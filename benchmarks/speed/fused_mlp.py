"""FusedMLP compared with plain torch on the CPU: forward, and forward with backward, by width and batch.

Stacks of 17 inputs, two hidden layers with ReLU, and one output, as critics have. Where the ratio is below 1 torch is
faster: headrace.policies.fused_mlp.pays is that rule, and is switched off here.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from benchmarks.common import Neighbours, Row, cores, finish, parser, table, throughput
from headrace.policies import fused_mlp
from headrace.policies.fused_mlp import FusedMLP


class Case(NamedTuple):
    """Width and batch that are measured, and whether gradients are."""

    width: int
    batch: int
    backward: bool


CASES = [Case(w, b, back) for w in (64, 128, 256, 512) for b in (1, 64, 256, 1024, 4096) for back in (False, True)]
COLUMNS = ("width", "batch", "backward", "backend", "threads", "sps", "sps_min", "ratio", "others_cpu")


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--seconds", type=float, default=0.2, help="of each of the three windows")
    options = flags.parse_args()
    cases = [case for case in CASES if case.width == 64 and case.batch == 64] if options.quick else CASES
    seconds = 0.02 if options.quick else options.seconds
    fused_mlp.pays = lambda *_: True
    neighbours, rows = Neighbours(), list[Row]()
    for case in cases:
        for threads in sorted({1, cores()}):
            plain = measure(case, "torch", threads, seconds)
            fused = measure(case, "kernel", threads, seconds)
            fused["ratio"] = round(fused["sps"] / plain["sps"], 2)
            rows += [plain, fused]
            print(table(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
    print(table(rows, COLUMNS))
    print("sps: samples a second, median of three windows; ratio: kernel by torch")
    finish("fused_mlp", rows, options, neighbours)


def measure(case: Case, backend: str, threads: int, seconds: float) -> Row:
    """Throughput of one case."""
    torch.set_num_threads(threads)
    os.environ["HEADRACE_THREADS"] = str(threads)
    busy = Neighbours()
    result = throughput(work(case, backend), case.batch, seconds)
    library = {"library": "headrace" if backend == "kernel" else "torch", "config": "fused_mlp"}
    return {**library, **case._asdict(), "backend": backend, "threads": threads, **result, "others_cpu": busy.busy()}


def work(case: Case, backend: str) -> Callable[[], object]:
    """A call to measure."""
    width = case.width
    network = FusedMLP(
        nn.Linear(17, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )  # fmt: skip
    network.fused = backend == "kernel"
    samples = torch.randn(case.batch, 17)
    if case.backward:
        return lambda: network(samples).sum().backward()
    return torch.no_grad()(lambda: network(samples))


if __name__ == "__main__":
    main()
