"""Microseconds of a gradient: plain PyTorch, torch.compile and hr.compile on the same losses, in turns in one process.

A gradient is forward pass, loss and backward pass, without the optimizer. `--ways` leaves some out: torch.compile
compiles C++ for each loss, which takes up to a minute. `first` is the first call: tracing, compiling, comparing.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from benchmarks.common import Neighbours, Row, finish, parser, table

WAYS = ("plain", "torch.compile", "hr.compile")
COLUMNS = ("loss", "rows", "threads", *WAYS, "over_plain", "first")


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--threads", type=int, default=1)
    flags.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    flags.add_argument("--losses", help="those whose names contain this")
    flags.add_argument("--seconds", type=float, default=0.2, help="of a turn of each way")
    flags.add_argument("--turns", type=int, default=7)
    options = flags.parse_args()
    if options.quick:
        options.seconds, options.turns, options.ways = 0.02, 2, ("plain", "hr.compile")
    os.environ["HEADRACE_THREADS"] = str(options.threads)
    import torch

    torch.set_num_threads(options.threads)
    neighbours, rows = Neighbours(), list[Row]()
    for name, loss, arguments, count in cases(options.quick):
        if options.losses and options.losses not in name:
            continue
        rows.append({"loss": name, "rows": count, "threads": options.threads} | measure(loss, arguments, options))
        print(table(rows[-1:], COLUMNS), flush=True)
    finish("compiled_losses", rows, options, neighbours)


def cases(quick: bool) -> list[tuple[str, Callable[..., Any], tuple[Any, ...], int]]:
    """(name, loss, arguments, rows): the losses of the tests, with networks of the usual sizes."""
    import torch
    from torch import nn

    from tests.bindings import losses

    torch.manual_seed(0)

    def large(make: Callable[..., Any], rows: int, *networks: nn.Module) -> tuple[Any, tuple[Any, ...], int]:
        loss, arguments = make(rows)
        return loss, (*networks, *arguments[len(networks) :]), rows

    def agent(hidden: int, body: Any = None) -> nn.Module:
        return losses.Agent(4, 3, body or (lambda i, o: losses.mlp(i, hidden, hidden, o)))

    def remembering(kind: type[nn.RNNBase], hidden: int) -> tuple[Any, tuple[Any, ...], int]:
        return *losses.remembering(256, kind, hidden, 16), 256

    def pixels() -> nn.Module:
        return losses.ImageAgent(16, 128)

    def histories() -> nn.Module:
        return losses.Histories(16, 64)

    memories = [(kind, hidden) for kind in (nn.GRU, nn.LSTM) for hidden in (64, 128)]
    critics, targets = (nn.ModuleList(losses.mlp(8, 256, 256, 1, act=nn.ReLU) for _ in range(2)) for _ in range(2))
    found = [
        ("PPO, 2 x 64", *large(losses.ppo_categorical, 2048, agent(64))),
        ("PPO, 2 x 64", *large(losses.ppo_categorical, 64, agent(64))),
        ("PPO, 2 x 256", *large(losses.ppo_categorical, 2048, agent(256))),
        ("PPO, residual LayerNorm", *large(losses.ppo_residual, 2048)),
        ("SAC's critics, 2 x 256", *large(losses.sac_critic, 256, critics, targets)),
        ("GRU of 16, 4 steps", *large(losses.gru, 256)),
        *((f"{kind.__name__} of {hidden}, 16 steps", *remembering(kind, hidden)) for kind, hidden in memories),
        ("attention over 5 entities", *large(losses.attention_over_entities, 256)),
        *(("PPO, images of 10 x 10", *large(losses.ppo_of_images, rows, pixels())) for rows in (64, 256)),
        ("DQN, images of 10 x 10", *large(losses.dqn_of_images, 32, pixels(), pixels())),
        ("critics of histories of 27", *large(losses.critics_of_histories, 256, histories(), histories())),
    ]
    return found[1:2] if quick else found


def measure(loss: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Row:
    """Medians over turns of the time of a gradient, of each way."""
    import torch

    import headrace as hr

    parameters = [p for x in arguments if isinstance(x, torch.nn.Module) for p in x.parameters()]

    def from_zero(call: Callable[[], object]) -> Callable[[], None]:
        """A gradient after optimizer.zero_grad(), as in a loop."""

        def run() -> None:
            for parameter in parameters:
                parameter.grad = None
            call()

        return run

    def backward(function: Callable[..., Any]) -> Callable[[], None]:
        def run() -> None:
            returned = function(*arguments)
            (returned[0] if isinstance(returned, tuple) else returned).backward()

        return from_zero(run)

    step = hr.compile(loss)
    began = time.perf_counter()
    reason = step.why_not(*arguments)
    first = time.perf_counter() - began
    if reason is not None:
        raise SystemExit(f"not compiled: {reason}")
    calls = {"plain": backward(loss), "hr.compile": from_zero(lambda: step(*arguments))}
    if "torch.compile" in options.ways:
        calls["torch.compile"] = backward(torch.compile(loss))
    times: dict[str, list[float]] = {way: [] for way in calls}
    for turn in range(options.turns + 1):  # the first warms up
        for way, call in calls.items():
            found = seconds_of(call, options.seconds)
            if turn:
                times[way].append(found * 1e6)
    middle = {way: statistics.median(found) for way, found in times.items()}
    return middle | {"over_plain": middle["plain"] / middle["hr.compile"], "first": first}


def seconds_of(call: Callable[[], object], seconds: float) -> float:
    """The time of a call, over about so many seconds."""
    calls, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds or not calls:
        call()
        calls += 1
    return (time.perf_counter() - began) / calls


if __name__ == "__main__":
    main()
