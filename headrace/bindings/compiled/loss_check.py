"""Comparison of a compiled loss with the plain function: on the present minibatch, and on other numbers, for which the
loss's comparisons give other results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.core.fused import traced
from headrace.kernels.rows.tracing.stand_ins import NUMBER, standing_in
from headrace.kernels.rows.tracing.switches import unchecked

NEAR = 1e-4  # of each tensor's largest number
SMALL = 1e-6  # fraction of the largest of all gradients: smaller differences are rounding
TIMES = 64.0  # how much further from float64's result than plain PyTorch's a result may be, where both are far from it


def differs(program: Any, arguments: tuple[Any, ...]) -> str | None:
    """Describe how the compiled loss differs from the plain one. None where it does not."""
    values = program.values(arguments)
    generator = torch.Generator().manual_seed(0)
    for where, numbers in (("this minibatch", values), ("other numbers", _others(program, values, generator))):
        wanted = _plain(program, arguments, values, numbers)
        if reason := _difference(program, arguments, values, numbers, wanted, where):
            return reason
    return None


def differs_later(program: Any, arguments: tuple[Any, ...]) -> str | None:
    """Same as differs(), on the call's own numbers alone. The modules' numbers are not replaced, so other threads may
    use the modules meanwhile."""
    values = program.values(arguments)
    buffers = [(values[i], values[i].clone()) for _, i in program.written]
    with torch.enable_grad(), unchecked(), traced():  # by no kernel
        returned = program.plain(*arguments)
        wanted = _results(program, returned, [values[i] for _, i in program.learned])
    wanted += [buffer.clone() for buffer, _ in buffers]
    for buffer, before in buffers:
        buffer.copy_(before)
    return _difference(program, arguments, values, values, wanted, "this minibatch")


def _difference(
    program: Any,
    arguments: tuple[Any, ...],
    values: Sequence[Tensor],
    numbers: Sequence[Tensor],
    wanted: Sequence[Tensor],
    where: str,
) -> str | None:
    found = program.compute(numbers)
    if len(found) != len(wanted):
        return "its metrics are tensors where plain PyTorch returns numbers"
    far = _far(program, wanted, found)
    if far and not _as_good(program, arguments, values, numbers, wanted, found):
        return f"its {far} differs from plain PyTorch's on {where}"
    return None


def _others(program: Any, values: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
    """Numbers unlike the given ones: rows exchanged in each column, parameters and columns scaled and shifted."""
    found = []
    for source, value in zip(program.sources, values, strict=True):
        new = value.detach()
        if source.kind == "column":
            new = new[torch.randperm(len(new), generator=generator).to(new.device)]
            if new.is_floating_point():
                new = _varied(new, torch.randn(new.shape, generator=generator).to(new.device))
        elif new.is_floating_point() and new.dim():
            scale = new.std(unbiased=False) + 0.01
            new = new + 0.3 * scale * torch.randn(new.shape, generator=generator).to(new.device)
        found.append(new)
    return found


def _varied(column: Tensor, random: Tensor) -> Tensor:
    """Scale the entries of a column at random. Entries that have only whole numbers keep them: flags, weights, choices.
    Numbers between -1 and 1 stay between their extremes, and positive ones positive, since a distribution may have no
    others, and a loss of NaN compares nothing."""
    whole, low, high = (column == column.round()).all(0), column.amin(0), column.amax(0)
    near, positive = ~whole & (low >= -1) & (high <= 1), ~whole & (low >= 0)
    new = torch.where(whole, column, column * (1 + random / 2))
    if bool(near.any()):
        new = torch.where(near, new.clamp(low[near].min(), high[near].max()), new)
    return torch.where(positive & ~near, new.clamp(min=low), new)


def _plain(
    program: Any, arguments: tuple[Any, ...], values: Sequence[Tensor], numbers: Sequence[Tensor], double: bool = False
) -> list[Tensor]:
    """Compute the plain function's loss, gradients and metrics with other numbers instead of the arguments' own."""
    numbers = [x.double() if double and x.is_floating_point() else x.detach().clone() for x in numbers]
    made = standing_in(program.plain, arguments, program.given, values, numbers, floats=False)
    with made as used, torch.enable_grad(), unchecked(), traced():
        returned = program.plain(*used.arguments)
    learned = {source.name: tensor for source, tensor in used.learned}
    found = _results(program, returned, [learned[program.sources[i].name] for _, i in program.learned])
    ids = {source.name: id(own) for source, own in zip(program.sources, values, strict=True)}
    written = [used.tensors[ids[result.written.name]] for result in program.results if result.written is not None]
    return [*found, *written]


def _results(program: Any, returned: Any, learned: Sequence[Tensor]) -> list[Tensor]:
    """The loss, its gradients and its metrics, from what the plain function returned."""
    loss, rest = returned if isinstance(returned, tuple) else (returned, ())
    gradients = torch.autograd.grad(loss, learned, allow_unused=True)
    zeros = [torch.zeros_like(own) if g is None else g for own, g in zip(learned, gradients, strict=True)]
    leaves = zip(torch.utils._pytree.tree_leaves(rest), program.spec[1], strict=False)
    metrics = [torch.as_tensor(x).detach() for x, fixed in leaves if isinstance(x, Tensor) or fixed is NUMBER]
    return [loss.detach(), *zeros, *metrics]


def _far(program: Any, wanted: Sequence[Tensor], found: Sequence[Tensor]) -> str | None:
    """The name of the first output that is not near."""
    largest = max(
        [float(x.abs().max()) for r, x in zip(program.results, wanted, strict=True) if r.learned and x.numel()] or [0]
    )
    for result, one, other in zip(program.results, wanted, found, strict=True):
        floor = SMALL * largest if result.learned else 1e-6
        if _distance(one, other) > NEAR * _largest(one) + floor:
            return str(result.name)
    return None


def _largest(x: Tensor) -> float:
    x = x.double()
    finite = x[torch.isfinite(x)]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _distance(one: Tensor, other: Tensor) -> float:
    """The largest difference; infinite where one is NaN or infinite and the other is not the same."""
    one, other = one.double(), other.double()
    same = (one == other) | (one.isnan() & other.isnan())
    difference = torch.where(same, 0.0, (one - other).abs())
    return float(difference.nan_to_num(torch.inf).max()) if difference.numel() else 0.0


def _as_good(
    program: Any,
    arguments: tuple[Any, ...],
    values: Sequence[Tensor],
    numbers: Sequence[Tensor],
    wanted: Sequence[Tensor],
    found: Sequence[Tensor],
) -> bool:
    """Tell whether the compiled loss is about as close to its result in float64 as plain PyTorch's in float32 is."""
    try:
        exact = _plain(program, arguments, values, numbers, double=True)
    except (RuntimeError, TypeError, ValueError):  # it does not run in float64
        return False
    for one, plain, own in zip(exact, wanted, found, strict=True):
        if _distance(one, own) > TIMES * _distance(one, plain) + NEAR * _largest(one):
            return False
    return True
