"""Rates that an H100 would reach that did nothing but arithmetic, or nothing but writing, next to what is wanted of it
and to what was measured: a table of docs/gpu.md.

    python -m benchmarks.speed.gpu_aims --write
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from benchmarks.speed.gpu_expected import FLOAT32, MEMORY, PAGE, TF32, work_of
from benchmarks.speed.gpu_losses import CASES
from benchmarks.speed.gpu_measures import LARGE
from benchmarks.tables import print_table
from headrace import envs
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns

WHERE = "(H100, November 2026)"
NOT_YET = "not yet measured"
# environments -> what is wanted, what was measured, and rejax's rate on the same kind of card
PPO = {256: ("15 M", "5.5 M", "2.2 M"), 4096: ("44 M", "32 M", "22 M"), 16_384: ("100 M", "45 M", "44 M")}
ALONE = {"CartPole-v1": ("40 G", f"31 G {WHERE}"), "Pendulum-v1": ("50 G", f"44 G {WHERE}")}
STEPS = 128  # of a rollout of environments alone


class Aim(NamedTuple):
    """Rate that is wanted; flop, bytes: of one unit of it, as far as they are its limit."""

    what: str
    wanted: str
    measured: str
    flop: float = 0
    bytes: float = 0

    def row(self) -> str:
        rates = [_short(FLOAT32, self.flop), _short(TF32, self.flop), _short(MEMORY, self.bytes)]
        return f"| {' | '.join([self.what, self.wanted, *rates, self.measured])} |"


def _short(ceiling: float, work: float) -> str:
    if not work:
        return ""
    rate = ceiling / work
    return next(
        (f"{rate / size:.3g} {letter}" for size, letter in ((1e9, "G"), (1e6, "M")) if rate >= size), f"{rate:,.0f}"
    )


def aims() -> list[Aim]:
    """Every aim, in the order of the table."""
    _, net, batch = CASES["PPO 2 x 64"](8)
    learned, acted = work_of(net, [], batch["seen"].shape[1]).flop, work_of(net.requires_grad_(False), [], 0).flop
    step = acted + LARGE["epochs"] * learned
    found = []
    for number, (wanted, own, theirs) in PPO.items():
        what = f"PPO on CartPole, {number:,} environments: steps"
        found.append(Aim(what, wanted, f"{own}, rejax {theirs} {WHERE}", step))
    sac = 256 * off_policy_flop([17, 256, 256, 12], [23, 256, 256, 1], delay=1)
    found.append(Aim("SAC, 2 x 256, batches of 256: gradient steps", "10,000", NOT_YET, sac))
    fast = 32_768 * off_policy_flop([3, 512, 256, 128, 1], [4, 1024, 512, 256, 101], delay=2)
    found.append(Aim("`fasttd3`'s networks, batches of 32,768: gradient steps", "500", NOT_YET, fast))
    for name, (wanted, own) in ALONE.items():
        found.append(Aim(f"{name.partition('-')[0]} alone, 131,072 environments: steps", wanted, own, 0, written(name)))
    return found


def off_policy_flop(actor: list[int], critic: list[int], delay: int) -> float:
    """Operations of a row of a gradient step, of two critics and, every `delay` steps, the actor. A network's gradient
    takes twice the operations of its outputs: half of them for the weights, and half for what comes in."""
    one, other = (2 * sum(n * k for n, k in pairwise(sizes)) for sizes in (actor, critic))
    critics = 2 * (3 * other + other) + one  # with their targets' values, of the next actions
    return critics + (3 * one + 2 * (other + other)) / delay


def written(name: str) -> float:
    """Bytes of a step of an environment: of what it reads and writes of a rollout."""
    env = envs.make(name, 8, backend="torch", device="cpu")
    rollout = Rollout(STEPS, 8, env_columns(env.observation_space) | {"action": action_column(env.action_space)})
    tensors = [getattr(rollout, column) for column in rollout.columns]
    return sum(x.numel() * x.element_size() for x in tensors) / (STEPS * 8)


def table() -> str:
    """The table."""
    head = ["a second", "wanted", "expected: float32", "TF32", "memory", "measured"]
    return "\n".join([f"| {' | '.join(head)} |", "|---|--:|--:|--:|--:|---|", *(aim.row() for aim in aims())])


def main() -> None:
    print_table(__doc__, "speed/gpu_aims", table(), PAGE)


if __name__ == "__main__":
    main()
