"""Which policies the CPU's kernels know; asked before anything is compiled or imported for them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from headrace.bindings.bound import Bound
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import Policy
from headrace.policies.heads import CategoricalHead, GaussianHead, MultiCategoricalHead
from headrace.policies.networks import MLP, Readout

WIDEST = 256  # hidden layers wider than this are faster in plain torch
_HEADS = (CategoricalHead, MultiCategoricalHead, GaussianHead)


_Parts = list[tuple[type, int, int, int, bool]]


class _Examination(NamedTuple):
    reason: str | None  # why_not()
    flat: Tensor | None  # flat_parameters()


_examinations: Bound[_Examination] = Bound()


def why_not(policy: Policy) -> str | None:
    """The reason why kernels cannot serve this policy on the CPU; None where they can."""
    return _examined(policy).reason


def flat_parameters(policy: Policy) -> Tensor | None:
    """The one float32 buffer of which all parameters are views, as an optimizer makes it; None where there is none."""
    return _examined(policy).flat


def _examined(policy: Policy) -> _Examination:
    """Examined again once a module or parameter was replaced, moved or frozen."""
    parts: _Parts = []
    _take_apart(policy, parts)
    return _examinations.get(lambda: _Examination(_why_not(policy), _flat_parameters(policy)), policy, parts)


def _take_apart(module: nn.Module, parts: _Parts) -> None:
    """All modules, parameters, where these lie, and whether they learn; quicker than torch's own generators."""
    kind, number = type(module), id(module)
    parts.append((kind, number, 0, 0, False))
    for parameter in module._parameters.values():
        if parameter is not None:
            parts.append((kind, number, id(parameter), parameter.data_ptr(), parameter.requires_grad))
    for child in module._modules.values():
        if child is not None:
            _take_apart(child, parts)


def _why_not(policy: Policy) -> str | None:
    if type(policy) is not ActorCritic:
        return f"{type(policy).__name__} is not the ActorCritic it was written for"
    if type(policy.head) not in _HEADS:
        return f"it has no {policy.distribution_name} distribution"
    parts = (policy.actor, policy.critic, policy.actor_out, policy.critic_out)
    if tuple(map(type, parts)) != (MLP, MLP, Readout, Readout):
        return f"its networks are {', '.join(type(part).__name__ for part in parts)}"
    known = {parameter for part in (*parts, policy.head) for parameter in part.parameters()}
    if any(parameter not in known for parameter in policy.parameters()):
        return "it learns more than an actor, a critic and a head"
    if max(policy.hidden, default=0) > WIDEST:
        return f"hidden layers of {max(policy.hidden)} are faster in torch; it is for up to {WIDEST}"
    if not all(parameter.requires_grad for parameter in policy.parameters()):
        return "some parameters are frozen"
    return None


def _flat_parameters(policy: Policy) -> Tensor | None:
    parameters = list(policy.parameters())
    storage = parameters[0].untyped_storage()
    for parameter in parameters:
        lies = parameter.untyped_storage().data_ptr() == storage.data_ptr() and parameter.is_contiguous()
        if not lies or parameter.dtype != torch.float32:
            return None
    return torch.empty(0).set_(storage, 0, (storage.nbytes() // 4,), (1,))
