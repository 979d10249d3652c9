"""Run one iteration on made-up observations before the clock starts, so that every kernel is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from headrace.core import rng
from headrace.data.rollout import Rollout
from headrace.parallel.collector import Collector, output_columns
from headrace.policies.examination import of_users
from headrace.training.build import Parts

WARM_UP_STEPS = 2
WARM_UP_ROWS = 4  # rows or sequences, if rollouts have as many: losses of fewer rows are not compiled


@contextmanager
def left_alone(policy: nn.Module) -> Iterator[None]:
    """Restore a network with classes of the user's after this block: its buffers, attributes, and their contents."""
    if not any(of_users(type(part)) for part in policy.modules()):
        yield
        return
    from headrace.kernels.rows.tracing.side_effects import Kept

    kept = Kept([("policy", policy)])
    owners = [(part._buffers, dict(part._buffers)) for part in policy.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in policy.buffers()]
    try:
        yield
    finally:
        kept.restore()
        for now, before in owners:
            now.update(before)
        with torch.no_grad():
            for buffer, numbers in buffers:
                buffer.copy_(numbers)


def warm_up_collector(collector: Collector, policy: nn.Module) -> None:
    """Let a collector compile what it needs, without a change of the policy."""
    with left_alone(policy):
        collector.warm_up()


@torch.no_grad()
def warm_up(parts: Parts) -> None:
    """Act and learn once on made-up observations, then forget it."""
    policy, columns = parts.algorithm.policy, parts.env.columns() | parts.algorithm.columns()
    num_envs, device = parts.env.num_envs, parts.placement.learn
    length = policy.sequence_length
    sequences = min(WARM_UP_ROWS // num_envs, parts.collector.rollout.num_steps // length)
    steps = max(WARM_UP_STEPS, length * max(1, sequences))
    rollout = Rollout(steps, num_envs, columns, device)
    rollout.valid.fill_(True)
    random = rng.uniform(0, rng.Purpose.ACTION, 0, steps, num_envs, policy.num_draws, device)
    rnn_state = policy.initial_state(num_envs)
    for t in range(steps):
        output = policy.act(rollout.observation[t], rnn_state, random[t])
        rnn_state = output.rnn_state
        for name in output_columns(rollout):
            getattr(rollout, name)[t] = getattr(output, name)
    if "value" in rollout.columns:
        rollout.value[steps] = policy.value(rollout.observation[steps], rnn_state)
    with torch.enable_grad():
        parts.algorithm.warm_up(rollout)


def prepare(parts: Parts) -> str:
    """Warm up, allocate what the algorithm needs, and fill its replay buffer with the data of the setting `replay`.

    Returns a line about memory, or an empty one. Raises ValueError for data that do not fit.
    """
    with left_alone(parts.algorithm.policy):
        warm_up(parts)
    line = parts.algorithm.prepare(parts.collector.rollout)
    if parts.config.replay is not None:
        from headrace.training.from_data import first_rows

        spaces = parts.env.observation_space, parts.env.action_space
        first_rows.fill(
            parts.algorithm, parts.config.replay, spaces, parts.config.reward_scale, parts.collector.rollout
        )
    return line
