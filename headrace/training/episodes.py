"""What a run knows of its episodes, and how one row of metrics is made and named."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from headrace.data.rollout import Rollout

# Names of Stable-Baselines3, so that dashboards people have go on working.
TENSORBOARD = {
    "return": "rollout/ep_rew_mean",
    "length": "rollout/ep_len_mean",
    "exploration_rate": "rollout/exploration_rate",
    "eval_return": "eval/mean_reward",
    "eval_length": "eval/mean_ep_length",
    "steps_per_second": "time/fps",
}
COUNTERS = ("steps", "seconds", "iteration", "episodes")


class Episodes:
    """Finished episodes: how many there were, and the last `window` of them."""

    def __init__(self, window: int) -> None:
        self.count = 0
        self.returns: deque[float] = deque(maxlen=window)
        self.lengths: deque[int] = deque(maxlen=window)

    def add(self, rollout: Rollout, columns: slice = slice(None)) -> tuple[list[float], list[int]]:
        """Take in the episodes whose dead row lies in a rollout; give their returns and lengths, by step, then env.

        columns: of the environments to look at.
        """
        episode_return, episode_length = rollout.episode_return[:, columns], rollout.episode_length[:, columns]
        # an episode of no steps is a world that began anew when its run was resumed, or an agent that waits for others
        dead = ~rollout.valid[: rollout.num_steps, columns] & (episode_length > 0)
        returns, lengths = episode_return[dead].tolist(), episode_length[dead].tolist()
        self.count += len(returns)
        self.returns.extend(returns)
        self.lengths.extend(lengths)
        return returns, lengths

    @property
    def full(self) -> bool:
        """Whether as many episodes have ended as the window holds."""
        return len(self.returns) == self.returns.maxlen

    def mean_return(self) -> float | None:
        """Mean return of the window; None before an episode has ended."""
        return sum(self.returns) / len(self.returns) if self.returns else None

    def mean_length(self) -> float | None:
        """Mean length of the window; None before an episode has ended."""
        return sum(self.lengths) / len(self.lengths) if self.lengths else None

    def state_dict(self) -> dict[str, Any]:
        """Count and window."""
        return {"count": self.count, "returns": list(self.returns), "lengths": list(self.lengths)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from state_dict(); of a longer window, the latest episodes."""
        self.count = state["count"]
        self.returns.extend(state["returns"])
        self.lengths.extend(state["lengths"])


def tensorboard_tags(row: Mapping[str, Any]) -> dict[str, float]:
    """The TensorBoard scalars of one row of metrics, by tag."""
    tags = {}
    for name, value in row.items():
        if value is not None and name not in COUNTERS:
            tags[TENSORBOARD.get(name, f"train/{name}")] = float(value)
    return tags
