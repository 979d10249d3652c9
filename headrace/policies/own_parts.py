"""Check before a training that a policy's parts, which users may replace by their own modules, suit the algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from headrace.core.packages import of_headrace
from headrace.data.rollout import Column
from headrace.policies.base import Policy, check_policy
from headrace.policies.networks import MLP, QuantileReadout, Readout
from headrace.policies.normalization import statistics_of
from headrace.policies.rnn import RecurrentEncoder, RNNCell


class Need(NamedTuple):
    """A requirement: the kind of module that some parts must be for a setting of the policy.

    classes: names of policy classes, so that none has to be imported. method: their method that uses the parts; a
    policy that overrides it may have other parts. setting: for messages; empty if the policy does not have it. instead:
    the remedy.
    """

    classes: tuple[str, ...]
    method: str
    parts: tuple[str, ...]
    kinds: tuple[type, ...]
    setting: Callable[[Any], str]
    instead: str


def _recurrent(policy: Any) -> str:
    return "" if policy.recurrent == "none" else f"recurrent={policy.recurrent!r}"


def _noisy(policy: Any) -> str:
    return "" if getattr(policy, "noise", None) is None else "noisy"


OTHERWISE = "leave noisy out, or write the policy's outputs()"
WITH_ENCODER = ("QNetwork", "ActorQ", "DiscreteActorQ", "HybridActorQ")
WITHIN = "replace the encoder within it, encoder.encoder"
NEEDS = (
    Need(WITH_ENCODER, "act", ("encoder",), (RecurrentEncoder,), _recurrent, WITHIN),
    Need(("RecurrentActorCritic",), "act", ("rnn",), (RNNCell,), _recurrent, "derive the policy from headrace.Policy"),
    Need(("QNetwork",), "outputs", ("trunk", "branch", "value_branch"), (MLP,), _noisy, OTHERWISE),
    Need(("QNetwork",), "outputs", ("out", "value_out"), (Readout, QuantileReadout), _noisy, OTHERWISE),
)


def check_learnable(policy: Any, function: str, config: Any) -> None:
    """Raise TypeError or ValueError, with the remedy, if an algorithm cannot learn a policy: it is not a policy, or a
    part or its recurrent state does not have what the policy's methods use. function: the algorithm's name."""
    check_policy(policy, function)
    if not isinstance(policy, Policy):
        return
    _check_state(policy)
    if policy.recurrent != "none":
        _check_sequences(policy, config)
    for need in NEEDS:
        _check_kind(policy, need)
    if of_headrace(type(policy).update_statistics):
        _check_statistics(policy)


def _check_statistics(policy: Policy) -> None:
    """Raise TypeError for parts whose statistics cannot be updated."""
    for name in ("encoder", "critic_encoder"):
        if isinstance(encoder := getattr(policy, name, None), nn.Module):
            statistics_of(encoder)
    normalizer, last = (getattr(policy, name, None) for name in ("return_normalizer", "critic_out"))
    if normalizer is not None and (lacks := [x for x in ("weight", "bias") if not hasattr(last, x)]):
        raise TypeError(
            f"{_named(policy, 'critic_out')}, which has no {lacks[0]}: normalize_return rescales the last linear layer "
            "by its weight [1, F] and bias [1]; give it these, or leave normalize_return out"
        )


def features_of(policy: Any, function: str) -> int:
    """The number of features that a policy's encoder returns. Raises TypeError for an encoder that does not say it."""
    size = getattr(policy.encoder, "size", None)
    if not isinstance(size, int):
        raise TypeError(
            f"{_named(policy, 'encoder')}, which has no size, and {function} makes networks on its features: set "
            "encoder.size to the number of features that it returns for an observation"
        )
    return size


def _check_kind(policy: Policy, need: Need) -> None:
    kinds = [x for x in type(policy).__mro__ if of_headrace(x) and x.__name__ in need.classes]
    if not kinds or getattr(type(policy), need.method) is not getattr(kinds[0], need.method):
        return
    setting = need.setting(policy)
    for name in need.parts if setting else ():
        part = getattr(policy, name, None)
        if part is not None and not isinstance(part, need.kinds):
            wanted = " or ".join(kind.__name__ for kind in need.kinds)
            raise TypeError(f"{_named(policy, name)}, and {setting} needs a {wanted} there: {need.instead}")


def _check_state(policy: Policy) -> None:
    """Raise ValueError if the recurrent state does not have the policy's state_width."""
    column, width, name = policy.columns().get("rnn_state"), policy.state_width, type(policy).__name__
    if isinstance(column, Column) and column.shape != (width,):
        raise ValueError(
            f"columns() of {name} has an rnn_state of shape {column.shape} for each environment, and its state_width "
            f"is {width}: set self.state_width to the numbers in the recurrent state of an environment"
        )
    if isinstance(column, Column) and not width:
        raise ValueError(
            f"{name} has recurrent={policy.recurrent!r} and a state_width of 0: set self.state_width to the numbers in "
            "the recurrent state of an environment"
        )


def _check_sequences(policy: Policy, config: Any) -> None:
    """Raise ValueError for settings of a replay buffer that cannot draw a recurrent policy's sequences."""
    name = f"{type(policy).__name__}, with recurrent={policy.recurrent!r},"
    if alone := [x for x in ("prioritized", "hindsight") if getattr(config, x, False)]:
        raise ValueError(
            f"{name} learns from sequences, and {alone[0]} draws single rows: set {alone[0]} off (the settings "
            "registered for an environment may have it on)"
        )
    if hasattr(config, "burn_in") and policy.sequence_length != config.sequence_length:
        raise ValueError(
            f"{name} has a sequence_length of {policy.sequence_length}, and the algorithm's is "
            f"{config.sequence_length}: give both the same"
        )


def _named(policy: Policy, part: str) -> str:
    return f"{part} of {type(policy).__name__} is a {type(getattr(policy, part)).__name__}"
