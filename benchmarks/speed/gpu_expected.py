"""Times that a loss with its gradients would take a GPU that did nothing but arithmetic, or nothing but reading and
writing, next to what was measured: the table of docs/gpu.md.

    python -m benchmarks.speed.gpu_expected --write
"""

from __future__ import annotations

import json
from typing import NamedTuple

from torch import nn

from benchmarks.common import HERE, ROOT
from benchmarks.speed.gpu_losses import CASES
from benchmarks.tables import print_table
from headrace.kernels.rows.gpu.gpu_gradients import LARGE, LARGEST_SIDE

# of an H100 SXM, by its data sheet; an H200's differ in its memory's 4.8e12
FLOAT32, TF32, MEMORY = 67e12, 494.5e12, 3.35e12  # FLOP/s, FLOP/s on tensor cores, bytes/s
PAGE = ROOT / "docs" / "gpu.md"
MEASURED = HERE / "results" / "gpu_losses.json"
FLOAT = 4  # bytes


class Work(NamedTuple):
    """Work of a row of a minibatch: floating-point operations of products, bytes of the GPU's memory."""

    flop: int
    bytes: int


def work_of(net: nn.Module, columns: list[int], inputs: int) -> Work:
    """columns: bytes of a row of each; inputs: numbers that networks see, whose gradient is not needed. Bytes are those
    of columns, and of factors of large gradients, which one kernel writes and another reads once for each tile."""
    flop, moved = 0, sum(columns)
    for layer in (part for part in net.modules() if isinstance(part, nn.Linear)):
        n, k = layer.out_features, layer.in_features
        learned = layer.weight.requires_grad
        flop += 2 * n * k * (1 + learned * (1 + (k != inputs)))
        if learned and n * k >= LARGE:
            tiles = [-(-size // LARGEST_SIDE) for size in (k, n)]  # along the other axis
            moved += FLOAT * (n * (1 + tiles[0]) + k * (1 + tiles[1]))
    return Work(flop, moved)


def rows() -> list[str]:
    """Rows of the table, of what was measured."""
    found = []
    for case in json.loads(MEASURED.read_text()):
        name, count = case["loss"], case["rows"]
        _, net, batch = CASES[name](8)
        columns = [x[0].numel() * x.element_size() for x in batch.values()]
        work = work_of(net, columns, batch["seen"].shape[1])
        flop = work.flop * count
        times = [1e6 * flop / FLOAT32, 1e6 * flop / TF32, 1e6 * work.bytes * count / MEMORY]
        plain, own = case["plain_us"], case["compiled_us"]
        expected = " | ".join(f"{x:,.1f}" if x < 100 else f"{x:,.0f}" for x in times)
        share = f"{100 * times[0] / own:.0f} %"
        found.append(f"| {name} | {count:,} | {flop / 1e9:,.2f} | {expected} | {plain:,.0f} | {own:,.0f} | {share} |")
    return found


def table() -> str:
    """The table."""
    head = ["", "rows", "GFLOP", "expected: float32, us", "TF32, us", "memory, us"]
    head += ["measured: plain, us", "compiled, us", "of float32's ceiling"]
    return "\n".join([f"| {' | '.join(head)} |", "|---|--:|--:|--:|--:|--:|--:|--:|--:|", *rows()])


def main() -> None:
    print_table(__doc__, "speed/gpu_expected", table(), PAGE)


if __name__ == "__main__":
    main()
