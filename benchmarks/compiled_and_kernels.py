"""Microseconds of a gradient step: kernels, and losses compiled from their PyTorch source.

PPO, 2 x 64 units, minibatches of 2,048; SAC, 2 x 256 units, batches of 256. In turns in one process. The kernels' time
is that of a whole step, with Adam (SAC: also Polyak averaging and drawing from the replay buffer, PPO: metrics); that
of compiled losses is the gradient alone. For SAC it is the sum of critics and actor.
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
    for task, kernel, compiled in (("PPO", *ppo()), *(() if options.quick else (("SAC", *sac()),))):
        rows.append({"task": task, "threads": options.threads} | measure(kernel, compiled, options))
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


def ppo() -> tuple[Callable[[], object], Callable[[], object]]:
    """A minibatch of PPO's: the kernel's, the compiled loss'."""
    import generality
    import torch
    import torch.nn.functional as F
    from gymnasium.spaces import Box, Discrete

    from headrace.bindings.compiled.compiled_losses import CompiledLoss
    from tests.bindings.losses import mlp

    def loss(actor: Any, critic: Any, batch: dict[str, Any]) -> Any:
        log_probs = F.log_softmax(actor(batch["obs"]), -1)
        log_prob = log_probs.gather(1, batch["action"].unsqueeze(1)).squeeze(1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        ratio = (log_prob - batch["log_prob"]).exp()
        gain = torch.minimum(ratio * batch["advantage"], ratio.clamp(0.8, 1.2) * batch["advantage"])
        error = (critic(batch["obs"]).squeeze(-1) - batch["returns"]).square()
        weight = batch["weight"]
        return -(gain @ weight) + 0.5 * (error @ weight) - 0.01 * (entropy @ weight)

    torch.manual_seed(0)
    rows = 2048
    scalars = {name: torch.randn(rows) for name in ("advantage", "returns", "log_prob")}
    batch = {"obs": torch.randn(rows, 4), "action": torch.randint(2, (rows,)), "weight": torch.full((rows,), 1 / rows)}
    arguments = (mlp(4, 64, 64, 2), mlp(4, 64, 64, 1), batch | scalars)
    settings = {"epochs": 2, "minibatch_size": rows}
    case = generality.Case("ppo 4", "ppo", settings, Box(-1, 1, (4,)), Discrete(2), 64, 128)
    program = program_of(CompiledLoss(loss), arguments)
    values = program.values(arguments)
    return generality.prepare(case)[0].learn, lambda: program.compute(values)


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
