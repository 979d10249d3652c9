"""MujocoTask: a user's task with a MuJoCo model, made of MuJoCo's file and a few functions of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from gymnasium.spaces import Space

from headrace.core.types import Settings

if TYPE_CHECKING:
    from headrace.envs.vector.mujoco_task_env import MujocoTaskEnv


class MujocoTask:
    """One environment of a MuJoCo model. MuJoCo steps it, in threads; Headrace compiles the functions, as those of a
    KernelEnv.

    A subclass gives

        xml                         a file of MuJoCo's next to the class's own; or the text of one, which begins with <
        fields                      arrays of mjData that the functions read as s.qpos[0], s.xpos[3, 2]: float32. With
                                    "_change" behind a name, what the last step has changed of it: s.qpos_change[0]
        frame_skip                  MuJoCo's steps in a step
        observation_space           a float32 Box
        action_space                optional, of the actuators' controls; else a Box of their ranges
        max_steps                   steps until an episode is truncated; None for never
        class Params(NamedTuple)    optional: parameters with a default, f32, i32 or boolean
        reset(s, p, key)            optional: sets s.qpos and others of SETTABLE, the model's before it; returns s
        observe(s, p)               the observation: as many numbers as its space has; or observe(s, p, out)
        reward(s, p, action)        after a step: a number
        ended(s, p)                 optional: whether the episode is terminated
        configure(model, p)         optional, plain Python: changes an environment's mjModel by its parameters

    as plain functions without `self`. A call of the class gives N environments, an Env: Task(64, params={"mass": 2.0}).
    """

    xml: ClassVar[str]
    fields: ClassVar[tuple[str, ...]] = ("qpos", "qvel")
    frame_skip: ClassVar[int] = 1
    observation_space: ClassVar[Space]
    action_space: ClassVar[Space | None] = None
    max_steps: ClassVar[int | None] = None

    class Params(NamedTuple):
        """No parameters, unless a subclass has some."""

    def __new__(cls, num_envs: int, params: Settings | None = None, num_threads: int | None = None) -> MujocoTaskEnv:  # type: ignore[misc]
        """num_threads: of MuJoCo's steps; results do not depend on it. params: name -> one number, or N of them.

        Raises what MujocoTaskEnv does.
        """
        from headrace.envs.vector.mujoco_task_env import MujocoTaskEnv

        env = MujocoTaskEnv(cls, num_envs, params or {}, num_threads)
        env.truncates_only = cls.ended is MujocoTask.ended
        return env

    def reset(s: Any, p: Any, key: Any) -> Any:
        return s

    def ended(s: Any, p: Any) -> Any:
        return False
