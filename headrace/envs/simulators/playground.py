"""MuJoCo Playground's environments, playground/CartpoleBalance. Not run on a GPU; on a CPU as docs/simulators.md says.

Those of robots that walk fetch models from a public repository when they are made.
"""

from __future__ import annotations

from headrace.envs.simulators.brax import JaxSimulator
from headrace.envs.simulators.published import Published, of_brax

PACKAGE = "mujoco_playground"
INSTALL = "pip install playground"


def tasks() -> list[str]:
    """The names of Playground's registry."""
    from mujoco_playground import registry

    return list(registry.ALL_ENVS)


class Playground(JaxSimulator):
    """impl: of MuJoCo's physics, "jax" or "warp"; None: as in the task's settings on a GPU, and "jax" elsewhere."""

    def __init__(self, task: str, num_envs: int, impl: str | None = None) -> None:
        import jax
        from mujoco_playground import registry

        config = registry.get_default_config(task)
        if impl or jax.default_backend() == "cpu":
            config.impl = impl or "jax"
        env = registry.load(task, config=config)
        super().__init__(env, num_envs, f"playground/{task}", config.episode_length, config.action_repeat)


def published(task: str, num_envs: int | None) -> Published:
    """PPO's settings of Playground for a task, with its own number of environments."""
    from mujoco_playground import dm_control_suite, locomotion
    from mujoco_playground.config import dm_control_suite_params, locomotion_params, manipulation_params

    suites = ((dm_control_suite, dm_control_suite_params), (locomotion, locomotion_params))
    config = next((config for suite, config in suites if task in suite.ALL_ENVS), manipulation_params)
    return of_brax("Playground", config.brax_ppo_config(task))


SIMULATOR = Playground
