"""Microseconds of a loss with its gradients on a GPU, as a CUDA graph: plain PyTorch, and hr.compile().

python -m benchmarks.speed.gpu_losses
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import headrace as hr
from benchmarks.common import Row
from benchmarks.speed.gpu_card import Card, errors_of, one_launch, tensor_cores
from headrace.core.precision import computing

Net = Callable[[int, int], nn.Module]


def mlp(inputs: int, outputs: int, width: int, act: type[nn.Module] = nn.Tanh) -> nn.Module:
    hidden = nn.Linear(inputs, width), act(), nn.Linear(width, width), act()
    return nn.Sequential(*hidden, nn.Linear(width, outputs))


class Residual(nn.Module):
    """A layer, a block with LayerNorm around which the layer's output goes too, and an output."""

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(inputs, width), nn.Linear(width, outputs)
        inner = nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)
        self.block = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.silu(self.first(x))
        return self.out(x + self.block(x))


class Agent(nn.Module):
    def __init__(self, make: Net, inputs: int, actions: int) -> None:
        super().__init__()
        self.actor, self.critic = make(inputs, actions), make(inputs, 1)


def ppo(agent: Agent, batch: dict[str, Tensor]) -> Tensor:
    """The loss of Schulman et al. 2017, arXiv:1707.06347, equation 9."""
    policy = Categorical(logits=agent.actor(batch["seen"]), validate_args=False)
    ratio = (policy.log_prob(batch["action"]) - batch["log_prob"]).exp()
    gain = torch.min(ratio * batch["advantage"], ratio.clamp(0.8, 1.2) * batch["advantage"]).mean()
    error = (agent.critic(batch["seen"]).squeeze(-1) - batch["returns"]).square().mean()
    return 0.5 * error - gain - 0.01 * policy.entropy().mean()


def critics(nets: nn.ModuleList, batch: dict[str, Tensor]) -> Tensor:
    """Two critics towards the smaller of their targets' values; Fujimoto et al. 2018, arXiv:1802.09477."""
    one, two, *targets = nets
    with torch.no_grad():
        following = torch.min(*(target(batch["following"]) for target in targets)).squeeze(-1)
        wanted = batch["reward"] + 0.99 * following
    return sum((net(batch["seen"]).squeeze(-1) - wanted).square().mean() for net in (one, two))  # type: ignore[return-value]


def ppo_case(make: Net, inputs: int) -> Callable[[int], tuple[Any, ...]]:
    def made(rows: int) -> tuple[Any, ...]:
        numbers = {name: torch.randn(rows) for name in ("advantage", "returns")}
        action, log_prob = torch.randint(2, (rows,)), -torch.rand(rows) - 0.3
        batch = {"seen": torch.randn(rows, inputs), "action": action, "log_prob": log_prob, **numbers}
        return ppo, Agent(make, inputs, 2), batch

    return made


def critics_case(rows: int) -> tuple[Any, ...]:
    nets = nn.ModuleList(mlp(23, 1, 256, nn.ReLU) for _ in range(4))
    nets[2:].requires_grad_(False)
    seen = {name: torch.randn(rows, 23) for name in ("seen", "following")}
    return critics, nets, {**seen, "reward": torch.randn(rows)}


CASES: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "PPO 2 x 64": ppo_case(lambda i, o: mlp(i, o, 64), 4),
    "PPO 2 x 128": ppo_case(lambda i, o: mlp(i, o, 128), 4),
    "PPO 2 x 256": ppo_case(lambda i, o: mlp(i, o, 256), 17),
    "PPO residual 64": ppo_case(lambda i, o: Residual(i, o, 64), 4),
    "PPO residual 256": ppo_case(lambda i, o: Residual(i, o, 256), 17),
    "critics 2 x 256": critics_case,
}


def losses(card: Card) -> None:
    """A row for each loss and number of rows."""
    for name in card.of([*CASES], ["PPO 2 x 64", "critics 2 x 256"]):
        for rows in card.of((256, 8192) if name.startswith("critics") else (2048, 131_072), (40,)):
            errors_of(card.tell, {"loss": name, "rows": rows}, partial(measured, card, name, rows))


def measured(card: Card, name: str, rows: int) -> None:
    """Tell the microseconds of each way, in turns."""
    torch.manual_seed(0)
    loss, net, batch = CASES[name](rows)
    net, batch = net.to(card.device), {key: x.to(card.device) for key, x in batch.items()}
    facts: Row = {"loss": name, "rows": rows, "refused": {}}
    ways = dict[str, Callable[[], object]]()
    with card.kernels():
        for way, (precision, within) in ways_of_losses(card).items():
            step = loss if way.startswith("plain") else hr.compile(loss)

            def call(step: Any = step, precision: str = precision, within: Any = within) -> None:
                with computing(precision, card.device), within():
                    net.zero_grad()
                    found = step(net, batch)
                    if step is loss:
                        found.backward()

            with computing(precision, card.device), within():
                refused = None if step is loss else step.why_not(net, batch)
            if refused:
                facts["refused"][way] = refused
            else:
                ways[way] = card.graph(call)
        found = card.in_turns(ways)
    if "compiled" in found:
        facts["ratio"] = found["plain"] / found["compiled"]
    card.tell(**facts, us=found)


def ways_of_losses(card: Card) -> dict[str, tuple[str, Callable[[], AbstractContextManager[object]]]]:
    """Ways to compute a loss, by name: the precision, and the context that it runs within."""
    found: dict[str, Any] = {"plain": ("float32", nullcontext), "compiled": ("float32", nullcontext)}
    found |= {"compiled, tensor cores": ("float32", tensor_cores), "compiled, one launch": ("float32", one_launch)}
    tf32 = {"plain, TF32": ("tf32", nullcontext), "compiled, TF32": ("tf32", tensor_cores)}
    return found | card.of(tf32, {})


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--dry", action="store_true", help="on the CPU, of few rows")
    options = flags.parse_args()
    if not options.dry and not torch.cuda.is_available():
        raise SystemExit("gpu_losses.py needs an NVIDIA GPU that torch can use, and there is none here")
    losses(Card(options.dry))


if __name__ == "__main__":
    main()
