"""Environments written to a file of their own, as a user has them, for the tests of what a user may write."""

import importlib.util
import itertools
from pathlib import Path

HEAD = """\
from __future__ import annotations
from typing import NamedTuple
import math
import numpy as np
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import array, boolean, f32, i8, i32, u32, randint, select, sin, uniform
from headrace.data.spaces import Box, Discrete, MultiDiscrete
"""

ENV = """\
class MyEnv(KernelEnv):
    observation_space = Box(-1.0, 1.0, (2,))
    action_space = Discrete(2)
    max_steps = 10

    class State(NamedTuple):
        x: f32
        n: i32
        cells: array(i32, 4)

    def reset(s, p, key):
        for i in range(4):
            s.cells[i] = 0
        return MyEnv.State(uniform(key, 0, -1.0, 1.0), 0, s.cells)

    def step(s, p, action, key):
        return MyEnv.State(s.x, s.n + 1, s.cells), 1.0, s.n > 3

    def observe(s, p):
        return s.x, 0.0
"""

PIXELS = """\
class MyEnv(KernelEnv):
    observation_space = Box(0, 255, (2, 8, 8), np.uint8)
    action_space = Discrete(2)
    max_steps = 10
    frames = 2

    class State(NamedTuple):
        x: f32
        cells: array(i32, 4)

    def reset(s, p, key):
        for i in range(4):
            s.cells[i] = 0
        return MyEnv.State(uniform(key, 0, -1.0, 1.0), s.cells)

    def step(s, p, action, key):
        return MyEnv.State(s.x, s.cells), 1.0, False

    def pixel(s, p, row, column):
        return 255.0 if row > column else 0.0
"""

DUEL = """\
class MyEnv(KernelEnv):
    observation_space = Box(-1.0, 1.0, (2,))
    action_space = Discrete(2)
    num_agents = 2
    max_steps = 10

    class State(NamedTuple):
        x: f32

    def reset(s, p, key):
        return MyEnv.State(uniform(key, 0, -1.0, 1.0))

    def step(s, p, action, key):
        return MyEnv.State(s.x + action[0] - action[1]), (1.0, -1.0), False

    def observe(s, p, agent):
        return s.x, agent
"""

_numbers = itertools.count()


def load(folder: Path, text: str, name: str = "MyEnv", head: str = HEAD):
    """The class of a file with this text after the usual imports, and the file's path."""
    path = folder / f"environment{next(_numbers)}.py"
    path.write_text(head + text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name), path


def changed(old: str, new: str, text: str = ENV) -> str:
    """ENV, or another text, with a part replaced."""
    assert old in text
    return text.replace(old, new)


def line_of(path: Path, part: str) -> int:
    """The number of the only line that holds this part."""
    found = [n for n, line in enumerate(path.read_text().splitlines(), 1) if part in line]
    assert len(found) == 1
    return found[0]
