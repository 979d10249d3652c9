"""ActorCritic.decide by the CPU's kernel: network, sampling and log-likelihood of all observations in one call."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from headrace.fused import register
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import Decision
from headrace.policies.distributions import Categorical, Gaussian, box_muller
from headrace.policies.heads import CategoricalHead, GaussianHead
from headrace.policies.numpy_shell import batch_size
from headrace.policies.served import flat_parameters, why_not

ANNOUNCEMENT = "compiling the policy (once, about 4 s) ..."
# Of the plain source that the kernel was written after, and what else that calls: see headrace.algorithms.ppo_cpu.
DIGEST = "6904b5e35537ed0d"
SOURCES = (
    *(ActorCritic.forward, Categorical.log_prob, Categorical._choose, Categorical.mode, Gaussian.log_prob),
    *(Gaussian.sample, Gaussian.mode, box_muller, CategoricalHead.forward, GaussianHead.forward),
)
WORTH_A_THREAD = 4096  # observations below which waking another thread costs more than it saves


class _Workspace(NamedTuple):
    """A policy's tables and arrays, for parameters at one address."""

    address: int
    tables: Any  # headrace.policies.compiled.Compiled
    parameters: Any
    scratch: Any
    start: Any


_workspaces: WeakKeyDictionary[ActorCritic, _Workspace] = WeakKeyDictionary()


def _serves(policy: ActorCritic, observation: Any, memory: Any, noise: Tensor | None) -> bool | str:
    weight = policy.critic_out.weight
    if weight.device.type != "cpu" or torch.is_grad_enabled():
        return False
    known = _workspaces.get(policy)
    if known is not None and known.address == weight.data_ptr():
        return True
    return why_not(policy) or flat_parameters(policy) is not None


@register("actor_critic.decide", _serves, DIGEST, SOURCES)
def decide(policy: ActorCritic, observation: Any, memory: Any, noise: Tensor | None) -> Decision:
    """headrace.policies.actor_critic.ActorCritic.decide, with the same actions but where rounding decides."""
    from headrace.kernels.compiled import entry
    from headrace.kernels.teamwork import state, together
    from headrace.policies.compiled import encoded

    work, rows = _workspace(policy), batch_size(observation)
    column, stride = encoded(policy, observation)
    head = work.tables.head
    gaussian = isinstance(policy.head, GaussianHead)
    shape = (len(head.sizes), rows)
    choice = torch.empty((0, 0) if gaussian else shape, dtype=torch.int32)
    action = torch.empty(shape if gaussian else (0, 0))
    log_prob, value = torch.empty(rows), torch.empty(rows)
    draws = np.empty((0, rows), np.float32) if noise is None else noise.t().contiguous().numpy()
    tables = (work.tables.network.layers, head, work.tables.places, work.parameters, _units(policy))
    decided = tuple(x.numpy() for x in (choice, action, log_prob, value))
    arguments = (tables, (column, np.uint64(stride)), draws, work.start, decided, work.scratch)
    act = entry("act_cpu", "act", (True, state(), *arguments), ANNOUNCEMENT)
    together(act, torch.get_num_threads() if rows >= WORTH_A_THREAD else 1, arguments)
    columns = (action if gaussian else choice).t()
    return Decision(columns if policy.action_space.shape else columns[:, 0], log_prob, value, memory)


def _units(policy: ActorCritic) -> np.ndarray:
    """Center and scale of values."""
    normalizer = policy.return_normalizer
    return np.array((0, 1) if normalizer is None else (normalizer.center, normalizer.scale), np.float32)


def _workspace(policy: ActorCritic) -> _Workspace:
    from headrace.kernels.act_cpu import PARTS
    from headrace.kernels.mlp_cpu import aligned, rounded
    from headrace.policies.compiled import compiled

    work, address = _workspaces.get(policy), policy.critic_out.weight.data_ptr()
    if work is None or work.address != address:
        flat = flat_parameters(policy)
        assert flat is not None  # else _serves() had said so
        tables = compiled(policy, flat)
        start = tables.start[:, 0].to(torch.int32).numpy()
        work = _Workspace(address, tables, flat.numpy(), aligned(PARTS, rounded(tables.scratch)), start)
        _workspaces[policy] = work
    return work
