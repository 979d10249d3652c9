"""Learning from the replay buffer by machine code that is made of an algorithm's losses: gradients, steps of the
optimizers and target networks, for all minibatches in one call."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.objectives import TD_ERROR, Learned, Objective, OffPolicyLoss, Rows, mean_weights
from headrace.algorithms.reduce import Reduce, one_learner
from headrace.bindings.bound import Bound
from headrace.bindings.compiled import gpu_learning
from headrace.bindings.compiled.compiled_learning import computed
from headrace.bindings.compiled.compiled_losses import DEVICES, CompiledLoss, too_few
from headrace.bindings.compiled.loss_conditions import Conditions
from headrace.bindings.compiled.loss_tries import Tries
from headrace.bindings.compiled.objective_learner import ObjectiveLearner, Part
from headrace.bindings.eligibility import why_not_adam
from headrace.core.fused import register
from headrace.core.looking import looked_once
from headrace.data.replay import Batch
from headrace.data.rollout import tree_map
from headrace.kernels.rows.row_plan import block_of_sequences
from headrace.kernels.rows.targets.cpu_program import CpuProgram

if TYPE_CHECKING:
    from headrace.bindings.compiled.loss_program import Program

SEEN = "observation", "next_observation"  # of a recurrent policy histories, which are of sequences already
MOST = 2  # optimizers of a loss, and target networks' buffers


class CompiledObjective(CompiledLoss):
    """A loss with the gradients of the parameters that its optimizers learn."""

    def __init__(self, objective: Objective, unit: int, block: int) -> None:
        super().__init__(_of_sequences(objective.loss, unit), block=block)
        self._optimizers = [ref(optimizer) for optimizer in objective.optimizers]
        self._columns: WeakKeyDictionary[Program, Rows] = WeakKeyDictionary()

    def _conditions(self, arguments: tuple[Any, ...], tries: Tries) -> Conditions:
        optimizers = [optimizer for found in self._optimizers if (optimizer := found()) is not None]
        learns = frozenset(id(parameter) for optimizer in optimizers for parameter in optimizer.parameters)
        return Conditions(self.plain, arguments, tries, learns=learns, block=self.block)

    def columns(self, program: Program, values: Sequence[Tensor]) -> Rows:
        """Memory for the columns that the loss gives to later losses, with the numbers of the first minibatch for which
        the program was made."""
        if program not in self._columns:
            named = program.arranged([i for i, result in enumerate(program.results) if result.is_metric])
            wanted = {name: i for name, i in named.items() if program.with_rows[i] and name != TD_ERROR}
            found = program.compute(values) if wanted else []
            self._columns[program] = {name: found[i] for name, i in wanted.items()}
        return self._columns[program]


_compiled: WeakKeyDictionary[Adam, dict[object, CompiledObjective]] = WeakKeyDictionary()
_learners: Bound[ObjectiveLearner] = Bound()


def _of_sequences(loss: OffPolicyLoss, unit: int) -> OffPolicyLoss:
    """Make a loss of sequences of so many rows from a loss of rows. Its metrics are tensors."""

    def of_sequences(networks: Any, batch: Rows, config: Any) -> tuple[Tensor, dict[str, Tensor]]:
        if unit == 1:
            return computed(loss(networks, batch, config))
        rows = {name: x if name in SEEN else x.flatten(0, 1) for name, x in batch.items()}
        value, found = computed(loss(networks, rows, config))
        return value, {name: x.unflatten(0, (-1, unit)) if x.dim() else x for name, x in found.items()}

    named: Any = of_sequences
    named.__wrapped__, named.__qualname__ = loss, getattr(loss, "__qualname__", "loss")
    named.__signature__ = inspect.signature(of_sequences, follow_wrapped=False)
    return of_sequences


def _of(objective: Objective, unit: int, config: Any) -> CompiledObjective:
    """Make the function that is compiled for the objective's loss, of sequences of so many rows."""
    known = _compiled.setdefault(objective.optimizers[0], {})
    block = block_of_sequences(config.batch_size, unit)
    key = objective.loss, unit, block, *map(id, objective.optimizers)
    if key not in known:
        known[key] = CompiledObjective(objective, unit, block)
    return known[key]


def _rows(batches: Batch, random: Tensor, g: int, unit: int) -> Rows:
    """Rows of minibatch g in the form that losses take, or in sequences of so many rows."""
    columns = batches._asdict() | ({"random": random} if random.shape[-1] else {})
    del columns["rows"]  # places in the ring
    rows = {name: tree_map(lambda x: x[g], column) for name, column in columns.items()}
    if unit == 1:
        return rows
    return {name: x if name in SEEN else x.unflatten(0, (-1, unit)) for name, x in rows.items()}


def programs_of(
    objectives: Sequence[Objective], networks: Learned, rows: Rows, config: Any, reduce: Reduce = one_learner
) -> tuple[list[Program], list[Rows]] | str:
    """Programs of the losses, each with what its loss gives to later losses; or the reason why there are none. reduce:
    see CompiledLoss.find()."""
    programs: list[Program] = []
    columns: list[Rows] = []
    with looked_once():
        for objective in objectives:
            compiled = _of(objective, networks.policy.sequence_length, config)
            arguments = networks, rows, config
            program = compiled.find(arguments, reduce=reduce)
            if isinstance(program, str):
                return program
            programs.append(program)
            columns.append(compiled.columns(program, program.values(arguments)))
            rows = rows | columns[-1]
    return programs, columns


def arguments_of(
    networks: Learned, minibatches: Sequence[Rows], columns: Sequence[Rows], config: Any
) -> list[list[tuple[Any, ...]]]:
    """Arguments of each loss, for each minibatch. columns: what each loss gives to later losses."""
    found = list[list[tuple[Any, ...]]]()
    for own in columns:
        found.append([(networks, rows, config) for rows in minibatches])
        minibatches = [rows | own for rows in minibatches]
    return found


def why_not(objectives: Sequence[Objective], rows: int, length: int, config: Any) -> str | None:
    """Reason why no compiled call takes the optimizers' steps along these losses. None where one does. rows: of a
    minibatch. length: of its sequences."""
    if reason := too_few(rows, length, config):
        return reason
    for objective in objectives:
        for optimizer in objective.optimizers:
            if (reason := why_not_adam(optimizer, any_beta1=True, any_beta2=True, any_decay=True)) is not None:
                return reason
        if max(len(objective.optimizers), len(objective.targets)) > MOST:
            return f"it is for up to {MOST} optimizers of a loss, and {MOST} target networks"
    return None


def buffers_of(objectives: Sequence[Objective]) -> list[Any]:
    """All that a learner of these depends on: buffers, and which parameters are learned."""
    optimizers = [optimizer for objective in objectives for optimizer in objective.optimizers]
    buffers = [x for own in optimizers for x in (own.flat, own.gradient, own.mean, own.square)]
    targets = [x for objective in objectives for pair in objective.targets for x in pair]
    frozen = [parameter.requires_grad for own in optimizers for parameter in own.parameters]
    return [*buffers, *targets, frozen, [objective.every for objective in objectives]]


def serves(
    objectives: Sequence[Objective],
    networks: Learned,
    batches: Batch,
    random: Tensor,
    config: Any,
    since: int = 0,
    reduce: Reduce = one_learner,
) -> bool | str:
    """True if all losses are compiled for these minibatches, and the optimizers take their gradients; else the
    reason."""
    rows = batches.reward.shape[1]
    if batches.reward.device.type not in DEVICES:
        return False
    if (reason := why_not(objectives, rows, networks.policy.sequence_length, config)) is not None:
        return reason
    first = _rows(batches, random, 0, networks.policy.sequence_length)
    found = programs_of(objectives, networks, first, config, reduce)
    if isinstance(found, str):
        return found
    return True


@register("learning from replay", serves)
@torch.no_grad()
def take_steps(
    objectives: Sequence[Objective],
    networks: Learned,
    batches: Batch,
    random: Tensor,
    config: Any,
    since: int = 0,
    reduce: Reduce = one_learner,
) -> tuple[dict[str, Tensor], Tensor | None]:
    """headrace.algorithms.objectives.take_steps, within rounding."""
    (steps, rows), unit = batches.reward.shape, networks.policy.sequence_length
    weight = torch.stack([mean_weights(each, reduce) for each in batches.weight])
    batches = Batch._make(tree_map(lambda x: x.contiguous(), column) for column in batches._replace(weight=weight))
    random = random.contiguous()  # so that columns lie evenly, from one minibatch to the next
    given = [_rows(batches, random, g, unit) for g in (0, min(1, steps - 1))]
    found = programs_of(objectives, networks, given[0], config)
    assert not isinstance(found, str), "which serves() has asked"
    programs, columns = found

    if not isinstance(programs[0].code, CpuProgram):
        minibatches = [_rows(batches, random, g, unit) for g in range(steps)]
        everything = arguments_of(networks, minibatches, columns, config)
        metrics, errors = gpu_learning.take_steps(
            programs, objectives, columns, everything, rows // unit, since, reduce
        )
        return metrics, None if errors is None else errors.view(steps, rows)

    def make() -> ObjectiveLearner:
        parts = zip(programs, objectives, columns, strict=True)
        return ObjectiveLearner([Part(*part, steps, rows // unit) for part in parts], steps, rows // unit)

    learner = _learners.get(make, objectives[0].optimizers[0], *programs, *buffers_of(objectives), steps, rows)
    metrics, errors = learner.learn(objectives, arguments_of(networks, given, columns, config), since, reduce)
    return metrics, None if errors is None else errors.view(steps, rows)
