"""Errors that compiled code does not check are found in plain Python, with their line, and in bounded time."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from headrace import Box, Discrete, KernelEnv, envs
from headrace.checks import environment, unchecked
from headrace.envs.builtin.cartpole import CartPole
from headrace.envs.builtin.grid_world import GridWorld
from headrace.envs.builtin.pursuit import Pursuit
from headrace.envs.compiled.single_env import single
from headrace.kernels.language.ops import array, f32, i32


class Sound(KernelEnv):
    """Walks over four cells."""

    observation_space = Box(-10.0, 10.0, (1,))
    action_space = Discrete(3)
    max_steps = 20

    class State(NamedTuple):
        place: i32
        cells: array(f32, 4)

    def reset(s, p, key):
        for i in range(4):
            s.cells[i] = 1.0 * i
        return Sound.State(0, s.cells)

    def step(s, p, action, key):
        return Sound.State((s.place + action) % 4, s.cells), s.cells[s.place], False

    def observe(s, p):
        return (s.cells[s.place],)


class Beyond(Sound):
    """One action in one state leads out of the array."""

    action_space = Discrete(7)

    def step(s, p, action, key):
        place = s.place + 2 if (action == 5) & (s.place == 3) else (s.place + action) % 4  # line of "place + 2"
        return Sound.State(place, s.cells), 0.0, False


class Unbound(Sound):
    """A name that only one branch gives a value."""

    def step(s, p, action, key):
        if action < 2:
            reward = 1.0
        return Sound.State(s.place, s.cells), reward, False


class Endless(Sound):
    """A loop that one action never leaves."""

    def step(s, p, action, key):
        n = 0
        while action == 2:
            n = n + 1
        return Sound.State(s.place, s.cells), 1.0 * n, False


class Uncompiled(Sound):
    """Refused before it runs."""

    def step(s, p, action, key):
        return Sound.State(s.place, s.cells), "one", False


@pytest.mark.parametrize("cls", [Sound, GridWorld, Pursuit])
def test_a_sound_environment_passes(cls):
    found = unchecked.check(cls, steps=40, seconds=60.0, seed=0)
    assert found.outcome == "ok" and "from 40 states every index is in range" in found.found
    assert found.found.startswith(f"in {40 * (cls.action_space.n + 1):,} steps")


@pytest.mark.parametrize(
    ("cls", "words"),
    [
        (
            Beyond,
            ("observe() raised IndexError: index 5 is out of bounds", "(action 5, state place=5, cells=[0. 1. 2. 3.])"),
        ),
        (Unbound, ("step() raised UnboundLocalError", "'reward'", "(action 2, ")),
        (Endless, ("step() did not return within 0.3 s (action 2, ",)),
        (Uncompiled, ("the string `'one'` cannot be compiled",)),
    ],
)
def test_what_compiled_code_does_not_look_at_is_found(cls, words, monkeypatch):
    monkeypatch.setattr(unchecked, "LIMIT", 0.3)
    report = environment.check(cls, steps=200, seconds=60.0, measure=0.0)
    (found,) = report.findings
    assert found.outcome == "wrong" and report.times is None and report.costs == []
    assert all(text in found.found for text in words), found.found
    assert f"{__file__}:" in found.found


def test_params_cannot_be_set_later():
    env = envs.make("CartPole-v1", 4, params={"gravity": 3.0})
    with pytest.raises(AttributeError, match=r"make\(..., params={'gravity': 5.0}\)"):
        env.params = {"gravity": 5.0}
    assert env.params == {"gravity": 3.0}


def test_params_of_plain_python_take_effect_when_set():
    plain = single(CartPole, {"gravity": 3.0})
    plain.params = {"force": 5.0}
    assert (plain.p.gravity, plain.p.force) == pytest.approx((9.8, 5.0)) and plain.params == {"force": 5.0}
    with pytest.raises(ValueError, match="no parameter 'mass'"):
        plain.params = {"mass": 5.0}
