"""Checks that stop a run at NaN and infinity, before they reach the weights."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from headrace.data.rollout import Rollout, named_tensors

WRITTEN_BY = {  # where to look for the cause, by column
    "observation": "the environment's observation",
    "reward": "the environment's reward",
    "episode_return": "the environment's reward, summed up",
    "action": "the policy's action",
    "log_prob": "the policy's output",
    "value": "the policy's output",
}


LARGE = 1e4  # the square of a larger number in a loss leaves no digits of float32 to the others
ADVICE = {  # what may help against numbers that are too large, by column
    "reward": "give a smaller reward_scale",
    "observation": "give normalize_observation=True",
}


class NotFinite(ArithmeticError):
    """A NaN or an infinity in a rollout or a metric."""


def check_rollout(rollout: Rollout, first_step: int, steps: int | None = None) -> None:
    """Raise NotFinite, naming column, env and step, where any float of a rollout is NaN or infinite.

    first_step: steps each env had taken before the rollout, masked rows included. steps: valid ones, of all envs;
    None where that is not known.
    """
    columns = [(name, _given(name, x)) for name, x in named_tensors(rollout) if x.is_floating_point() and x.numel()]
    if math.isfinite(_total([column for _, column in columns])):
        return
    for name, column in columns:
        bad = (~torch.isfinite(column)).nonzero()
        if len(bad):
            row, env, *entry = bad[0].tolist()
            value = column[tuple(bad[0])].item()
            source = WRITTEN_BY.get(name.partition(".")[0], "what was collected")
            env = env if rollout.env is None else int(rollout.env[env])
            after = "" if steps is None else f", after {steps:,} steps of all envs"
            where = f"{name}[{', '.join(map(str, entry))}]" if entry else name
            raise NotFinite(
                f"{where} is {value} in env {env} at row {row} of the rollout: step {first_step + row:,} of that env"
                f"{after}. Look at {source} there"
            )


def _given(name: str, column: Tensor) -> Tensor:
    """A column. In columns of infos NaN, which stands for a number that an episode did not report, becomes 0."""
    return column.masked_fill(column.isnan(), 0.0) if name.startswith("info.") else column


def _total(columns: list[Tensor]) -> float:
    """Sum of all columns, which is finite only if all entries are. This takes one reduction for each column, and one
    wait for the device. NumPy computes it on the CPU, since torch would wake other threads while kernels use the
    cores."""
    if columns[0].device.type == "cpu":
        with np.errstate(all="ignore"):
            return float(sum(np.add.reduce(column.detach().numpy(), axis=None) for column in columns))
    return torch.stack([column.sum() for column in columns]).sum().item()


def check_metrics(metrics: Mapping[str, float], steps: int, rollout: Rollout) -> None:
    """Raise NotFinite, naming the metric, where an update gave a NaN or an infinity. rollout: the last one."""
    for name, value in metrics.items():
        if value - value != 0.0:  # true of NaN and infinities only
            raise NotFinite(
                f"{name} is {value} after learning at {steps:,} steps: the weights are ruined. {_largest(rollout)}"
            )


def _largest(rollout: Rollout) -> str:
    """The largest rewards and observations of a rollout, and what may help."""
    sizes = dict.fromkeys(ADVICE, 0.0)
    for name, column in named_tensors(rollout):
        kind = name.partition(".")[0]
        if kind in sizes and column.numel():
            sizes[kind] = max(sizes[kind], float(column.abs().max()))
    seen = " and ".join(f"{kind}s of up to {size:.3g}" for kind, size in sizes.items())
    large = [kind for kind, size in sizes.items() if size > LARGE]
    advice = "; ".join(f"{kind}s of that size are too large for float32: {ADVICE[kind]}" for kind in large)
    return (
        f"In absolute value, the last rollout has {seen}; "
        f"{advice or 'neither is too large: a smaller learning_rate may help'}"
    )
