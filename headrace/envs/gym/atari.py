"""Atari games of the Arcade Learning Environment, with the usual preprocessing. Machado et al. 2018.

Ids in Gymnasium's namespace ALE/ get the preprocessing of Mnih et al. 2015: every fourth frame, the maximum of the last
two, grayscale, 84 x 84, four of them stacked, up to 30 no-op steps at the start, and the button pressed that starts a
game: uint8 [4, 84, 84]. For raw images give a function: `lambda: gymnasium.make("ALE/Pong-v5")`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from headrace.core.types import Json

FRAMES = 4  # of the frame skip and of the stack


def game(name: str, **options: Any) -> gymnasium.Env:
    """One game as a gymnasium.Env, with rewards as they are. options: as gymnasium.make takes them.

    Raises ImportError where OpenCV is not installed.
    """
    try:
        env = AtariPreprocessing(_Fire(gymnasium.make(name, **{**options, "frameskip": 1})), frame_skip=FRAMES)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(f'{name} needs OpenCV, which is not installed: pip install "headrace[atari]"') from error
    return FrameStackObservation(env, FRAMES)


class _Fire(gymnasium.Wrapper):
    """Presses the fire button after reset, where a game has one: some games do not start without it."""

    def reset(self, **options: Any) -> tuple[np.ndarray, Json]:
        observation, info = self.env.reset(**options)
        meanings = self.unwrapped.get_action_meanings()  # type: ignore[attr-defined]
        if len(meanings) > 1 and meanings[1] == "FIRE":
            observation, _, _, _, info = self.env.step(1)
        return observation, info
