"""The replay buffer of a model under Stable-Baselines3's names, and its files, which only hold tensors."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace.core.types import Json
from headrace.core.writing import replacing
from headrace.data.replay import Replay
from headrace.sb3.zip_files import File, is_path, opened

SUFFIX = ".pt"
INSTEAD = {
    **dict.fromkeys(("add", "extend"), "learn() alone adds steps; a loop of your own is docs/own-loop.md"),
    **dict.fromkeys(("observations", "next_observations", "actions"), "sample(batch_size) has them"),
    **dict.fromkeys(("rewards", "dones", "timeouts"), "sample(batch_size) has rewards, dones and discounts"),
    "reset": "a new model begins with an empty one",
}


class Samples(NamedTuple):
    """A sample of transitions of up to n steps, on the learner's device."""

    observations: Any  # [B, ...]
    actions: Tensor  # [B, K], in the units of the action space
    next_observations: Any  # [B, ...]
    dones: Tensor  # [B, 1]: 1 if the episode terminated
    rewards: Tensor  # [B, 1]
    discounts: Tensor  # [B, 1]: factor of the value of next_observations


class ReplayBuffer:
    """A view of the replay buffer that a model learns from."""

    def __init__(self, replay: Replay, gamma: float) -> None:
        self.replay, self.gamma = replay, gamma
        self.n_envs, self.device = replay.num_envs, replay.ring.device
        self.buffer_size = replay.length  # steps of each environment

    def __getattr__(self, name: str) -> Any:
        instead = f": {INSTEAD[name]}" if name in INSTEAD else ""
        raise AttributeError(f"ReplayBuffer has no attribute {name!r}{instead}")

    @property
    def pos(self) -> int:
        """Position of the next step."""
        return int(self.replay.written.max()) % self.buffer_size

    @property
    def full(self) -> bool:
        """True if steps have been overwritten."""
        return bool(int(self.replay.written.max()) >= self.buffer_size)

    def size(self) -> int:
        """Number of stored steps of each environment."""
        return self.buffer_size if self.full else self.pos

    def sample(self, batch_size: int, env: Any = None) -> Samples:
        """Draw transitions uniformly, with PyTorch's generator. Raises ValueError if none can be drawn."""
        replay = self.replay
        if int(replay.written.max()) < replay.least:
            raise ValueError(f"the replay buffer has {self.size()} steps, of which none can be drawn yet: call learn()")
        batch = replay.sample(torch.rand(batch_size, replay.draws, device=self.device), self.gamma)
        each = (batch.observation, batch.action.view(batch_size, -1), batch.next_observation)
        return Samples(*each, *(x.unsqueeze(1) for x in ((batch.discount == 0).float(), batch.reward, batch.discount)))


def save(file: File, replay: Replay) -> None:
    """Write the steps of a replay buffer. file: an open file or a path, which gets the suffix .pt if it has none."""
    state = dict(replay.state_dict())
    state["rows"] = list(state["rows"])
    if not is_path(file):
        torch.save(state, opened(file, "writable"))
        return
    with replacing(_named(file), "the replay buffer") as fresh:
        torch.save(state, fresh)


def read(file: File) -> Json:
    """Read the state of a replay buffer from a file of save(). Raises ValueError for another file."""
    path = opened(file, "readable") if not is_path(file) else _named(file)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        raise ValueError(
            f"{file} is no replay buffer that save_replay_buffer() of headrace.sb3 wrote; pickles, such as those of "
            "Stable-Baselines3, are never read, because unpickling runs whatever code they name"
        ) from error
    if not isinstance(state, dict) or state.keys() != {"length", "written", "rows"}:
        raise ValueError(f"{file} is no replay buffer that save_replay_buffer() of headrace.sb3 wrote")
    return state


def put(replay: Replay, state: Mapping[str, Any]) -> None:
    """Load the saved state of a replay buffer of the same size. Its last episodes are cut off, since steps appended
    later are of other episodes. Raises ValueError for another size, and for steps of other environments."""
    expected = {name: column.shape[2:] for name, column in replay._stored()}
    for piece in state["rows"]:
        found = {name: x.shape[1:] for name, x in piece.items() if name not in ("start", "stop")}
        if found != expected:
            raise ValueError(f"the saved replay buffer is of other environments: it has {found}, and not {expected}")
    replay.load_state_dict(state)
    # the observation after the last row is overwritten, so that row is masked, and the one before it is the last
    for back, column, value in ((1, replay.ring.valid, False), (2, replay.ring.truncated, True)):
        some = replay.written >= back
        rows = ((replay.written - back) % replay.length * replay.num_envs + replay._envs)[some]
        column.view(-1)[rows] = value


def _named(file: Any) -> Path:
    path = Path(file)
    return path if path.suffix else path.with_suffix(SUFFIX)
