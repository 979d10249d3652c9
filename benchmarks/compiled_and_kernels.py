"""Microseconds of a gradient step: kernels, and losses compiled from their PyTorch source.

SAC, 2 x 256 units, batches of 256. In turns in one process. The kernels' time is that of a whole step, with Adam,
Polyak averaging and drawing from the replay buffer; that of compiled losses is the gradient alone, the sum of critics
and actor.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import Neighbours, Row, finish, parser, table

COLUMNS = ("task", "threads", "kernel_us", "compiled_us", "compiled_over_kernel", "lowest", "highest")
STEPS = 8  # gradient steps of a call of the kernels


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--threads", type=int, default=1)
    flags.add_argument("--seconds", type=float, default=0.2, help="of a turn of each way")
    flags.add_argument("--turns", type=int, default=9)
    options = flags.parse_args()
    if options.quick:
        options.seconds, options.turns = 0.02, 2
    os.environ["HEADRACE_THREADS"] = str(options.threads)
    import torch

    torch.set_num_threads(options.threads)
    sys.path.insert(0, str(Path(__file__).parents[1]))
    neighbours, rows = Neighbours(), list[Row]()
    rows.append({"task": "SAC", "threads": options.threads} | measure(*sac(), options))
    print(table(rows, COLUMNS))
    finish("compiled_and_kernels", rows, options, neighbours)


def measure(kernel: Callable[[], object], compiled: Callable[[], object], options: Any) -> Row:
    """Medians over turns."""
    times: dict[str, list[float]] = {"kernel": [], "compiled": []}
    for turn in range(options.turns + 1):  # the first warms up
        for way, call, steps in (("kernel", kernel, STEPS), ("compiled", compiled, 1)):
            calls, began = 0, time.perf_counter()
            while time.perf_counter() - began < options.seconds or not calls:
                call()
                calls += 1
            if turn:
                times[way].append((time.perf_counter() - began) / calls / steps * 1e6)
    middle = {way: statistics.median(found) for way, found in times.items()}
    return {
        "kernel_us": middle["kernel"],
        "compiled_us": middle["compiled"],
        "compiled_over_kernel": middle["compiled"] / middle["kernel"],
        "lowest": min(times["compiled"]),
        "highest": max(times["compiled"]),
    }


def program_of(loss: Any, arguments: tuple[Any, ...]) -> Any:
    """The program of a loss. Raises ValueError where there is none."""
    found = loss.find(arguments)
    if isinstance(found, str):
        raise ValueError(found)
    return found


def sac() -> tuple[Callable[[], object], Callable[[], object]]:
    """A step of SAC's: the kernels', the compiled losses' of critics and actor."""
    import generality
    import torch
    import torch.nn.functional as F
    from generality_cases import _off
    from torch import nn

    from headrace.bindings.compiled.compiled_losses import CompiledLoss
    from tests.bindings.losses import mlp, replay, squashed

    def critic_loss(critics: Any, actor: Any, targets: Any, batch: Any, alpha: Any) -> Any:
        with torch.no_grad():
            action, log_prob = squashed(actor, batch.next_obs, batch.noise)
            x = torch.cat([batch.next_obs, action], -1)
            value = torch.min(*[target(x) for target in targets]).squeeze(-1) - alpha * log_prob
            wanted = batch.reward + batch.discount * value
        x = torch.cat([batch.obs, batch.action], -1)
        return sum(F.mse_loss(critic(x).squeeze(-1), wanted) for critic in critics)

    def actor_loss(actor: Any, critics: Any, batch: Any, alpha: Any) -> Any:
        action, log_prob = squashed(actor, batch.obs, batch.noise)
        x = torch.cat([batch.obs, action], -1)
        return (alpha * log_prob - torch.min(*[critic(x) for critic in critics]).squeeze(-1)).mean()

    torch.manual_seed(0)
    actor, batch, alpha = mlp(17, 256, 256, 12, act=nn.ReLU), replay(256, 17, 6), torch.tensor(0.2)
    critics, targets = (nn.ModuleList(mlp(23, 256, 256, 1, act=nn.ReLU) for _ in range(2)) for _ in range(2))
    programs = []
    for loss, learned, frozen, arguments in (
        (critic_loss, critics, actor, (critics, actor, targets, batch, alpha)),
        (actor_loss, actor, critics, (actor, critics, batch, alpha)),
    ):
        learned.requires_grad_(True)
        frozen.requires_grad_(False)
        targets.requires_grad_(False)
        program = program_of(CompiledLoss(loss), arguments)
        programs.append((program, program.values(arguments)))
    kernel = generality.prepare(_off("sac", "256, 256 relu"))[0].learn
    return kernel, lambda: [program.compute(values) for program, values in programs]


if __name__ == "__main__":
    main()
