"""Rule for calls that the GPU's kernels serve: the same for all of them, asked at every call.

A kernel serves a policy of the classes that it was written for, as examine() finds them, whose parameters are views of
one float32 buffer. Where it does not, plain torch runs, and the reason is printed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from headrace.algorithms.adam import BETA1, BETA2, Adam
from headrace.core.fused import AsChosen
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import Policy, is_kind
from headrace.policies.convolutions import ImageEncoder
from headrace.policies.examination import examine
from headrace.policies.heads import (
    BernoulliHead,
    CategoricalHead,
    GaussianHead,
    HybridHead,
    MultiCategoricalHead,
    StateStdHead,
)
from headrace.policies.networks import ACTIVATIONS, MLP, Dense, Readout
from headrace.policies.recurrent import RecurrentActorCritic

# hidden layers up to which the kernels are faster than plain torch. A rule and no measurement, so that a run that is
# resumed has the same bits; benchmarks/speed/generality.py has layers of 300 to 512.
WIDEST = 1024
_HEADS = (CategoricalHead, MultiCategoricalHead, BernoulliHead, GaussianHead)
# the classes of a policy's parts
_ROLES = {"actor": (MLP,), "critic": (MLP,), "actor_out": (Readout,), "critic_out": (Readout,), "head": _HEADS}


class Verdict(NamedTuple):
    """Facts about a policy as it is now."""

    acting: str | None  # why kernels cannot compute its outputs; None where they can
    learning: str | None  # why kernels cannot compute its gradients
    flat: Tensor | None  # the one float32 buffer of which all parameters are views, as an optimizer makes it


def verdict(policy: Policy) -> Verdict:
    """Find what kernels can do for this policy, as it is now. Takes some microseconds."""
    found = examine(policy)
    if Verdict not in found.kept:
        reason = _why_not(policy) or found.altered
        found.kept[Verdict] = Verdict(reason, reason or found.own_gradients, flat_buffer(found.parameters))
    return found.kept[Verdict]  # type: ignore[no-any-return]


def why_not_learn(policy: Policy, optimizer: Adam) -> str | None:
    """Reason why kernels cannot compute this policy's gradients in the optimizer's buffer. None where they can."""
    _, learning, flat = verdict(policy)
    if learning is None and (flat is None or flat.data_ptr() != optimizer.flat.data_ptr()):
        return "parameters are not float32 views of the optimizer's buffer"
    return learning


def why_not_adam(
    optimizer: Any, any_beta1: bool = False, any_beta2: bool = False, any_decay: bool = False
) -> str | None:
    """Reason why kernels cannot take this optimizer's steps. None where they can."""
    if type(optimizer) is not Adam:
        return f"it is written for the Adam of this package, not for {type(optimizer).__name__}"
    if not ((any_beta1 or optimizer.beta1 == BETA1) and (any_beta2 or optimizer.beta2 == BETA2)):
        return f"it is written for Adam's betas {BETA1}, {BETA2}, not for {optimizer.beta1}, {optimizer.beta2}"
    if optimizer.weight_decay and not any_decay:
        return AsChosen("weight decay is part of the steps of programs that are made of a loss")
    return None


def _why_not(policy: Policy) -> str | None:
    if is_kind(policy, RecurrentActorCritic):
        return AsChosen("recurrent policies learn by autograd; the steps of their GRU or LSTM are compiled")
    if policy.use_sde:
        return AsChosen("state-dependent exploration acts in torch, and is learned by programs made of its loss")
    if isinstance(getattr(policy, "head", None), HybridHead):
        return AsChosen("actions of several kinds are chosen and learned by programs that are made of the policy")
    if isinstance(getattr(policy, "head", None), StateStdHead):
        return AsChosen("deviations that the network outputs are learned by programs that are made of their loss")
    if not is_kind(policy, ActorCritic):
        return f"it is written for the classes of Headrace, not for {type(policy).__name__}"
    parts = {name: getattr(policy, name) for name in _ROLES}
    for name, kinds in _ROLES.items():
        if type(parts[name]) not in kinds:
            return f"its {name} is of class {type(parts[name]).__name__}, for which there is no kernel"
    known = {parameter for part in parts.values() for parameter in part.parameters()}
    for path, parameter in policy.named_parameters():
        if parameter not in known:
            reason = f"it has no place for the parameter {path}, which is outside the networks that it is written for"
            images = (module for module in policy.modules() if type(module) is ImageEncoder)
            of_images = {own for encoder in images for own in encoder.parameters()}
            return AsChosen(reason) if parameter in of_images else reason
    odd = next(filter(None, (_odd(name, part, policy) for name, part in parts.items())), None)
    widest = max((*policy.hidden, *policy.critic_hidden), default=0)
    if widest > WIDEST:
        return odd or AsChosen(f"hidden layers of {widest} are faster in torch; it is for up to {WIDEST}")
    return odd


def _odd(name: str, part: nn.Module, policy: ActorCritic) -> str | None:
    """Describe how a part differs from what its constructor makes."""
    if not isinstance(part, MLP):
        return None
    if part.activation != policy.activation or part._activate is not ACTIVATIONS[part.activation]:
        return f"the activation of its {name} is not {policy.activation}"
    kinds = {type(layer) for layer in part.layers} - {Dense} | {type(one) for one in part.norms} - {nn.LayerNorm}
    if kinds:
        return f"its {name} has a layer of class {kinds.pop().__name__}, for which there is no kernel"
    if any(one.eps != 1e-5 or one.bias is None for one in part.norms):
        return f"its {name} has a LayerNorm of other settings"
    return None


def flat_buffer(parameters: list[nn.Parameter]) -> Tensor | None:
    """The one float32 buffer of which all these parameters are views; None where they are not."""
    storage = parameters[0].untyped_storage()
    for parameter in parameters:
        lies = parameter.untyped_storage().data_ptr() == storage.data_ptr() and parameter.is_contiguous()
        if not lies or parameter.dtype != torch.float32:
            return None
    return torch.empty(0, device=storage.device).set_(storage, 0, (storage.nbytes() // 4,), (1,))
