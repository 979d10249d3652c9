"""Learning from any loss by machine code that is made of it: gradients, clipping and Adam's steps of all minibatches in
one call. The plain functions are those of headrace.algorithms.on_policy."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.on_policy import Batch, Limit, Loss
from headrace.algorithms.reduce import Reduce, loss_and_metrics, one_learner, size_of
from headrace.bindings.arguments import MISFIT, fits
from headrace.bindings.bound import Bound
from headrace.bindings.compiled import gpu_learning
from headrace.bindings.compiled.compiled_losses import DEVICES, FEWEST, CompiledLoss, too_few
from headrace.bindings.compiled.gradient_call import GradientCall
from headrace.bindings.compiled.loss_learner import LossLearner
from headrace.bindings.compiled.loss_program import Program
from headrace.bindings.eligibility import why_not_adam
from headrace.bindings.rng_returns_cpu import shares
from headrace.core.fused import register
from headrace.data.rollout import tree_map
from headrace.kernels.rows.row_plan import BY_WEIGHTS, block_of_sequences
from headrace.kernels.rows.targets.cpu_program import CpuProgram
from headrace.policies.base import Policy

LOSSES = 64  # largest number of losses whose programs are kept
SHARE = "of_a_row"  # weight of a valid row, 1 / number of them
_learners: Bound[LossLearner] = Bound()
_gradients: Bound[GradientCall] = Bound()


def compiled(loss: Loss, unit: int, size: int) -> CompiledLoss:
    """Make the function that is compiled for a loss of minibatches of so many rows, in sequences of `unit` rows.
    Besides the loss's arguments it takes the weight of a valid row."""
    return _compiled(loss, unit, size <= BY_WEIGHTS, block_of_sequences(size, unit))


@lru_cache(LOSSES)
def _compiled(loss: Loss, unit: int, by_weights: bool, block: int) -> CompiledLoss:
    def weighted(policy: Policy, batch: Mapping[str, Any], config: Any, of_a_row: Tensor) -> Any:
        rows: Batch = {**batch}
        if unit > 1:
            rows = {name: tree_map(lambda x: x.flatten(0, 1), part) for name, part in batch.items()}
        return computed(loss(policy, {**rows, "weight": rows["valid"] * of_a_row}, config))

    named: Any = weighted
    named.__signature__ = inspect.signature(weighted)  # rather than the loss', whose variables are inputs too
    named.__wrapped__, named.__qualname__ = loss, getattr(loss, "__qualname__", "loss")
    return CompiledLoss(weighted, by_weights, block)


def computed(returned: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Result of a loss, with each metric as a tensor that the program computes, also a metric that is a setting."""
    loss, metrics = loss_and_metrics(returned)
    return loss, {name: x if x.dim() else x * 1.0 for name, x in metrics.items()}


def _units(columns: Mapping[str, Any], unit: int) -> dict[str, Any]:
    """View columns [R, ...] as sequences [R / unit, unit, ...]. Unchanged for a unit of 1."""
    if unit == 1:
        return columns if isinstance(columns, dict) else {**columns}
    return {name: tree_map(lambda x: x.unflatten(0, (-1, unit)), part) for name, part in columns.items()}


def _first(columns: Mapping[str, Any], count: int) -> dict[str, Any]:
    return {name: tree_map(lambda x: x[:count], part) for name, part in columns.items()}


def _program(
    loss: Loss, policy: Policy, columns: Mapping[str, Any], size: int, config: Any, reduce: Reduce = one_learner
) -> Any:
    """Program of the loss for `size` rows of these columns, or the reason why not. reduce: see CompiledLoss.find()."""
    unit = policy.sequence_length
    if inspect.ismethod(loss):
        return "its loss is a method of an object that changes; a staticmethod (policy, batch, config) is compiled"
    if reason := too_few(size, 1, config):
        return reason
    share, whole = torch.zeros((), device=columns["valid"].device), _units(columns, unit)
    few = lambda: (policy, _first(whole, max(size // unit, FEWEST)), config, share)  # noqa: E731
    arguments = few() if share.is_cuda else (policy, whole, config, share)  # a program for a GPU is for so many rows
    return compiled(loss, unit, size).find(arguments, few, size // unit, reduce)


def serves_gradient(
    loss: Loss, policy: Policy, columns: Mapping[str, Any], config: Any, reduce: Reduce = one_learner
) -> bool | str:
    """True if the loss is compiled for these rows; else the reason."""
    if columns["valid"].device.type not in DEVICES:
        return False
    found = _program(loss, policy, columns, len(columns["valid"]), config, reduce)
    return found if isinstance(found, str) else True


@register("gradient", serves_gradient)
@torch.no_grad()
def loss_gradient(
    loss: Loss, policy: Policy, columns: Mapping[str, Any], config: Any, reduce: Reduce = one_learner
) -> dict[str, Tensor]:
    """headrace.algorithms.on_policy.loss_gradient, within rounding."""
    count = columns["valid"].sum()
    reduce(count)
    program = compiled(loss, policy.sequence_length, len(columns["valid"])).last  # which serves_gradient() has found
    given = (policy, _units(columns, policy.sequence_length), config, 1 / count.clamp(min=1))
    values = program.values(given)
    if isinstance(program.code, CpuProgram):
        gradients, rows = [values[i].grad for _, i in program.learned], program.rows(given)
        lie = [None if x is None else x.data_ptr() for x in gradients]
        call = _gradients.get(lambda: GradientCall(program, gradients, rows), policy, ref(program), lie, rows)
        if call.serves:
            return call.run(program, values)
    return loss_and_metrics(program.run(values))[1]


def serves(
    loss: Loss,
    policy: Policy,
    optimizer: Adam,
    columns: Mapping[str, Any],
    order: Tensor,
    number: int,
    config: Any,
    reduce: Reduce = one_learner,
    limit: Limit | None = None,
) -> bool | str:
    """True if the loss is compiled for these minibatches, and the optimizer takes its gradients; else the reason."""
    if order.device.type not in DEVICES:
        return False
    if order.device.type == "cpu" and not _fits(order, len(columns["valid"])):
        return MISFIT
    if (reason := why_not_adam(optimizer, any_beta2=True)) is not None:
        return reason
    found = _program(loss, policy, columns, _size(order, number, policy.sequence_length), config, reduce)
    return found if isinstance(found, str) else _why_no_steps(found, optimizer) or True


def _fits(order: Tensor, rows: int) -> bool:
    """Tell whether an order is contiguous int64 [epochs, R] that has rows 0 to R - 1 alone."""
    if order.dim() != 2 or not order.numel() or not fits(order, torch.int64, len(order), rows):
        return False
    return order.is_contiguous() and int(order.numpy().view(np.uint64).max()) < rows  # a negative number is a large one


def _size(order: Tensor, number: int, unit: int) -> int:
    """Rows of a minibatch."""
    return order.shape[1] // unit // number * unit


def _why_no_steps(program: Any, optimizer: Adam) -> str | None:
    """Reason why the optimizer cannot step along a program's gradients where they are written. None where it can."""
    known = {*map(id, optimizer.parameters)} if optimizer.has_gradients() else set[int]()
    if len(program.learns) < len(program.learned) or not program.learns <= known:
        for _, i in program.learned:
            if id(program.sources[i].find(())) not in known:
                return f"{program.sources[i].name} is not among the parameters that the optimizer learns"
    if program.of_rows is not None:
        return f"its metric {program.of_rows} has a number for each row; a mean over rows is compiled"
    return None


@register("learning", serves)
@torch.no_grad()
def learn_minibatches(
    loss: Loss,
    policy: Policy,
    optimizer: Adam,
    columns: Mapping[str, Any],
    order: Tensor,
    number: int,
    config: Any,
    reduce: Reduce = one_learner,
    limit: Limit | None = None,
) -> dict[str, Tensor]:
    """headrace.algorithms.on_policy.learn_minibatches, within rounding."""
    unit = policy.sequence_length
    rows = order if unit == 1 else (order[:, ::unit] // unit).contiguous()
    shares = _shares(columns["valid"], order, number, _size(order, number, unit), reduce)
    program = last(loss, policy, order, number)  # which serves() has found
    if isinstance(program.code, CpuProgram):
        given = (columns, rows, shares, number, config, limit, reduce)
        learner, done = learned(program, policy, optimizer, *given)
        return learner.metrics(done)
    values, norm = _values(program, policy, columns, config, shares), float(config.max_grad_norm)
    return gpu_learning.learn(program, optimizer, values, shares, SHARE, rows, number, norm, reduce, limit)


def last(loss: Loss, policy: Policy, order: Tensor, number: int) -> Program:
    """Program that serves() gave this thread last for these minibatches."""
    return compiled(loss, policy.sequence_length, _size(order, number, policy.sequence_length)).last


def learned(
    program: Program,
    policy: Policy,
    optimizer: Adam,
    columns: Mapping[str, Any],
    rows: Tensor,
    shares: Tensor,
    number: int,
    config: Any,
    limit: Limit | None,
    reduce: Reduce = one_learner,
) -> tuple[LossLearner, int]:
    """Do the work of learn_minibatches() by a program for the CPU. rows: the order of rows, or of sequences. shares:
    the weight of a valid row in each minibatch. Returns the learner, which has the metrics, and the number of
    minibatches."""
    values = _values(program, policy, columns, config, shares)
    frozen = [parameter.requires_grad for parameter in optimizer.parameters]
    learner = _learners.get(
        lambda: LossLearner(program, optimizer, rows, number, SHARE, limit),
        optimizer,
        program,
        optimizer.flat,
        optimizer.gradient,
        optimizer.mean,
        optimizer.square,
        rows.shape,
        number,
        frozen,
        limit,
    )
    return learner, learner.learn(optimizer, values, shares, rows, float(config.max_grad_norm), reduce)


def _values(program: Program, policy: Policy, columns: Mapping[str, Any], config: Any, shares: Tensor) -> list[Tensor]:
    """The program's inputs: all rows of the columns, and the share of the first minibatch."""
    return program.values((policy, _units(columns, policy.sequence_length), config, shares[0]))


def _shares(valid: Tensor, order: Tensor, number: int, size: int, reduce: Reduce) -> Tensor:
    """Weight of a valid row in each minibatch, from the number of valid rows of all learners."""
    if size_of(reduce) == 1 and all(x.device.type == "cpu" and x.is_contiguous() for x in (valid, order)):
        return shares(valid, order, size)
    rows = valid[order[:, : size * number]].view(-1, size).sum(1)
    reduce(rows)
    return 1 / rows.clamp(min=1)
