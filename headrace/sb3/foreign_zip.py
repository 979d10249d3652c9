"""Reads a file of Stable-Baselines3's save(): the plain JSON of its data, and the tensors of its policy.

Values that are no JSON are stored there as pickled bytes, next to a text of each attribute. The bytes are never read:
unpickling runs whatever code they name. What the texts say is used, and everything else is said to be left out.
"""

from __future__ import annotations

import io
import json
import re
import sys
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Space
from torch import nn

from headrace.core.types import Json
from headrace.sb3 import schedules
from headrace.sb3.foreign_weights import kind_of, net_arch, quantiles_of

MEMBERS = ("data", "policy.pth")
KINDS = {"Box": Box, "Discrete": Discrete, "MultiDiscrete": MultiDiscrete, "MultiBinary": MultiBinary}
SERIALIZED = ":serialized:"
RENAMED = {"_stats_window_size": "stats_window_size"}
# of the loop's own state, or given by the file in another way
NOT_ARGUMENTS = {"policy_class", "policy_kwargs", "observation_space", "action_space", "replay_buffer_class"}
NOT_ARGUMENTS |= {"rollout_buffer_class", "lr_schedule", "exploration_schedule", "ep_info_buffer", "ep_success_buffer"}


def parse(members: dict[str, bytes]) -> tuple[Any, ...]:
    """The fields of zip_files.Saved. Raises ValueError for weights that have no counterpart."""
    data = json.loads(members["data"])
    weights = torch.load(io.BytesIO(members["policy.pth"]), map_location="cpu", weights_only=True)
    algorithm = kind_of(weights, data)
    arguments = _arguments(data)
    arguments["policy_kwargs"] = {"net_arch": net_arch(algorithm, weights), **_policy_kwargs(data)}
    arguments["policy_kwargs"] |= quantiles_of(algorithm, weights, data)
    spaces = [_space(data.get(name)) for name in ("observation_space", "action_space")]
    pair = None if None in spaces else tuple(spaces)
    steps, num_envs = int(data.get("num_timesteps", 0)), int(data.get("n_envs", 1))
    rate = data.get("exploration_rate")
    return algorithm, "MlpPolicy", arguments, num_envs, steps, pair, None, weights, rate


def _arguments(data: Json) -> Json:
    """Arguments of the constructor that are plain JSON; constant and linear schedules by their texts."""
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
    """The activation function, by its text."""
    text = str((data.get("policy_kwargs") or {}).get("activation_fn", ""))
    name = text.rstrip("'>").rpartition(".")[2]
    return {"activation_fn": getattr(nn, name)} if name and hasattr(nn, name) else {}


def _space(about: Json | None) -> Space | None:
    """A space by the texts of its attributes; None where they are abbreviated or of another kind."""
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
