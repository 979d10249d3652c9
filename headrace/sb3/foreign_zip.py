"""Read a file of Stable-Baselines3's save(), the plain JSON of its data and the tensors of its policy; and write one.

Values that JSON does not have are stored there as pickled bytes, next to a text for each attribute. The bytes are never
read, since unpickling runs whatever code they name. The texts are used as far as possible, and a line names what is
left out. Files written for Stable-Baselines3 have spaces, policy_kwargs and the name of the policy's class as pickles,
which it requires.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import re
import sys
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from torch import nn

from headrace.core.types import Json
from headrace.data.flat_action import flat_action
from headrace.data.spaces import is_image
from headrace.sb3 import schedules
from headrace.sb3.foreign_weights import Weights, exported, kind_of, net_arch, quantiles_of
from headrace.sb3.parameters import optimizers, without_replay

MEMBERS = ("data", "policy.pth")
VERSION = "2.9.2"  # of Stable-Baselines3 whose format is written
CLASSES = {  # of policies, by algorithm: the module and the name
    **dict.fromkeys(("ppo", "a2c", "trpo"), ("stable_baselines3.common.policies", "ActorCriticPolicy")),
    **dict.fromkeys(("td3", "ddpg"), ("stable_baselines3.td3.policies", "TD3Policy")),
    "sac": ("stable_baselines3.sac.policies", "SACPolicy"),
    "dqn": ("stable_baselines3.dqn.policies", "DQNPolicy"),
    "tqc": ("sb3_contrib.tqc.policies", "TQCPolicy"),
    "crossq": ("sb3_contrib.crossq.policies", "CrossQPolicy"),
    "qrdqn": ("sb3_contrib.qrdqn.policies", "QRDQNPolicy"),
    "recurrent_ppo": ("sb3_contrib.common.recurrent.policies", "RecurrentActorCriticPolicy"),
}
UNKNOWN_THERE = {"policy_kwargs", "device", "env", "policy", "_init_setup_model", "use_rms_prop", "rms_prop_eps"}
UNKNOWN_THERE |= {
    "tensorboard_log",
    "rollout_buffer_class",
    "rollout_buffer_kwargs",
    "replay_buffer_class",
    "replay_buffer_kwargs",
    "action_noise",
}
KINDS = {"Box": Box, "Discrete": Discrete, "MultiDiscrete": MultiDiscrete, "MultiBinary": MultiBinary}
SERIALIZED = ":serialized:"
SAID = (
    'format="sb3": spaces, policy_kwargs and the class of the policy are pickled, as Stable-Baselines3 requires; '
    "Adam's moments and the replay buffer are not in the file"
)
RENAMED = {"_stats_window_size": "stats_window_size"}
# state of the training loop, or in the file in another form
NOT_ARGUMENTS = {"policy_class", "policy_kwargs", "observation_space", "action_space", "replay_buffer_class"}
NOT_ARGUMENTS |= {"rollout_buffer_class", "lr_schedule", "exploration_schedule", "ep_info_buffer", "ep_success_buffer"}


def parse(members: dict[str, bytes]) -> tuple[Any, ...]:
    """Read the fields of zip_files.Saved. Raises ValueError for weights without counterpart."""
    data = json.loads(members["data"])
    weights = torch.load(io.BytesIO(members["policy.pth"]), map_location="cpu", weights_only=True)
    algorithm = kind_of(weights, data)
    arguments = _arguments(data)
    arguments["policy_kwargs"] = {"net_arch": net_arch(algorithm, weights), **_policy_kwargs(data)}
    arguments["policy_kwargs"] |= quantiles_of(algorithm, weights, data)
    seen, acts = (_space(data.get(name)) for name in ("observation_space", "action_space"))
    pair = None if seen is None or acts is None else (seen, flat_action(acts))
    steps, num_envs = int(data.get("num_timesteps", 0)), int(data.get("n_envs", 1))
    rate = data.get("exploration_rate")
    return algorithm, "MlpPolicy", arguments, num_envs, steps, pair, None, weights, rate


def _arguments(data: Json) -> Json:
    """Arguments of the constructor that are plain JSON, and constant and linear schedules, read from their texts."""
    found, left_out = {}, []
    for key, value in data.items():
        name = RENAMED.get(key, key)
        if not isinstance(value, dict) or SERIALIZED not in value:
            found[name] = value
        elif (schedule := schedules.of_text(_schedule_text(key, data))) is not None:
            found[name] = schedule
        elif not key.startswith("_") and key not in NOT_ARGUMENTS:
            left_out.append(name)
    if left_out:
        names = ", ".join(left_out)
        print(f"{names}: pickled in the file, which is not read; give what differs from the default", file=sys.stderr)
    return {name: value for name, value in found.items() if name != "policy_kwargs"}


def _schedule_text(key: str, data: Json) -> str:
    """The text of the schedule of an argument."""
    about = data.get("lr_schedule" if key == "learning_rate" else key)
    return str(about.get("value_schedule", "")) if isinstance(about, dict) else ""


def _policy_kwargs(data: Json) -> Json:
    """Read the activation function from its text."""
    text = str((data.get("policy_kwargs") or {}).get("activation_fn", ""))
    name = text.rstrip("'>").rpartition(".")[2]
    return {"activation_fn": getattr(nn, name)} if name and hasattr(nn, name) else {}


def _space(about: Json | None) -> Space | None:
    """Read a space from the texts of its attributes; None if they are abbreviated or of another kind."""
    kind = str((about or {}).get(":type:", "")).rstrip("'>").rpartition(".")[2]
    if about is None or kind not in KINDS or any("..." in str(about.get(name)) for name in ("low", "nvec")):
        return None
    if kind == "Discrete":
        return Discrete(int(about["n"]), start=int(about.get("start", 0)), dtype=_dtype(about))
    if kind == "MultiDiscrete":
        sizes = _numbers(about["nvec"])
        start, shape = _numbers(about.get("start", [0] * len(sizes))), tuple(about.get("_shape", (-1,)))
        numbers = (x.astype(np.int64).reshape(shape) for x in (sizes, start))
        return MultiDiscrete(next(numbers), dtype=_dtype(about), start=next(numbers))
    if kind == "MultiBinary":
        return MultiBinary(_numbers(about["n"]).astype(int).tolist() if "[" in str(about["n"]) else int(about["n"]))
    shape, dtype = tuple(about["_shape"]), np.dtype(str(about["dtype"]))
    low, high = (_numbers(about[side]).reshape(shape).astype(dtype) for side in ("low", "high"))
    return Box(low, high, shape, dtype.type)


def _dtype(about: Json) -> type[np.integer]:
    """The dtype of a space of whole numbers."""
    return np.dtype(str(about.get("dtype", "int64"))).type  # type: ignore[return-value]


def _numbers(text: Any) -> np.ndarray:
    """The numbers of a printed array."""
    return np.array([float(word) for word in re.split(r"[\s\[\],]+", str(text)) if word])


def written(model: Any, left_out: Collection[str] = ()) -> tuple[dict[str, bytes], list[str]]:
    """Members of a file of a headrace.sb3.model.Model that Stable-Baselines3 loads, and lines about what is not in it.
    left_out: names of arguments to leave out.

    They do not include Adam's moments. Raises ValueError for models that its MlpPolicy does not support."""
    kind, space = model.algorithm_name, model.observation_space
    if model.arguments.get("use_sde") or not isinstance(space, Box) or is_image(space):
        what = "use_sde=True" if model.arguments.get("use_sde") else f"observations {space}"
        raise ValueError(
            f'format="sb3" is for MlpPolicy without gSDE and with vectors as observations, not for {what}: leave it out'
        )
    if why := _why_no_action(model.action_space):
        raise ValueError(f'format="sb3" is not for actions {model.action_space}: {why}')
    state = without_replay(model.algorithm)
    weights = exported(kind, state["policy"], getattr(model.policy, "quantiles", 1))
    data, lines = _data(model, left_out)
    members = {"data": json.dumps(data, indent=4).encode(), "policy.pth": _saved(weights)}
    variables: Weights = {}
    if "target_entropy" in model.arguments:
        learned = isinstance(model.arguments["ent_coef"], str)
        coefficient = model.algorithm.buffers["log_temperature"].detach().reshape(1)
        variables = {"log_ent_coef": coefficient} if learned else {"ent_coef_tensor": coefficient[0].exp()}
    for name, parameters in _optimized(kind, weights, variables).items():
        members[f"{name}.pth"] = _saved(_adam(model, parameters))
    members["pytorch_variables.pth"] = _saved(variables)
    return members | {"_stable_baselines3_version": VERSION.encode()}, [*lines, SAID]


def _why_no_action(space: Space) -> str:
    """Reason why Stable-Baselines3 does not act in a space, or acts differently; empty if it acts as here."""
    if isinstance(space, Box):
        return "" if np.isfinite([space.low, space.high]).all() else "Stable-Baselines3 asks for finite bounds"
    if isinstance(space, Discrete | MultiDiscrete) and np.any(space.start):
        return "Stable-Baselines3 counts choices from 0, so that it would act by others"
    one = isinstance(space, Discrete | MultiDiscrete | MultiBinary) and len(space.shape or ()) < 2
    return "" if one else "Stable-Baselines3 has none of several parts or dimensions but Boxes"


def _optimized(kind: str, weights: Weights, variables: Weights) -> dict[str, list[torch.Tensor]]:
    """The parameters of each optimizer, by its name there."""
    own = {
        name: x for name, x in weights.items() if "_target." not in name and not name.endswith(("ra_mean", "ra_var"))
    }
    own = {name: x for name, x in own.items() if not name.endswith(".steps")}
    if not any(name.startswith("critic.") for name in own):
        return {"policy.optimizer": list(own.values())}
    found = {
        f"{part}.optimizer": [x for name, x in own.items() if name.startswith(f"{part}.")]
        for part in ("actor", "critic")
    }
    learned = variables.get("log_ent_coef")
    return found if learned is None else {**found, "ent_coef_optimizer": [learned]}


def _adam(model: Any, parameters: list[torch.Tensor]) -> Json:
    """The state of a torch.optim.Adam of these tensors that has taken no step."""
    own = optimizers(model.algorithm)[0]
    adam = torch.optim.Adam(parameters, float(own.learning_rate), (own.beta1, own.beta2), own.eps)
    return adam.state_dict()


def _data(model: Any, left_out: Collection[str]) -> tuple[Json, list[str]]:
    """Attributes of a model of Stable-Baselines3, and lines about what is not among them."""
    kind, found, lines = model.algorithm_name, dict[str, Any](), list[str]()
    for name, value in model.arguments.items():
        if name in UNKNOWN_THERE or name in left_out:
            continue
        if callable(value):
            value = float(value(1.0))
            lines.append(f"{name} is a function: the file keeps {value:g}, its first value")
        if name == "train_freq" and not isinstance(value, int):
            value = value[0]  # of (4, "step"), which would be read as a list
        found["_stats_window_size" if name == "stats_window_size" else name] = value
    module, name = CLASSES[kind]
    by_name = base64.b64encode(f"c{module}\n{name}\n.".encode()).decode()  # GLOBAL and STOP of pickle's protocol 0
    found["policy_class"] = {":type:": "<class 'abc.ABCMeta'>", SERIALIZED: by_name, "__module__": module}
    kwargs = dict(model.arguments["policy_kwargs"] or {})
    if kwargs.get("features_extractor_class") is not None or kwargs.get("features_extractor_kwargs"):
        raise ValueError('format="sb3" has the networks of an MlpPolicy, and no features extractor')
    found["policy_kwargs"] = _pickled({"n_critics": 1, **kwargs} if kind == "ddpg" else kwargs)
    for name in ("observation_space", "action_space"):
        found[name] = _pickled(getattr(model, name))
    if kind == "qrdqn":
        found["n_quantiles"] = model.policy.quantiles
    if kind in ("dqn", "qrdqn"):
        found["exploration_rate"] = model.exploration_rate
    return found | {"n_envs": model.n_envs, "num_timesteps": model.num_timesteps, "verbose": model.verbose}, lines


def _pickled(value: Any) -> Json:
    """Write a value that JSON does not have as Stable-Baselines3 does: pickled, with its members as texts."""
    members = value if isinstance(value, dict) else vars(value)
    texts = {name: x if _is_json(x) else str(x) for name, x in members.items()}
    return {":type:": str(type(value)), SERIALIZED: base64.b64encode(pickle.dumps(value)).decode(), **texts}


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


def _saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()
