"""Steps of Gymnasium's MuJoCo tasks, random actions: by Gymnasium one by one, by compiled loops, and by EnvPool where
it is installed. Steps are counted per second of a CPU that this process used, and per second.

The ways take turns, a window of each after another, and the median of the windows counts.
"""

from __future__ import annotations

import importlib.util
import statistics
import time

import torch

import headrace as hr
from benchmarks.common import Neighbours, Row, finish, parser, table

TASKS = ("Hopper-v5", "HalfCheetah-v5", "Ant-v5")
COLUMNS = ("task", "way", "num_envs", "steps_per_cpu_s", "steps_per_s", "times")
ROWS = 16  # steps of all environments in a rollout


class Way:
    """Environments of one kind, and what was measured of them."""

    def __init__(self, name: str, num_envs: int, seed: int = 0, **options: object) -> None:
        self.env = hr.make(name, num_envs, **options)
        self.rollout = self.env.rollout(ROWS, self.env.columns())
        self.env.reset(self.rollout, seed)
        drawn = torch.rand(self.rollout.action.shape, generator=torch.Generator().manual_seed(seed))
        low, high = (torch.as_tensor(bound) for bound in (self.env.action_space.low, self.env.action_space.high))
        self.rollout.action.copy_(low + (high - low) * drawn)
        self.found: list[tuple[float, float]] = []
        self.play()

    def play(self) -> int:
        """Step through a rollout; return how many steps that was."""
        for t in range(ROWS):
            self.env.step(self.rollout, t)
        steps = self.rollout.valid_steps()
        self.rollout.continue_from(self.rollout)
        return steps

    def measure(self, seconds: float) -> None:
        """Add a window."""
        used, began, steps = time.process_time(), time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            steps += self.play()
        self.found.append((steps / (time.process_time() - used), steps / (time.perf_counter() - began)))

    def median(self, which: int) -> float:
        return statistics.median(window[which] for window in self.found)


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--tasks", nargs="*", default=TASKS)
    flags.add_argument("--num-envs", type=int, default=64)
    flags.add_argument("--windows", type=int, default=5)
    flags.add_argument("--seconds", type=float, default=2.0, help="of each window")
    options = flags.parse_args()
    neighbours = Neighbours()
    seconds, windows = (0.05, 1) if options.quick else (options.seconds, options.windows)
    rows = [row for task in options.tasks for row in measured(task, options.num_envs, seconds, windows)]
    print(table(rows, COLUMNS))
    finish("mujoco_steps", rows, options, neighbours)


def measured(task: str, num_envs: int, seconds: float, windows: int) -> list[Row]:
    """A row for each way; times: steps per CPU second beside Gymnasium's."""
    ways = {
        "gymnasium": Way(task, num_envs, backend="inline"),
        "mujoco/, 1 thread": Way(f"mujoco/{task}", num_envs, env_kwargs={"num_threads": 1}),
        "mujoco/": Way(f"mujoco/{task}", num_envs),
    }
    if importlib.util.find_spec("envpool"):
        ways["envpool/"] = Way(f"envpool/{task}", num_envs)
    for _ in range(windows):
        for way in ways.values():
            way.measure(seconds)
    base = ways["gymnasium"].median(0)
    for way in ways.values():
        way.env.close()
    return [
        {
            "task": task,
            "way": name,
            "num_envs": num_envs,
            "steps_per_cpu_s": round(way.median(0)),
            "steps_per_s": round(way.median(1)),
            "times": round(way.median(0) / base, 2),
        }
        for name, way in ways.items()
    ]


if __name__ == "__main__":
    main()
