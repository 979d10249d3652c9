"""Models that MuJoCo steps in less time: the same bits, and the model itself where they would be others."""

from __future__ import annotations

import copy

import gymnasium
import numpy as np
import pytest

pytest.importorskip("mujoco")

import mujoco

from headrace.envs.vector import mujoco_models
from headrace.envs.vector.mujoco_models import listed, without_islands

ISLAND = int(getattr(mujoco.mjtDisableBit, "mjDSBL_ISLAND", 0))
LEG = '<joint axis="0 1 0"/><geom type="capsule" fromto="0 0 0 0 0 -0.4" size="0.05"/>'
ROBOT = f"""<mujoco><option solver="SOLVER"/><worldbody><geom name="floor" type="plane" size="9 9 1" margin="0.02"/>
  <body pos="0 0 0.5"><freejoint/><geom type="box" size="0.2 0.2 0.1" friction="0.3 0.1 0.2"/>
    <body pos="0.2 0 0">{LEG}</body><body pos="-0.2 0 0">{LEG}</body></body></worldbody>
  <actuator><motor joint="a" gear="3"/><motor joint="b" gear="3"/></actuator></mujoco>"""
ROBOT = ROBOT.replace("<joint", '<joint name="a"', 1).replace("<joint axis", '<joint name="b" axis', 1)
BALL = '<body pos="2 0 1"><freejoint/><geom size="0.1"/></body></worldbody>'


def model_of(tmp_path, solver: str = "Newton", change: tuple[str, str] = ("", "")):
    file = tmp_path / "robot.xml"
    file.write_text(ROBOT.replace("SOLVER", solver).replace(*change))
    return str(file), mujoco.MjModel.from_xml_path(str(file))


def path_of(model, steps: int = 800) -> np.ndarray:
    """States that simulations of a model reach, from four states with random controls."""
    random, found = np.random.default_rng(3), []
    for _ in range(4):
        data = mujoco.MjData(model)
        data.qvel[:] = random.normal(size=model.nv)
        for _ in range(steps // 4):
            data.ctrl[:] = random.uniform(-1, 1, model.nu)
            mujoco.mj_step(model, data, 3)
            found.append(np.concatenate([data.qpos, data.qvel, data.qfrc_constraint, [data.ncon]]))
    return np.array(found)


@pytest.mark.parametrize("solver", ["Newton", "CG", "PGS"])
def test_results_are_the_same_bits(solver, tmp_path):
    file, model = model_of(tmp_path, solver)
    found = listed(file, model, 3)
    without_islands(found)
    assert found is not model and found.npair == 4 and found.opt.disableflags & ISLAND == ISLAND
    expected = path_of(model)
    assert expected[:, -1].max() >= 3  # contacts
    np.testing.assert_array_equal(path_of(found), expected)


@pytest.mark.parametrize(("name", "pairs"), [("Ant", 13), ("HalfCheetah", 8), ("Hopper", 7), ("Walker2d", 7)])
def test_pairs_of_gymnasium_s_robots_are_listed(name, pairs):
    env = gymnasium.make(f"{name}-v5").unwrapped
    assert listed(env.fullpath, env.model, env.frame_skip).npair == pairs


@pytest.mark.parametrize(
    "change",
    [('<geom type="box"', '<geom type="box" priority="1"'), ('size="0.05"/>', 'size="0.05"/><geom size="0.1"/>')],
)
def test_models_of_other_rules_are_left_as_they_are(change, tmp_path):
    file, model = model_of(tmp_path, change=change)
    assert listed(file, model, 3) is model


def test_a_model_with_other_results_is_not_taken(monkeypatch, tmp_path):
    file, model = model_of(tmp_path)

    def slippery(spec, model, pairs):
        found = with_pairs(spec, model, pairs)
        found.pair_friction *= 0.999
        return found

    with_pairs = mujoco_models._with_pairs
    monkeypatch.setattr(mujoco_models, "_with_pairs", slippery)
    assert listed(file, model, 3) is model


def test_groups_are_looked_for_where_there_are_several_trees_or_some_sleep(tmp_path):
    one, two = model_of(tmp_path)[1], model_of(tmp_path, change=("</worldbody>", BALL))[1]
    sleepy = copy.copy(one)
    sleepy.opt.enableflags |= int(getattr(mujoco.mjtEnableBit, "mjENBL_SLEEP", 0))
    for model in (one, two, sleepy):
        without_islands(model)
    assert [bool(model.opt.disableflags & ISLAND) for model in (one, two, sleepy)] == [bool(ISLAND), False, False]
