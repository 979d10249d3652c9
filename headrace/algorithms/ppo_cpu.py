"""PPO's learning call by the CPU's kernels. The plain one is headrace.algorithms.ppo.learn."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.adam import Adam
from headrace.algorithms.minibatches import count
from headrace.algorithms.ppo import METRICS, PPOConfig, _normalized
from headrace.fused import register
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import Policy
from headrace.policies.distributions import Categorical, Gaussian, MultiCategorical
from headrace.policies.heads import CategoricalHead, GaussianHead
from headrace.policies.served import flat_parameters, why_not
from headrace.rollout import Rollout, flatten

# Of the plain source that the kernel was written after, and what else that calls. Where a test says that they differ:
# bring the kernel after the source, see that tests/algorithms/test_ppo_cpu.py passes, and put the new digest here.
DIGEST = "a9e69e1971e7907e"
SOURCES = (
    *(ActorCritic.forward, ActorCritic.evaluate, Adam.step),
    *(Categorical.log_prob, Categorical.entropy, MultiCategorical.log_prob, MultiCategorical.entropy),
    *(Gaussian.log_prob, Gaussian.entropy, CategoricalHead.forward, GaussianHead.forward),
)
ANNOUNCEMENT = "compiling PPO's learning call (once, about 8 s)"


class _Workspace(NamedTuple):
    """A policy's tables, and the kernel's arrays, for parameters at one address."""

    address: int
    kernel: ModuleType  # headrace.kernels.ppo_cpu
    tables: Any  # headrace.policies.compiled.Compiled
    scratch: Any
    gradient: Any
    flat: Any
    sums: Any
    batch: Any
    weight: Any


_workspaces: WeakKeyDictionary[Policy, _Workspace] = WeakKeyDictionary()


def serves(
    policy: Policy,
    optimizer: Adam,
    rollout: Rollout,
    advantage: Tensor,
    returns: Tensor,
    permutation: Tensor,
    config: Any,
) -> bool | str:
    """Whether the kernel knows this policy and optimizer; else the reason."""
    if rollout.device.type != "cpu":
        return False
    if type(optimizer) is not Adam:
        return f"{type(optimizer).__name__} is not the Adam it was written for"
    flat = flat_parameters(policy)
    if flat is None or flat.data_ptr() != optimizer.flat.data_ptr():
        return "parameters are not float32 views of the optimizer's buffer"
    return why_not(policy) or True


@register("ppo.learn", serves, DIGEST, SOURCES)
@torch.no_grad()
def learn(
    policy: ActorCritic,
    optimizer: Adam,
    rollout: Rollout,
    advantage: Tensor,
    returns: Tensor,
    permutation: Tensor,
    config: PPOConfig,
) -> dict[str, Tensor]:
    """headrace.algorithms.ppo.learn, with the same results within rounding."""
    from headrace.kernels.compiled import entry
    from headrace.kernels.teamwork import state, together

    work = _workspace(policy, optimizer)
    kernel, number = work.kernel, count(permutation.shape[1], config.minibatch_size)
    sums = torch.zeros(len(permutation) * number, kernel.SUMS)
    job = kernel.Job(
        *(work.tables.network.layers, work.tables.head, work.tables.places, _loss(work, policy, config)),
        *(_columns(work, policy, rollout, advantage, returns, config), permutation.contiguous().numpy()),
        *(optimizer.flat.numpy(), work.scratch, work.gradient, work.sums, work.batch, work.weight),
    )
    adam = (optimizer.mean.numpy(), optimizer.square.numpy(), work.flat)
    at = (optimizer.steps.item(), optimizer.learning_rate.item())
    settings = (*at, optimizer.eps, config.max_grad_norm, config.target_kl)
    arguments = (job, adam, np.uint64(number), settings, sums.view(-1).numpy())
    learn_parts = entry("ppo_cpu", "learn", (True, state(), *arguments), ANNOUNCEMENT)
    parts = min(kernel.PARTS, -(-(permutation.shape[1] // number) // 64))
    steps, done = together(learn_parts, min(torch.get_num_threads(), parts), arguments)
    optimizer.steps.fill_(steps)
    return _metrics(sums[:done], number, config)


def _workspace(policy: ActorCritic, optimizer: Adam) -> _Workspace:
    """Tables and arrays; made anew where the parameters have moved."""
    from headrace.kernels.compiled import module
    from headrace.kernels.mlp_cpu import aligned, rounded
    from headrace.policies.compiled import compiled

    work, flat = _workspaces.get(policy), optimizer.flat
    if work is None or work.address != flat.data_ptr():
        kernel, tables = module("ppo_cpu"), compiled(policy, flat)
        scratch = aligned(kernel.PARTS, rounded(tables.scratch))
        gradient = aligned(kernel.PARTS, rounded(tables.gradient))
        sums, batch, weight = aligned(kernel.PARTS, kernel.SUMS), np.zeros(4, np.int64), aligned(1)
        arrays = (scratch, gradient, aligned(flat.numel()), sums, batch, weight)
        work = _Workspace(flat.data_ptr(), kernel, tables, *arrays)
        _workspaces[policy] = work
    return work


def _loss(work: _Workspace, policy: ActorCritic, config: PPOConfig) -> Any:
    normalizer = policy.return_normalizer
    units = (0.0, 1.0) if normalizer is None else (normalizer.center.item(), normalizer.scale.item())
    coefficients = (config.clip, config.value_clip, config.value_coef, config.entropy_coef)
    return work.kernel.Loss(*map(np.float32, (*coefficients, *units)))


def _columns(
    work: _Workspace, policy: ActorCritic, rollout: Rollout, advantage: Tensor, returns: Tensor, config: PPOConfig
) -> Any:
    """The rollout as the kernel reads it."""
    from headrace.policies.compiled import encoded

    steps = rollout.num_steps
    valid = rollout.valid[:steps].flatten()
    observation, stride = encoded(policy, flatten(rollout.observation[:steps]))
    action = flatten(rollout.action).view(len(valid), -1).t() - work.tables.start
    chosen = _normalized(advantage.flatten(), valid) if config.normalize_advantage else advantage.flatten()
    columns = (action, rollout.log_prob.flatten(), rollout.value[:steps].flatten(), chosen, returns.flatten(), valid)
    return work.kernel.Columns(
        observation, np.uint64(stride), *(x.to(torch.float32).contiguous().numpy() for x in columns)
    )


def _metrics(sums: Tensor, number: int, config: PPOConfig) -> dict[str, Tensor]:
    """As the plain function's, from sums over each minibatch."""
    policy_loss, value_loss, entropy, _, clip_fraction = sums.mean(0)[:5]
    loss = policy_loss + config.value_coef * value_loss - config.entropy_coef * entropy
    metrics = dict(zip(METRICS, (policy_loss, value_loss, -entropy, loss), strict=True))
    return metrics | {"clip_fraction": clip_fraction, "approx_kl": sums[-number:, 3].mean()}
