"""Names of types that many modules share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field
from typing import Any, ClassVar, Protocol, TypeAlias

StateDict: TypeAlias = Mapping[str, Any]  # nested mappings and lists of tensors, numbers, strings and None
Settings: TypeAlias = Mapping[str, Any]  # names and values of settings, as a TOML file or keywords give them
Json: TypeAlias = dict[str, Any]  # what json.loads() gives of an object
EnvArgument: TypeAlias = Any  # an environment as users give it: see headrace.make, and Trainer for ready-made ones


# attributes that several others hold: what to do instead of replacing them
_STAYS = {
    "policy": "collectors, optimizers, target networks and checkpoints hold it. Change it in place (its modules may be "
    "replaced, load_state_dict() loads other weights), or make a new algorithm and Trainer for another policy",
    "networks": "optimizers and checkpoints hold their parts. Change their modules in place",
    "optimizer": "learning and checkpoints hold it. Write into its learning_rate, eps and betas, or load_state_dict()",
    "tensors": "learning and checkpoints hold them. Write into them",
    "num_steps": "rollouts have so many. Make a new Trainer with num_steps",
    "rollout": "environments write into it. Write into its columns",
    "parts": "logs, checkpoints and collectors hold it. Make a new Trainer",
}
_ALIKE = {
    **dict.fromkeys(("optimizers", "temperature"), "optimizer"),
    **dict.fromkeys(("buffers", "log_temperature"), "tensors"),
    **dict.fromkeys(("algorithm", "algorithms", "collector", "plan"), "parts"),
}
_OF_DATA = ("num_steps", "train_freq", "buffer_size", "n_steps", "burn_in", "priority_alpha")
_OF_STEPS = ("adam_eps", "adam_beta2", "weight_decay", "exploration_max", "exploration_spread")
_OF_INPUTS = ("images", "normalize_observation", "normalize_return", "recurrent", "rnn_size", "sequence_length")
_OF_NETWORKS = ("hidden", "critic_hidden", "activation", "shared", "layer_norm", "norm", "dueling", "ortho_init")
_OF_CRITICS = ("critic_init_scale", "quantiles", "num_atoms", "v_min", "v_max")
_OF_ACTIONS = ("distribution", "temperature", "initial_std", "state_std", "use_sde", "sde_sample_freq", "use_expln")
_OF_CURIOSITY = ("noisy", "noise_autocorrelation", "intrinsic", "intrinsic_hidden", "intrinsic_features", "skills")
# settings that an algorithm is made with, and does not read again: first those that take effect after resuming, since
# checkpoints do not have what is made by them
TAKE_EFFECT = (*_OF_DATA, *_OF_STEPS, "hindsight", "hindsight_goals")
MADE_WITH = (*TAKE_EFFECT, *_OF_INPUTS, *_OF_NETWORKS, *_OF_CRITICS, *_OF_ACTIONS, *_OF_CURIOSITY, "prioritized")


def staying(*names: str) -> Callable[[Any, str, Any], None]:
    """The __setattr__() of a class whose objects keep these attributes once they have them: what replaces one would be
    known to the object alone. object.__setattr__() replaces one nevertheless."""

    def __setattr__(self: Any, name: str, value: Any) -> None:
        now = vars(self).get(name)
        if name == "config" and name in names and now is not None:
            _refuse_settings(type(self).__name__, now, value)
        elif name in names:
            kept = now is not None and now is not value and now != {}
            if kept or isinstance(getattr(type(self), name, None), property):
                reason = _STAYS[_ALIKE.get(name, name)]
                raise AttributeError(f"{name} of this {type(self).__name__} cannot be replaced: {reason}")
        object.__setattr__(self, name, value)

    return __setattr__


def _refuse_settings(kind: str, now: Any, new: Any) -> None:
    """Raise AttributeError for a config that differs from the one before in a setting that is not read again."""
    constant = getattr(new, "schedule", "") in ("constant", "adaptive")
    for name in (*MADE_WITH, *(["learning_rate"] * constant)):
        before, after = getattr(now, name, None), getattr(new, name, None)
        if before != after:
            instead = "fill_() the optimizers' learning_rate" if name == "learning_rate" else "make a new Trainer"
            raise AttributeError(f"this {kind} was made with {name}={before!r}, {after!r} is too late: {instead}")


class DataclassInstance(Protocol):
    """An instance of any dataclass, such as an algorithm's config."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
