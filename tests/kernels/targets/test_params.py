"""Values that parameters of compiled environments take, and those that are refused by name."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import boolean, f32, i32
from headrace.kernels.language.read import read
from headrace.kernels.targets.params import pack_params


class Lamps(KernelEnv):
    """Environment with a parameter of each kind."""

    observation_space, action_space = Box(0.0, 1.0, (1,)), Discrete(2)

    class Params(NamedTuple):
        power: f32 = 1.0
        lamps: i32 = 3
        lit: boolean = True

    class State(NamedTuple):
        steps: i32

    def reset(s, p, key):
        return Lamps.State(0)

    def step(s, p, action, key):
        return Lamps.State(s.steps + p.lamps), p.power if p.lit else 0.0, False

    def observe(s, p):
        return (s.steps,)


def test_numbers_are_taken_whatever_holds_them():
    given = {"power": torch.tensor([0.5, np.inf]), "lamps": np.array([2.0, 4.0]), "lit": [True, False]}
    floats, integers, per_env = pack_params(read(Lamps), given, 2)
    assert per_env and floats.tolist() == [[0.5, np.inf]]
    assert sorted(integers.tolist()) == [[1, 0], [2, 4]]


@pytest.mark.parametrize(
    ("name", "value", "takes"),
    [
        ("power", None, "numbers, got None"),
        ("power", float("nan"), "numbers, got nan"),
        ("power", [1.0, float("nan")], "numbers, got"),
        ("power", "2", "numbers, got '2'"),
        ("lamps", 2.5, "whole numbers of 32 bits, got 2.5"),
        ("lamps", 2**31, "whole numbers of 32 bits, got 2147483648"),
        ("lamps", float("inf"), "whole numbers of 32 bits, got inf"),
        ("lamps", None, "whole numbers of 32 bits, got None"),
    ],
)
def test_what_a_parameter_cannot_hold_is_refused_by_name(name, value, takes):
    with pytest.raises(ValueError, match=rf"parameter '{name}' takes {takes}"):
        pack_params(read(Lamps), {name: value}, 2)
