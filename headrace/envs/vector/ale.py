"""Many Atari games at once, by ALE's own vector environment. See headrace.envs.gym.atari."""

from __future__ import annotations

from typing import Any

from headrace.envs.vector.adapter import VectorAdapter, threads
from headrace.envs.vector.gymnasium_vector import GymnasiumSource, gymnasium_vector


def games(name: str, num_envs: int, **options: Any) -> VectorAdapter:
    """N games in threads, by ALE's own vector environment. Rewards are clipped to -1 .. 1, and returns are not.

    options: as ale_py.vector_env.AtariVectorEnv takes them; reward_clipping=False leaves rewards as they are.
    """
    clip = (-1.0, 1.0) if options.pop("reward_clipping", True) else None
    options = {"num_threads": threads(num_envs), **options}
    source = GymnasiumSource(gymnasium_vector(name, num_envs, reward_clipping=False, **options), name)
    return VectorAdapter(source, clip)
