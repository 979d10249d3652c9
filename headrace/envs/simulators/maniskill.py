"""ManiSkill's tasks, maniskill/PushCube-v1. Not run here: written from the source of ManiSkill 3.0.

It needs Vulkan, also on a CPU.
"""

from __future__ import annotations

from typing import Any

from headrace.envs.simulators.torch_vector import TorchVector

PACKAGE = "mani_skill"
INSTALL = "pip install mani_skill, in an environment of its own"


def tasks() -> list[str]:
    """The names of ManiSkill's registry."""
    import mani_skill.envs  # noqa: F401  registers them
    from mani_skill.utils.registration import REGISTERED_ENVS

    return list(REGISTERED_ENVS)


class ManiSkill(TorchVector):
    """options: of gymnasium.make, such as obs_mode="state" (the default) and sim_backend."""

    def __init__(self, task: str, num_envs: int, **options: Any) -> None:
        import gymnasium
        import mani_skill.envs  # noqa: F401
        from mani_skill.vector.wrappers.gymnasium import ManiSkillVectorEnv

        env = gymnasium.make(task, num_envs=num_envs, **{"obs_mode": "state", **options})
        vector = ManiSkillVectorEnv(env, auto_reset=True, ignore_terminations=False)
        space = vector.single_observation_space
        super().__init__(vector, f"maniskill/{task}", space, finals="final_observation")
        self.max_steps = getattr(env.spec, "max_episode_steps", None)


SIMULATOR = ManiSkill
