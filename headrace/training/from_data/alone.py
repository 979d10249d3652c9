"""Training from recorded data alone: the settings that it does not have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from headrace.training.config import TrainConfig, default_of

FIELDS = TrainConfig.__dataclass_fields__
OF_COLLECTING = (  # settings of how environments are stepped, or of the episodes of a training
    *("workers", "actors", "collection", "max_policy_lag", "replay_order", "advantages", "exchange", "drop_slowest"),
    *("learners", "shards", "cluster", "cluster_open", "stagger", "collect_device"),
    *("max_episodes", "window", "log_info"),
)


def without_collecting(config: TrainConfig, name: str, given: Collection[str]) -> TrainConfig:
    """The config of a training from recorded data alone, with one environment, which is never stepped.

    name: of the algorithm. given: names of the settings that the user gave.
    Raises ValueError without data, for settings of collecting, and for a target_return that nothing would measure."""
    if config.replay is None:
        raise ValueError(
            f"{name} learns from recorded data alone: give replay, a folder of `headrace record`, a dataset of Minari, "
            "or a run that has a replay buffer"
        )
    wrong = [field for field in OF_COLLECTING if getattr(config, field) != default_of(FIELDS[field])]
    wrong += ["num_envs"] * ("num_envs" in given and config.num_envs != 1)
    if wrong:
        found = ", ".join(f"{field}={getattr(config, field)!r}" for field in wrong)
        raise ValueError(
            f"{name} learns from recorded data alone, and takes no steps of environments: leave out {found}"
        )
    if config.target_return is not None and not config.eval_freq:
        raise ValueError(
            f"target_return={config.target_return:g} of {name} is that of an evaluation, since it has no episodes: "
            "give eval_freq, the gradient steps between two"
        )
    return replace(config, num_envs=1)
