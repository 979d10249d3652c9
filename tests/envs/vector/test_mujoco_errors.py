"""Errors of MuJoCo are Python errors that name the environment, and leave no file."""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("mujoco")

import mujoco

from headrace.envs.vector.mujoco_simulations import SILENCE, Simulations, _handlers
from headrace.kernels.physics import mujoco_errors
from headrace.kernels.physics.mujoco_errors import MOST, Guards

BOXES = "".join(
    f'<body pos="0 0 {1 + i * 0.3}"><freejoint/><geom type="box" size=".1 .1 .1"/></body>' for i in range(4)
)
SMALL = f'<mujoco><size memory="10K"/><worldbody><geom type="plane" size="5 5 .1"/>{BOXES}</worldbody></mujoco>'
LARGE = SMALL.replace('memory="10K"', 'memory="1M"')


def simulations(text: str, count: int) -> Simulations:
    found = Simulations("boxes", [mujoco.MjModel.from_xml_string(text)], count, ("qpos", "qvel"), 5)
    for i in range(count):
        found.begin(i, lambda data: None)
    return found


def step(found: Simulations, threads: int) -> np.ndarray | None:
    count = len(found.datas)
    return found.step(np.zeros((count, 0)), np.arange(count), threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_fatal_error_names_the_environment_and_can_be_reset(threads, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    found = simulations(SMALL, 3)
    found.begin(1, lambda data: data.qpos.__setitem__(2, 50.0))  # falls for longer
    with pytest.raises(mujoco.FatalError, match=r"environment [02] of boxes: mj_stackAlloc: out of memory"):
        for _ in range(100):
            step(found, threads)
    for i in range(3):
        found.begin(i, lambda data: None)
    assert step(found, threads) is None and np.isfinite(found.fields["qpos"]).all()
    assert os.listdir(tmp_path) == [] and "ERROR" not in capfd.readouterr().err


def test_one_that_fails_changes_no_other():
    failing, other = simulations(SMALL, 2), simulations(LARGE, 2)
    for _ in range(100):
        try:
            step(failing, 1)
        except mujoco.FatalError:
            break
        step(other, 2)
    alone = simulations(LARGE, 2)
    for _ in range(50):
        step(alone, 1)
    for _ in range(50 - round(other.datas[0].time / other.models[0].opt.timestep / 5)):
        step(other, 2)
    np.testing.assert_array_equal(alone.fields["qpos"], other.fields["qpos"])


def test_timers_are_off_in_steps_and_mujoco_s_functions_are_its_own_after_them():
    before = [place.value for place in _handlers()]
    with SILENCE, SILENCE:
        warning, error, clock = (place.value for place in _handlers())
    assert clock is None and None not in (warning, error) and before[2] is not None
    assert [place.value for place in _handlers()] == before
    found = simulations(LARGE, 1)
    step(found, 1)
    steps = int(mujoco.mjtTimer.mjTIMER_STEP)
    assert found.datas[0].timer.duration[steps] == 0
    mujoco.mj_step(found.models[0], found.datas[0])
    assert found.datas[0].timer.duration[steps] > 0


def test_resets_of_mujoco_are_seen_in_any_step_and_once():
    found = simulations(LARGE, 3)
    for i in range(4):
        if i == 2:
            found.datas[1].qvel[0] = 1e30
        unstable = step(found, 1)
        if i < 2:
            assert unstable is None
        else:
            assert unstable is not None and unstable.tolist() == [False, True, False]  # until it begins again
    found.begin(1, lambda data: None)
    assert step(found, 1) is None


def test_slots_are_given_back(monkeypatch):
    monkeypatch.setattr(mujoco_errors, "_taken", np.zeros(MOST, bool))
    for _ in range(3):
        kept = [Guards(MOST // 2), Guards(MOST // 2)]
        with pytest.raises(RuntimeError, match="too many"):
            Guards(1)
        for guards in kept:
            guards.close()
