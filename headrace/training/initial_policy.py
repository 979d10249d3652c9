"""Make the policy that a training begins with: the algorithm's usual policy or the user's, and its first weights."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch

from headrace.algorithms.base import Algorithm
from headrace.core.packages import of_headrace
from headrace.core.terminal import tell
from headrace.core.types import Json
from headrace.core.user_names import is_from_file, member, module_of
from headrace.data.spaces import Space
from headrace.policies.base import Policy
from headrace.runs import checkpoint

NETWORK = {  # settings of the algorithms that only their usual networks read
    "hidden",
    "critic_hidden",
    "activation",
    "shared",
    "distribution",
    "layer_norm",
    "dueling",
    "images",
    "normalize_observation",
    "normalize_return",
    "recurrent",
    "rnn_size",
    "initial_std",
    "noise_autocorrelation",
    "critic_init_scale",
    "norm",
    "ortho_init",
    "state_std",
    "use_sde",
    "sde_sample_freq",
    "use_expln",
}


def own_policy(policy: str | type) -> type[Policy]:
    """The class of a user's policy, given by file.py:Class or itself. Raises TypeError for another kind of class."""
    kind = member(policy, "policy") if isinstance(policy, str) else policy
    if not (isinstance(kind, type) and issubclass(kind, Policy)):
        raise TypeError(f"policy is {policy!r}, which is no class derived from headrace.Policy")
    module = module_of(kind)
    if is_from_file(module):  # other processes cannot import it by its name
        import cloudpickle

        cloudpickle.register_pickle_by_value(module)
    return kind


def made(kind: type[Policy], algorithm: type[Algorithm], config: Any, spaces: tuple[Space, Space], seed: int) -> Policy:
    """Make a policy of the user's class. Its constructor takes (observation_space, action_space). By name it also takes
    the seed, settings of the algorithm's config and entries of its policy_arguments, as far as it has such arguments.

    Raises TypeError if the constructor has other arguments without a default.
    """
    taken = signature(kind).parameters
    known: Json = {name: getattr(config, name) for name in getattr(config, "__dataclass_fields__", ())}
    known |= getattr(algorithm, "policy_arguments", {})
    given = {name: value for name, value in {**known, "seed": seed}.items() if name in taken}
    missing = [
        name
        for name, argument in list(taken.items())[2:]
        if name not in given
        and argument.default is Parameter.empty
        and argument.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    ]
    if missing:
        raise TypeError(
            f"{kind.__name__}({', '.join(taken)}) needs {', '.join(missing)}, which is no setting of the algorithm: "
            "give it a default"
        )
    policy = kind(*spaces, **given)
    policy._arguments = {"observation_space": spaces[0], "action_space": spaces[1], **given}
    policy._arguments.pop("seed", None)
    return policy


def check_own(policy: type[Policy], algorithm: type[Algorithm], given: Mapping[str, Any]) -> None:
    """Raise TypeError if the policy is not derived from the class that the algorithm's make_policy() returns. Raise
    ValueError for given settings that nothing would read."""
    needed = typing.get_type_hints(getattr(algorithm, "make_policy", check_own)).get("return")
    if isinstance(needed, type) and not issubclass(policy, needed) and issubclass(needed, Policy):
        raise TypeError(
            f"{algorithm.name} calls what {needed.__name__} has: derive {policy.__name__} from "
            f"{needed.__module__}.{needed.__name__}"
        )
    for name in unread(policy, algorithm, given):
        arguments = ", ".join(signature(policy).parameters)
        raise ValueError(
            f"{name}={given[name]!r} is for the usual network, and {policy.__name__}({arguments}) has no argument "
            f"{name!r}: add it to the constructor, or leave the setting out"
        )


def unread(policy: type[Policy], algorithm: Any, names: Iterable[str]) -> list[str]:
    """Names of settings that only the algorithm's usual network reads, and that this policy's constructor does not
    take. Empty for a user's algorithm, which may read any."""
    if not of_headrace(algorithm):
        return []
    return sorted((NETWORK & {*names}) - signature(policy).parameters.keys())


def take_weights(policy: Policy, run: str, names: tuple[str, ...] = (checkpoint.BEST, checkpoint.LAST)) -> None:
    """Begin with the weights and statistics of a run's policy, best/ or else last/, as far as names and shapes agree;
    report those that do not. Raises ValueError if none does, FileNotFoundError if there is no such run."""
    weights = checkpoint.read(Path(run), *names, state="policy")[2]
    own = policy.state_dict()
    fit = {name: x for name, x in weights.items() if name in own and x.shape == own[name].shape}
    others = [name for name in {**own, **weights} if name not in fit]
    different = [f"{name} {_shape(weights.get(name))} -> {_shape(own.get(name))}" for name in others]
    if not any(x.dim() > 1 for name, x in policy.named_parameters() if name in fit):
        raise ValueError(f"init_from={run}: no weight of its policy fits this one ({'; '.join(different[:4])} ...)")
    policy.load_state_dict({**own, **fit})
    if different:
        taken = f"init_from: {len(fit)} of {len(own)} tensors are those of {run}"
        tell(f"{taken}; others have first values: {'; '.join(different)}")


def _shape(tensor: torch.Tensor | None) -> str:
    return "none" if tensor is None else "x".join(map(str, tensor.shape)) or "number"
