"""Handle attributes of a model that a user sets: arguments take effect from the next rollout on, others are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from headrace.core.packages import of_headrace
from headrace.core.text import shown
from headrace.policies.base import Policy
from headrace.policies.other_libraries import INSTEAD as OF_POLICIES
from headrace.sb3.members import INSTEAD

OWN = {"verbose", "tensorboard_log", "seed", "device"}  # arguments that are also attributes of a model
ONCE = {"policy_kwargs", "stats_window_size"}  # a model reads these only once
METHODS = {
    "env": "set_env(env)",
    "logger": "set_logger(logger)",
    "replay_buffer": "save_replay_buffer(path) of the other model, and load_replay_buffer(path)",
}
ALIASES = {"lr_schedule": "learning_rate"}
PARTS = (  # parts that only policies, actors and critics of Stable-Baselines3 have
    {"optimizer", "mlp_extractor", "action_net", "value_net", "log_std", "q_net", "q_net_target", "critic_target"}
    | {"actor_target", "features_extractor", "pi_features_extractor", "vf_features_extractor"}
    | {"mu", "latent_pi", "q_networks", "qf0", "qf1", "action_dist", "policy_net"}
)


def assign(model: Any, name: str, value: Any) -> bool:
    """Set an argument of a model. Returns False for other attributes, which the caller sets on the object. model: a
    model.Model.

    Raises AttributeError for attributes that cannot be set, and what translate() raises for an argument.
    """
    kind, arguments = type(model).__name__, vars(model).get("arguments", {})
    name = ALIASES.get(name, name)
    if name in METHODS:
        raise AttributeError(f"{name} of {kind} cannot be set: call model.{METHODS[name]}")
    if name in INSTEAD:
        raise AttributeError(f"{name} of {kind} cannot be set: {INSTEAD[name]}")
    if name == "policy" and getattr(value, "_orig_mod", value) is not model.algorithm.policy:
        raise AttributeError(
            f"policy of {kind} cannot be replaced: its training learns another. model.policy.load_state_dict() or "
            f"model.set_parameters() change it in place; {kind}(policy, env) makes a new model"
        )
    if name in OWN or name not in arguments:
        return False
    if "algorithm" in vars(model):
        _change(model, name, value)
    else:
        arguments[name] = value
    return True


def _change(model: Any, name: str, value: Any) -> None:
    """Change the value of an argument of a model that is set up."""
    before, was = model.translation, model.arguments
    object.__setattr__(model, "arguments", was | {name: value})
    try:
        now = model._translate((model.observation_space, model.policy.action_space), model.n_envs if model.env else 1)
        found = {field.name: getattr(now.config, field.name) for field in fields(now.config)}
        changes = {key: x for key, x in found.items() if x != getattr(before.config, key)}
        changes.pop("learning_rate", None)
        if name == "clip_range":  # a schedule may have changed it
            changes["clip"] = now.config.clip
        if name in ONCE:
            raise AttributeError(name)
        model.algorithm.config = replace(model.algorithm.config, **changes)
    except AttributeError as error:
        object.__setattr__(model, "arguments", was)
        kind = type(model).__name__
        instead = f"{kind}(policy, env, {name}=...)"
        if name not in ONCE:
            instead = f"model.save(path), then {kind}.load(path, env=env, {name}=...)"
        was_now = f"this {kind} was made with {name}={shown(was[name], 60)}, and {shown(value, 60)} is too late"
        raise AttributeError(f"{was_now}: {instead} makes another") from error
    except Exception:
        object.__setattr__(model, "arguments", was)
        raise
    if now.learning_rate is None:  # the optimizers may have another rate
        constant = (lambda _: now.config.learning_rate) if name == "learning_rate" else before.learning_rate
        now = now._replace(learning_rate=constant)
    model.translation = now


def check_unread(policy: Policy) -> None:
    """Raise ValueError if a user has set a part of a policy that Stable-Baselines3 has, but that nothing reads here."""
    for path, part in policy.named_modules():
        if not of_headrace(type(part)):
            continue  # layers of the user's own have members of any name
        own: Mapping[str, Any] = {**vars(part), **part._modules, **part._parameters}
        for name in PARTS & own.keys():
            if name != "log_std" or not path.endswith(("head", "noise_matrix")):
                full = ".".join(filter(None, ("policy", path, name)))
                raise ValueError(f"{full} was set, and nothing reads it: {OF_POLICIES[name]}")
