"""Statistics of the episodes of a training."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import isnan
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headrace import envs
from headrace.core.types import StateDict
from headrace.data.rollout import Column, Columns, Rollout
from headrace.envs.base import Env
from headrace.envs.registry import Source
from headrace.envs.sources import is_kernel
from headrace.parallel.actor_env import ActorEnv
from headrace.training.config import TrainConfig

if TYPE_CHECKING:
    from headrace.envs.curriculum import Curriculum

# steps of each environment without an episode's end after which a line says so: from EARLY of the training on; ever
ENDLESS, EARLY = (1_000, 10_000), 0.1


def info_columns(config: TrainConfig, source: Source | None, env: Env) -> dict[str, Column | Columns]:
    """Columns for the numbers of infos to log. source: what train() makes environments of; None if they are made
    already. Raises ValueError for environments without infos."""
    if not config.log_info:
        return {}
    gives = env.backend in ("inline", "workers", "vector")
    if isinstance(env, ActorEnv) and source is not None:
        gives = config.backend == "inline" or not is_kernel(envs.entry_of(source))
    given = f"log_info={config.log_info!r} is for Gymnasium environments and vector libraries, of one agent"
    if env.num_agents > 1 or not gives:
        raise ValueError(f"{given}, and not for {env.name} with the backend {env.backend!r}: leave it out")
    if config.learners > 1:
        raise ValueError(f"{given} and one learner: leave out one of log_info and learners={config.learners}")
    return {"info": {name: Column() for name in config.log_info}}


class Episodes:
    """Finished episodes: their number, and the last `window` of them.

    infos: names of numbers in the infos of last steps, which rollouts have as columns. curriculum: is updated with the
    episodes.
    """

    def __init__(self, window: int, infos: Sequence[str] = (), curriculum: Curriculum | None = None) -> None:
        self.count, self.curriculum = 0, curriculum
        self.infos: dict[str, deque[float]] = {name: deque(maxlen=window) for name in infos}
        self.last_infos: dict[str, list[float]] = {name: [] for name in infos}  # of the episodes that add() added last
        self.returns: deque[float] = deque(maxlen=window)
        self.lengths: deque[int] = deque(maxlen=window)
        self._noted = False

    def add(self, rollout: Rollout, columns: slice = slice(None)) -> tuple[list[float], list[int]]:
        """Add the episodes that ended in a rollout; return their returns and lengths, by step, then environment.

        columns: the environments to count.
        """
        now = _ended(rollout, columns)

        def of_these(column: Tensor) -> list[Any]:
            return _quick(column)[:, columns][now].tolist()  # type: ignore[no-any-return]

        for name, values in self.infos.items():
            self.last_infos[name] = of_these(getattr(rollout.info, name))
            values.extend(value for value in self.last_infos[name] if not isnan(value))
        returns, lengths = self.extend(of_these(rollout.episode_return), of_these(rollout.episode_length))
        if self.curriculum is not None:
            self.curriculum.follow(returns, self.last_infos)
        return returns, lengths

    def extend(self, returns: list[float], lengths: list[int]) -> tuple[list[float], list[int]]:
        """Add episodes with these returns and lengths. Returns both."""
        self.count += len(returns)
        self.returns.extend(returns)
        self.lengths.extend(lengths)
        return returns, lengths

    def note(self, env: Env, steps: int, progress: float) -> tuple[str, ...]:
        """Say, once, that no episode has ended, if there is no known time limit. steps: of each environment. progress:
        fraction of the training."""
        enough = steps >= ENDLESS[1] or (steps >= ENDLESS[0] and progress >= EARLY)
        if self._noted or self.count or env.max_steps is not None or not enough:
            return ()
        self._noted = True
        return (
            f"no episode of {env.name} has ended in {steps:,} steps of each environment, so there are no returns: if "
            "it has no end of its own, give time_limit, such as time_limit=1000",
        )

    @property
    def full(self) -> bool:
        """True if the window is full."""
        return len(self.returns) == self.returns.maxlen

    def mean_return(self) -> float | None:
        """Mean return of the window; None before an episode has ended."""
        return sum(self.returns) / len(self.returns) if self.returns else None

    def mean_length(self) -> float | None:
        """Mean length of the window; None before an episode has ended."""
        return sum(self.lengths) / len(self.lengths) if self.lengths else None

    def mean_infos(self) -> dict[str, float]:
        """Metrics of infos: the mean of each number over the last episodes that reported it, as `info/NAME`, or
        `success_rate` for is_success; and the level of the curriculum."""
        return ({} if self.curriculum is None else self.curriculum.row()) | {
            "success_rate" if name == "is_success" else f"info/{name}": sum(values) / len(values)
            for name, values in self.infos.items()
            if values
        }

    def state_dict(self) -> StateDict:
        """State of the count and the window."""
        infos = {name: list(values) for name, values in self.infos.items()}
        own = {} if self.curriculum is None else {"curriculum": self.curriculum.state_dict()}
        return {
            "count": self.count,
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "infos": infos,
            **own,
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict(). If its window is longer, the latest episodes are kept."""
        self.count = state["count"]
        self.returns.extend(state["returns"])
        self.lengths.extend(state["lengths"])
        for name, values in self.infos.items():
            values.extend(state.get("infos", {}).get(name, ()))
        if self.curriculum is not None and "curriculum" in state:
            self.curriculum.load_state_dict(state["curriculum"])


def episodes_of(config: TrainConfig, env: Env) -> Episodes:
    """Make the statistics of a training's episodes, with its curriculum. Raises ValueError for a wrong curriculum."""
    if not config.curriculum:
        return Episodes(config.window, config.log_info)
    from headrace.envs.curriculum import Curriculum  # which `import headrace` does not need

    return Episodes(config.window, config.log_info, Curriculum(config.curriculum, env, config.log_info))


def _quick(column: Tensor) -> Any:
    """Prepare a column for small operations: on the CPU as a NumPy array, since torch takes several times as long."""
    return column.numpy() if column.device.type == "cpu" else column


def _ended(rollout: Rollout, columns: slice = slice(None)) -> Any:
    """Mask of rows in which an episode of at least one step has ended, bool [T, N]; on the CPU a NumPy array. columns:
    the environments to examine."""
    # an episode of no steps is an environment reset on resuming, or an agent that waits for the others
    return (_quick(rollout.episode_length)[:, columns] > 0) & ~_quick(rollout.valid)[: rollout.num_steps, columns]


def ended_episodes(rollout: Rollout) -> Tensor:
    """Step, environment, return and length of each episode that has ended in a rollout, float64 [E, 4]."""
    now = torch.as_tensor(_ended(rollout))
    found = (*now.nonzero().unbind(1), rollout.episode_return[now], rollout.episode_length[now])
    return torch.stack([column.double() for column in found], 1).cpu()
