"""The memory that saving takes: a SAC run with a replay buffer of some hundred megabytes, whose peak while it saves is
compared with what it holds anyway.

    python -m benchmarks.faults.save_memory
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks import common
from benchmarks.faults import reliability

MOST = 1.2  # times the run's memory
OBSERVATION = 256  # numbers


def memory(name: str) -> int:
    """Bytes of VmRSS (now) or VmHWM (the most since it was reset) of this process."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def measured(buffer_size: int) -> common.Row:
    """The run's own memory and its peak while it saves, in megabytes."""
    import gymnasium
    import numpy as np

    import headrace as hr
    from headrace.runs.recorder import Recorder

    class Wide(gymnasium.Env):
        """Large observations fill the buffer in few steps."""

        observation_space = gymnasium.spaces.Box(-1, 1, (OBSERVATION,))
        action_space = gymnasium.spaces.Box(-1, 1, (1,))

        def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict]:
            """Begin an episode."""
            self.steps = 0
            return np.zeros(OBSERVATION, np.float32), {}

        def step(self, action: object) -> tuple[np.ndarray, float, bool, bool, dict]:
            """A step of 100."""
            self.steps += 1
            return np.full(OBSERVATION, self.steps, np.float32), 1.0, self.steps == 100, False, {}

    options = {"num_envs": 64, "hidden": (32,), "buffer_size": buffer_size, "progress": "none"}
    trainer = hr.Trainer("sac", lambda: Wide(), learning_starts=10 * buffer_size, **options)
    with tempfile.TemporaryDirectory() as name, Recorder(trainer, Path(name)) as recorder:
        while trainer.steps < buffer_size:
            recorder.record(trainer.iterate())
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        held = memory("VmRSS")
        recorder._save_last()
        recorder._saver.wait()
        peak = memory("VmHWM")
        saved = sum(path.stat().st_size for path in Path(name).rglob("*.safetensors"))
    return {"held_mb": held / 2**20, "peak_mb": peak / 2**20, "saved_mb": saved / 2**20, "ratio": peak / held}


def main() -> None:
    """Measure, and compare with the limit."""
    options = common.parser(__doc__ or "").parse_args()
    row = reliability.empty("memory while saving a replay buffer") | measured(20_000 if options.quick else 500_000)
    print(f"held {row['held_mb']:.0f} MB, peak while saving {row['saved_mb']:.0f} MB: {row['peak_mb']:.0f} MB")
    wrong = "" if row["ratio"] <= MOST else f"the peak is {row['ratio']:.2f} times the run's memory"
    reliability.count(row, "saving", wrong)
    reliability.finish("save_memory", [row], options.results)


if __name__ == "__main__":
    main()
