"""A policy's outputs, by machine code that is made of its act() and value()."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headrace.bindings.compiled.compiled_losses import CompiledLoss
from headrace.bindings.compiled.loss_tries import Tries
from headrace.core.fused import traced
from headrace.core.looking import users_code
from headrace.data.rollout import tree_map
from headrace.policies.base import Policy

if TYPE_CHECKING:
    from headrace.bindings.compiled.loss_conditions import Conditions
    from headrace.bindings.compiled.loss_program import Program
    from headrace.parallel.collector import InlineCollector

FUNCTIONS = 64  # that are kept at most
GOLDEN = 0.618034  # its multiples, modulo 1, are spread evenly over [0, 1)
FEW, SAMPLE = 8, 64  # so many environments or more are compared as they are; rows of fewer
WORTH_HELP = 5e7  # floating-point operations below which waking another thread costs more than it saves
NEAR = 1e-4  # of each output's largest number
OTHERS = 0.02  # of rows may have another choice, where rounding decides


@lru_cache(FUNCTIONS)
def acting(names: tuple[str, ...]) -> CompiledOutputs:
    """Make the function that is compiled for Policy.act(). It takes the columns `names`, and also returns the recurrent
    state after the step, which is 0 where the row is masked. valid: None without recurrent state."""

    def act(policy: Policy, observation: Any, rnn_state: Any, random: Tensor | None, valid: Any) -> list[Tensor]:
        output = policy.act(observation, rnn_state, random)
        return [*(getattr(output, name) for name in names), *_state_after(output.rnn_state, rnn_state, valid)]

    return CompiledOutputs(act)


def _state_after(after: Any, before: Any, valid: Any) -> list[Tensor]:
    """The recurrent state after a step, 0 where the row is masked; nothing without one before it."""
    return [] if before is None else [torch.where(valid.unsqueeze(1), after, 0.0)]


@lru_cache(1)
def exploring() -> CompiledOutputs:
    """Make the function that is compiled for QNetwork.explored(): a probability of a random action for each row. The
    rest is as in acting()."""

    def explored(
        policy: Any, observation: Any, rnn_state: Any, random: Tensor, exploration: Tensor, valid: Any
    ) -> list[Tensor]:
        output = policy.explored(observation, rnn_state, random, exploration)
        return [output.action, output.value, *_state_after(output.rnn_state, rnn_state, valid)]

    return CompiledOutputs(explored)


@lru_cache(1)
def evaluating() -> CompiledOutputs:
    """Make the function that is compiled for Policy.value()."""

    def value(policy: Policy, observation: Any, rnn_state: Any) -> list[Tensor]:
        return [policy.value(observation, rnn_state)]

    return CompiledOutputs(value)


def next_rows(collector: InlineCollector) -> tuple[Any, ...]:
    """Arguments of acting() for the collector's next rows, without their draws."""
    policy, rollout = collector.policy, collector.rollout
    seen = tree_map(lambda x: x[0], rollout.observation)
    draws = torch.empty(rollout.num_envs, policy.num_draws, device=rollout.device)
    return policy, seen, collector.rnn_state, draws, rollout.valid[0]


def sample(collector: InlineCollector) -> tuple[Any, ...]:
    """Arguments of acting() on which a program is compared: the collector's next rows. Few rows are repeated; otherwise
    their number is the collector's, since act() may choose by it."""
    policy, rollout, envs = collector.policy, collector.rollout, collector.rollout.num_envs
    rows = torch.arange(envs if envs >= FEW else SAMPLE, device=rollout.device) % envs
    seen, state = (tree_map(lambda x: x[rows], x) for x in (rollout.observation[0], collector.rnn_state))
    numbers = torch.arange(len(rows) * policy.num_draws, device=rollout.device).view(len(rows), policy.num_draws)
    return policy, seen, state, numbers * GOLDEN % 1, rollout.valid[0][rows]  # draws, of no generator


def evaluation_of(collector: InlineCollector) -> Program | None:
    """Program of the policy's value(), which may be called for some of the rows. None where there is none, or where the
    algorithm did not declare values."""
    if "value" not in collector.rollout.columns:
        return None
    seen = tree_map(lambda x: x[0], collector.rollout.observation)
    given = collector.policy, seen, collector.rnn_state
    program = evaluating().find(given, lambda: sample(collector)[: len(given)])
    return None if isinstance(program, str) or program.code.layout.phases > 1 else program


def evaluate_last(collector: InlineCollector) -> None:
    """Fill the value of the last observation, where the algorithm declared values."""
    rollout = collector.rollout
    if "value" in rollout.columns:
        given = collector.policy, rollout.observation[-1], collector.rnn_state
        program = evaluating().find(given)
        if isinstance(program, str):
            with users_code():
                collector.evaluate_bootstrap_row()
        else:
            row = rollout.value[-1]
            threads = 1 if program.work * len(row) < WORTH_HELP else None
            if program.sizes[0] == [(1, 1)] and row.dtype == torch.float32:
                program.compute(program.values(given), [row], threads)
            else:
                rollout.value[-1] = program.compute(program.values(given), threads=threads)[0]


class CompiledOutputs(CompiledLoss):
    """A function of rows, to which tracing adds no gradients. sums: whether outputs are sums over rows."""

    def __init__(self, plain: Callable[..., Any], by_weights: bool | None = None, sums: bool = False) -> None:
        super().__init__(plain, by_weights)
        self.sums = sums

    def _conditions(self, arguments: tuple[Any, ...], tries: Tries, block: int = 0) -> Conditions:
        from headrace.bindings.compiled.loss_conditions import Conditions

        block = 0 if self.sums else block
        return Conditions(
            self.plain, arguments, tries, gradients=False, by_weights=self.by_weights, block=block, sums=self.sums
        )

    def _differs_later(self, program: Any, arguments: tuple[Any, ...]) -> str | None:
        return self._differs(program, arguments)

    def _differs(self, program: Any, arguments: tuple[Any, ...]) -> str | None:
        """Describe how outputs differ from the plain ones, for these rows and for others. None where they do not."""
        generator = torch.Generator().manual_seed(0)
        for where in ("these rows", "other rows"):
            with traced():  # by no kernel
                wanted = self.plain(*arguments)
            found = program.compute(program.values(arguments))
            if why := _far(wanted, found):
                return f"{why} differs from plain PyTorch's on {where}"
            arguments = tuple(_others(x, generator) for x in arguments)
        return None


def _others(value: Any, generator: torch.Generator) -> Any:
    """Replace the numbers of an argument by others of the same kind: draws and flags are exchanged among rows."""
    if isinstance(value, Tensor):
        new = value[torch.randperm(len(value), generator=generator).to(value.device)]
        inside = bool(((new >= 0) & (new < 1)).all())
        if not inside and new.is_floating_point():
            new = new * (1 + torch.randn(new.shape, generator=generator).to(new.device))
        return new
    return value


def _far(wanted: Sequence[Tensor], found: Sequence[Tensor]) -> str | None:
    """Name of the first output that is not near, in rows where choices are the same."""
    same = torch.ones(len(wanted[0]), dtype=torch.bool, device=wanted[0].device)
    for one, other in zip(wanted, found, strict=True):
        if not one.is_floating_point():
            same &= (one == other).flatten(1).all(1) if one.dim() > 1 else one == other
    if float((~same).float().mean()) > OTHERS:
        return "its choice"
    for i, (one, other) in enumerate(zip(wanted, found, strict=True)):
        if one.is_floating_point():
            one, other = one[same].double(), other[same].double()
            equal = (one == other) | (one.isnan() & other.isnan())
            largest = float(one[one.isfinite()].abs().max()) if one.isfinite().any() else 0.0
            if not bool((equal | ((one - other).abs() <= NEAR * largest + 1e-6)).all()):
                return f"its output {i}"
    return None
