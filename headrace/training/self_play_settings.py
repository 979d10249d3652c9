"""Settings that go with self-play."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from headrace.algorithms.config_bases import OnPolicyConfig
from headrace.training.config import OF_SELF_PLAY, TrainConfig, default_of

# settings that have their defaults in self-play, whose games are stepped by one process
REFUSED = (
    *("actors", "workers", "collection", "collect_device", "learners", "shards", "central_critic", "stagger"),
    *("log_info", "eval_freq"),
)


def with_self_play(config: TrainConfig, own: Any, given: Collection[str], agent_info: Any) -> TrainConfig:
    """The config; with self_play without the stagger of settings that are taken where none are registered.

    own: the algorithm's config. given: names of the settings that the user gave.
    Raises ValueError for settings that do not go with self_play, and for its own without it.
    """
    if not config.self_play:
        if without := sorted({*OF_SELF_PLAY} & {*given}):
            raise ValueError(f"{', '.join(without)} is for self_play: give self_play=True too, or leave it out")
        return config
    config = config if "stagger" in given else replace(config, stagger=False)
    for name in REFUSED:
        if (value := getattr(config, name)) != default_of(TrainConfig.__dataclass_fields__[name]):
            raise ValueError(f"self_play does not go with {name}={value!r}: leave {name} out")
    if agent_info is not None:
        raise ValueError("self_play does not go with agent_info: leave agent_info out")
    if not isinstance(own, OnPolicyConfig):
        raise ValueError("self_play is for algorithms that learn from rollouts of their own policy: use ppo")
    for name, off in (("recurrent", "none"), ("use_sde", False)):
        if (value := getattr(own, name, off)) != off:
            raise ValueError(f"self_play is for policies without a state: leave out {name}={value!r}")
    shares = {name: getattr(config, name) for name in ("latest_share", "best_share")}
    if min(shares.values()) < 0 or sum(shares.values()) > 1:
        found = " and ".join(f"{name} {value:g}" for name, value in shares.items())
        raise ValueError(f"{found} are shares of the opponents: give numbers from 0 on whose sum is at most 1")
    return config
