"""Isaac Lab's tasks, isaaclab/Isaac-Cartpole-v0. Not run here: written from the source of Isaac Lab 2.3, which needs an
NVIDIA GPU and a NumPy below 2, and so cannot be installed next to Headrace's own requirements everywhere."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import gymnasium

from headrace.envs.simulators.published import Published, of_rsl_rl
from headrace.envs.simulators.torch_vector import TorchVector
from headrace.envs.simulators.two_groups import TwoGroups

PACKAGE = "isaaclab"
INSTALL = "see isaac-sim.github.io/IsaacLab: it has an environment of its own"
LICENCE = "OMNI_KIT_ACCEPT_EULA"


@cache
def _app() -> Any:
    """Isaac Sim, which has to be started before its modules are imported, once in a process."""
    if os.environ.get(LICENCE, "").upper() not in ("Y", "YES", "1"):
        raise RuntimeError(f"Isaac Sim asks to accept its licence: read it, and set {LICENCE}=YES if you do")
    from isaaclab.app import AppLauncher

    return AppLauncher(headless=True).app


def tasks() -> list[str]:
    """The ids that Isaac Lab registers with Gymnasium. Starts Isaac Sim."""
    _app()
    import isaaclab_tasks  # noqa: F401  registers them

    return [name for name in gymnasium.registry if name.startswith("Isaac-")]


class IsaacLab(TorchVector):
    """A process may have one. options: of gymnasium.make."""

    single = True

    def __init__(self, task: str, num_envs: int, device: str = "cuda:0", **options: Any) -> None:
        _app()
        from isaaclab_tasks.utils import parse_env_cfg

        config = parse_env_cfg(task, device=device, num_envs=num_envs)
        env = gymnasium.make(task, cfg=config, **options).unwrapped
        spaces = env.single_observation_space.spaces  # type: ignore[attr-defined]
        seen = TwoGroups({name: space.shape for name, space in spaces.items()}, "policy", "critic")
        super().__init__(env, f"isaaclab/{task}", seen.space, seen)
        self.max_steps = int(env.max_episode_length)  # type: ignore[attr-defined]

    def close(self) -> None:
        super().close()
        _app().close()


def published(task: str, num_envs: int | None) -> Published | None:
    """PPO's settings of Isaac Lab for a task, where it has some for rsl_rl. num_envs: None for the task's own."""
    _app()
    from isaaclab_tasks.utils import load_cfg_from_registry, parse_env_cfg

    if (entry := "rsl_rl_cfg_entry_point") not in gymnasium.spec(task).kwargs:
        return None
    number = num_envs or int(parse_env_cfg(task).scene.num_envs)
    return of_rsl_rl("Isaac Lab", load_cfg_from_registry(task, entry).to_dict(), number)


SIMULATOR = IsaacLab
