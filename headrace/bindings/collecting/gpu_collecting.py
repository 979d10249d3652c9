"""Collecting on a GPU with any policy whose act() is compiled: one launch for the policy in each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headrace.bindings.compiled import loss_conditions
from headrace.bindings.compiled.compiled_acting import acting, evaluate_last, sample
from headrace.bindings.compiled.loss_program import Program
from headrace.bindings.digests import DIGESTS
from headrace.core.fused import register
from headrace.kernels.rows.gpu.gpu_program import GpuMemory
from headrace.parallel.collector import InlineCollector, acts_as_written, output_columns


def serves(collector: InlineCollector, first_step: int | Tensor) -> bool | str:
    """True if the rollout is on a GPU and the policy's act() is compiled; else the reason."""
    policy, rollout = collector.policy, collector.rollout
    if not loss_conditions.on_gpu(rollout.device) or not acts_as_written(collector) or torch.is_grad_enabled():
        return False
    if not isinstance(collector.rnn_state, Tensor | None) or policy.sequence_length < 1:
        return False
    program = _program(collector)
    if isinstance(program, str):
        return program
    return program.code.layout.phases == 1  # of more, each needs all rows


def _program(collector: InlineCollector) -> Program | str:
    return acting(tuple(output_columns(collector.rollout))).find(sample(collector))


class _Acts:
    """Acts for one policy in one rollout."""

    def __init__(self, program: Program, collector: InlineCollector, random: Tensor) -> None:
        self.program, self.rollout, self.random = program, collector.rollout, random
        self.names = output_columns(collector.rollout)
        memory = program.code.memory(collector.rollout.num_envs, 1)
        assert isinstance(memory, GpuMemory)
        self.memory = memory
        self.values = program.values(self._given(collector, 0))
        self.kept = program.point(self.memory.words, self.values)

    def _given(self, collector: InlineCollector, t: int) -> tuple[Any, ...]:
        rollout = self.rollout
        return collector.policy, rollout.observation[t], collector.rnn_state, self.random[t], rollout.valid[t]

    def act(self, collector: InlineCollector, t: int) -> None:
        """Fill row t with what the policy outputs."""
        program, rollout, given = self.program, self.rollout, self._given(collector, t)
        for i in program.columns:
            self.values[i] = program.sources[i].find(given)
        kept = program.point(self.memory.words, self.values, program.columns)
        columns = [getattr(rollout, name)[t] for name in self.names]
        outputs = [program.output(i, rollout.num_envs) for i in range(len(program.results))]
        for i, column in enumerate(columns):
            own = outputs[i]
            if own.dtype == column.dtype and own.shape == column.shape and column.is_contiguous():
                outputs[i] = column
        for i, own in enumerate(outputs):
            program.point_output(self.memory.words, i, own)
        self.memory.run(first=t == 0)
        for own, column in zip(outputs, columns, strict=False):
            if own is not column:
                column.copy_(own)
        if collector.rnn_state is not None:
            if "rnn_state" in rollout.columns:
                rollout.rnn_state[t].copy_(collector.rnn_state)
            collector.rnn_state = outputs[-1]
        del kept


@register("collector.steps", serves, DIGESTS["collector.steps"], (InlineCollector,), first=False)
@torch.no_grad()
def steps(collector: InlineCollector, first_step: int | Tensor) -> None:
    """headrace.parallel.collector.steps, within rounding."""
    timer, rollout = collector.timer, collector.rollout
    with timer("inference"):
        program = _program(collector)
        assert not isinstance(program, str), "which serves() has asked"
        acts = _Acts(program, collector, collector._random(first_step))
    for t in range(rollout.num_steps):
        with timer("inference"):
            collector.check_stop()
            acts.act(collector, t)
        with timer("env"):
            collector.env.step(rollout, t)
    with timer("inference"):
        evaluate_last(collector)
