"""The cache of kernels: compiled once per machine, also when two processes ask at the same time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.kernels.runtime import cache

SCRIPT = """\
import sys
sys.path.insert(0, sys.argv[1])
from walker import Walker
from headrace.envs.compiled.env import CompiledEnv
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
env = CompiledEnv(Walker, 4, threads=1)
columns = Rollout(3, 4, env_columns(env.observation_space) | {"action": action_column(env.action_space)})
env.reset(columns, 1)
for t in range(3):
    env.step(columns, t)
print(columns.observation.flatten().tolist())
"""

WALKER = """\
from typing import NamedTuple
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import f32, uniform
from headrace.data.spaces import Box, Discrete

class Walker(KernelEnv):
    observation_space = Box(-9.0, 9.0, (1,))
    action_space = Discrete(2)

    class State(NamedTuple):
        x: f32

    def reset(s, p, key):
        return Walker.State(uniform(key, 0, -1.0, 1.0))

    def step(s, p, action, key):
        return Walker.State(s.x + 0.5), 1.0, s.x > 8.0

    def observe(s, p):
        return (s.x,)
"""


def start(folder: Path) -> subprocess.Popen:
    """A process that steps Walker, with its kernels in a folder."""
    environment = os.environ | {"HEADRACE_CACHE": str(folder / "kernels")}
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_at_once_and_a_second_start(tmp_path):
    (tmp_path / "walker.py").write_text(WALKER)
    both = [start(tmp_path), start(tmp_path)]
    outputs = [process.communicate(timeout=120) for process in both]
    outputs.append(start(tmp_path).communicate(timeout=120))
    assert len({out for out, _ in outputs}) == 1 and outputs[0][0].startswith("[")
    announced = [err.count("compiling Walker for the CPU") for _, err in outputs]
    assert sorted(announced[:2]) == [0, 1] and announced[2] == 0, outputs


def test_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file" / "kernels"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder.__wrapped__() == tmp_path / ".cache" / "headrace" / "kernels"
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    found = cache.folder.__wrapped__()
    assert found.is_dir() and tmp_path not in found.parents
    found.rmdir()


def test_files_are_written_whole(tmp_path):
    cache.write(tmp_path / "a.py", b"x = 1\n")
    with pytest.raises(TypeError):
        cache.write(tmp_path / "a.py", None)  # type: ignore[arg-type]
    assert (tmp_path / "a.py").read_text() == "x = 1\n"
