"""act() and value() of Headrace's own policies by machine code that is made of them.

One program serves all calls with arguments of one kind. Its rows do not depend on each other, so a row has the same
bits in a batch of any size, on any number of threads, and however a rollout is collected.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from headrace.bindings.compiled.compiled_acting import WORTH_HELP, CompiledOutputs, acting, evaluating, exploring
from headrace.bindings.compiled.row_functions import LastFound, ModuleProgram, is_current, looks, made, making
from headrace.core.fused import AsChosen, register
from headrace.core.packages import of_headrace
from headrace.kernels.rows.row_plan import block_for
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.actor_q import ActorQ
from headrace.policies.base import Policy, PolicyOutput, kind_of
from headrace.policies.discrete.discrete_actor_q import DiscreteActorQ
from headrace.policies.discrete.hybrid_actor_q import HybridActorQ
from headrace.policies.examination import examine
from headrace.policies.networks import VectorEncoder
from headrace.policies.numpy_io import batch_size
from headrace.policies.q_network import QNetwork
from headrace.policies.recurrent import RecurrentActorCritic
from headrace.policies.rnn import RecurrentEncoder

# what act() of each class returns, besides a recurrent state
OUTPUTS: dict[type, tuple[str, ...]] = {
    ActorCritic: ("action", "log_prob", "value"),
    RecurrentActorCritic: ("action", "log_prob", "value"),
    ActorQ: ("action",),
    DiscreteActorQ: ("action",),
    HybridActorQ: ("action",),
    QNetwork: ("action", "value"),
}

Called: TypeAlias = tuple[CompiledOutputs, tuple[Any, ...]]  # a function, and its arguments: a policy and columns


_last = LastFound()


def is_ours(policy: Policy) -> bool:
    """True for a policy of Headrace's classes throughout."""
    kept = examine(policy).kept
    if is_ours not in kept:
        kinds = (kind_of(policy), *map(type, [*policy.modules()][1:]))  # with the parts, which may be a user's
        kept[is_ours] = all(of_headrace(kind) or kind.__module__.startswith("torch.") for kind in kinds)
    return kept[is_ours]  # type: ignore[no-any-return]


def is_own(policy: Policy) -> bool:
    """True for a policy whose act() these programs serve."""
    return _is_own(policy, examine(policy).kept)


def _is_own(policy: Policy, kept: dict[Any, Any]) -> bool:
    if is_own not in kept:
        kept[is_own] = kind_of(policy) in OUTPUTS and is_ours(policy)
    return kept[is_own]  # type: ignore[no-any-return]


def sees_vectors(policy: Policy) -> bool:
    """True for a policy of observations that are vectors of float32."""
    encoder = policy.encoder
    return type(encoder.encoder if type(encoder) is RecurrentEncoder else encoder) is VectorEncoder


def explores_apart(policy: Policy) -> bool:
    """True for a policy with a probability of a random action for each environment."""
    return isinstance(policy, QNetwork) and len(policy.exploration) > 1


def act_of(policy: Policy, observation: Any, rnn_state: Any, random: Tensor | None) -> ModuleProgram | str | bool:
    """The program of act() for such arguments, else why there is none; False where that need not be said."""
    return program_for(called_to_act(policy, observation, rnn_state, random))


def value_of(policy: Policy, observation: Any, rnn_state: Any) -> ModuleProgram | str | bool:
    """The program of value() for such arguments; else as act_of()."""
    return program_for(_called_to_evaluate(policy, observation, rnn_state))


def called_to_act(
    policy: Policy,
    observation: Any,
    rnn_state: Any,
    random: Tensor | None,
    valid: Tensor | None = None,
    exploration: Tensor | None = None,
) -> Called | None:
    """Find the program of act() for such arguments, and its own arguments. None where plain PyTorch computes it.

    valid: see acting(); None for all rows. exploration: of each row, where explores_apart(); None for the policy's.
    """
    if random is not None and (random.dtype != torch.float32 or random.shape[1:] != (policy.num_draws,)):
        return None
    rnn_state = _state(policy, observation, rnn_state)
    if rnn_state is None:
        valid = None
    elif not _fits(policy, rnn_state) or (policy.use_sde and random is not None):
        return None  # noise matrices are drawn by whole numbers of 64 bits
    elif valid is None:
        valid = torch.ones(len(rnn_state), dtype=torch.bool)
    if random is None or not explores_apart(policy):
        return acting(OUTPUTS[kind_of(policy)]), (policy, observation, rnn_state, random, valid)
    apart: Any = policy.exploration
    if exploration is None:
        exploration = apart if len(apart) == len(random) else apart.mean().expand(len(random))
    return exploring(), (policy, observation, rnn_state, random, exploration, valid)


def _called_to_evaluate(policy: Policy, observation: Any, rnn_state: Any) -> Called | None:
    rnn_state = None if policy.recurrent == "none" else _state(policy, observation, rnn_state)
    fits = rnn_state is None or _fits(policy, rnn_state)
    return (evaluating(), (policy, observation, rnn_state)) if fits else None


def _state(policy: Policy, observation: Any, rnn_state: Any) -> Any:
    """The recurrent state that act() begins with."""
    begins = rnn_state is None and policy.recurrent != "none"
    return policy.initial_state(batch_size(observation)) if begins else rnn_state


def _fits(policy: Policy, rnn_state: Any) -> bool:
    if not isinstance(rnn_state, Tensor) or rnn_state.dtype is not torch.float32 or not rnn_state.is_cpu:
        return False
    return policy.state_width > 0 and rnn_state.shape[1:] == (policy.state_width,)


def program_for(called: Called | None) -> ModuleProgram | str | bool:
    """The program of a function of a policy and arguments with a row for each row; else as act_of()."""
    if called is None:
        return False
    compiled, given = called
    policy, *columns = given
    seen = examine(policy)
    if seen.altered:
        return seen.altered
    sizes: set[int] = set()
    look = looks(columns, sizes)
    if look is None or len(sizes) != 1 or 0 in sizes or not _is_own(policy, seen.kept):
        return False
    if getattr(columns[0], "dtype", None) is not torch.float32 and sees_vectors(policy):
        return False  # plain PyTorch says what is wrong
    rows = sizes.pop()
    key = compiled, look, block_for(rows)
    found = seen.kept.get(key)
    if found is None or not is_current(found.reach):
        with making:
            found = seen.kept[key] = made(compiled, given, rows, WORTH_HELP)
    return found if isinstance(found, ModuleProgram) else AsChosen(found.reason)


def _serves(policy: Policy, observation: Any, rnn_state: Any = None, random: Tensor | None = None) -> bool | str:
    if torch.is_grad_enabled() or kind_of(policy) not in OUTPUTS:
        return False
    called = called_to_act(policy, observation, rnn_state, random)
    return _last.answer(_with_columns(called), policy, observation, rnn_state, random)


def _serves_value(policy: Policy, observation: Any, rnn_state: Any = None) -> bool | str:
    if torch.is_grad_enabled() or kind_of(policy) not in OUTPUTS:
        return False
    return _last.answer(
        _with_columns(_called_to_evaluate(policy, observation, rnn_state)), policy, observation, rnn_state
    )


def _with_columns(called: Called | None) -> Any:
    """program_for() a call, with the call's columns if there is one. The policy is not kept."""
    found = program_for(called)
    return (found, called[1][1:]) if called is not None and isinstance(found, ModuleProgram) else found


@register("q_network.act", _serves)
@register("recurrent_actor_critic.act", _serves)
@register("discrete_actor_q.act", _serves)
@register("hybrid_actor_q.act", _serves)
@register("actor_q.act", _serves)
@register("actor_critic.act", _serves)
def act(policy: Policy, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
    """Policy.act(), within rounding."""
    found = _last.take(policy, observation, rnn_state, random)
    acts, columns = found or _with_columns(called_to_act(policy, observation, rnn_state, random))
    names, outputs = OUTPUTS[kind_of(policy)], acts.run((policy, *columns))
    named = dict(zip(names, outputs, strict=False))
    after = outputs[len(names)] if len(outputs) > len(names) else None
    return PolicyOutput(named["action"], named.get("log_prob"), named.get("value"), after)


@register("recurrent_actor_critic.value", _serves_value)
@register("actor_critic.value", _serves_value)
def value(policy: Policy, observation: Any, rnn_state: Any = None) -> Tensor:
    """value() of an ActorCritic or a RecurrentActorCritic, with the bits of act()."""
    found = _last.take(policy, observation, rnn_state)
    acts, columns = found or _with_columns(_called_to_evaluate(policy, observation, rnn_state))
    return acts.run((policy, *columns))[0]  # type: ignore[no-any-return]
