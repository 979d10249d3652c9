"""A plugin for pytest: headrace.sb3 takes the place of classes of Stable-Baselines3; what does not apply is left out.

REPLACE=models replaces PPO, A2C, SAC, TD3 and DQN; REPLACE=vec_env replaces DummyVecEnv, in test_vec_envs.py.
SITE_PACKAGES: folders that have Stable-Baselines3 and what its tests import, searched behind this Python's own.
LEFT_OUT: a file for the number of tests that are left out for each reason, and of those that are not.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path

sys.path += os.environ["SITE_PACKAGES"].split(os.pathsep)

import gymnasium
import pytest
import stable_baselines3
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from stable_baselines3.common import env_util, vec_env

from headrace import sb3

REPLACE = os.environ["REPLACE"]
LISTS = {"models": "exclusion", "vec_env": "vec_env"}


class VecEnv(sb3.VecEnv):
    """headrace.sb3.VecEnv of functions that may differ, as the tests give them to DummyVecEnv."""

    def __init__(self, env_fns: list) -> None:
        mode = gymnasium.vector.AutoresetMode.SAME_STEP
        super().__init__(RecordEpisodeStatistics(gymnasium.vector.SyncVectorEnv(env_fns, autoreset_mode=mode)))


def pytest_configure() -> None:
    """Replace the classes, before a test imports them."""
    if REPLACE == "models":
        for name in ("PPO", "A2C", "SAC", "TD3", "DQN", "DDPG"):
            setattr(stable_baselines3, name, getattr(sb3, name))
    else:
        vec_env.DummyVecEnv = env_util.DummyVecEnv = VecEnv


def reasons() -> dict[str, str]:
    """The patterns of tests that do not apply, and the reason of each."""
    lists = tomllib.loads(Path(__file__).with_name("exclusions.toml").read_text())
    return {pattern: one["reason"] for one in lists[LISTS[REPLACE]] for pattern in one["tests"]}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what does not apply."""
    of_pattern = reasons()
    names = {item: f"{item.path.name}::{item.nodeid.partition('::')[2]}" for item in items}
    found = {item: next((why for one, why in of_pattern.items() if fnmatch(names[item], one)), "") for item in items}
    left_out = [item for item in items if found[item]]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not found[item]]
    if report := os.environ.get("LEFT_OUT"):
        counts = Counter(found[item] for item in left_out)
        Path(report).write_text(json.dumps({"selected": len(items), "left_out": counts}))
