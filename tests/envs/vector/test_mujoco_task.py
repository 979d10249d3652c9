"""MujocoTask: a model of the user's with compiled functions."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import pytest
import torch
from helpers.documents import ROOT, blocks

import headrace as hr
from headrace import Box, MujocoTask
from headrace.checks.environment import check
from headrace.core.user_names import import_user_module
from headrace.evaluation.video import play
from headrace.kernels.language.ops import f32, uniform

mujoco = pytest.importorskip("mujoco")

XML = """<mujoco><option timestep="0.01"/><worldbody>
<body name="ball" pos="0 0 1"><joint type="slide" axis="0 0 1"/><joint type="slide" axis="1 0 0"/>
<geom type="sphere" size="0.1" mass="1"/><site name="top" pos="0 0 0.1"/></body></worldbody>
<actuator><motor joint="0" gear="1" ctrllimited="true" ctrlrange="-2 2"/></actuator></mujoco>""".replace(
    'joint="0"', 'joint="up"'
).replace('axis="0 0 1"', 'name="up" axis="0 0 1"')


class Ball(MujocoTask):
    """A ball that falls."""

    xml = XML
    fields = ("qpos", "qvel", "site_xpos", "qpos_change")
    frame_skip = 3
    observation_space = Box(-np.inf, np.inf, (5,))
    max_steps = 8

    class Params(NamedTuple):
        mass: f32 = 1.0
        floor: f32 = -0.5

    def configure(model, p):
        model.body("ball").mass = p.mass

    def reset(s, p, key):
        s.qpos[0] = uniform(key, 0, -0.1, 0.1)
        s.qvel[1] = 0.5
        return s

    def observe(s, p):
        return s.qpos[0], s.qvel[0], s.site_xpos[0, 2], s.qpos_change[0], p.mass

    def reward(s, p, action):
        return s.qpos_change[1] + 10.0 * action[0]

    def ended(s, p):
        return s.qpos[0] < p.floor


def played(env, steps, seed=0, action=0.0):
    rollout = env.rollout(steps, env.columns())
    env.reset(rollout, seed)
    rollout.action.fill_(action)
    for t in range(steps):
        env.step(rollout, t)
    return rollout


def test_steps_are_mujoco_s():
    """Each simulation is compared with one that MuJoCo's own Python steps, from the same starts."""
    masses = np.array([0.5, 1.0, 4.0], np.float32)
    env = hr.make(Ball, 3, params={"mass": masses}, threads=2)
    rollout = played(env, 20, action=1.5)
    assert env.action_space == Box(np.float32([-2]), np.float32([2])) and env.backend == "vector"
    for i, mass in enumerate(masses):
        model = mujoco.MjModel.from_xml_string(XML)
        model.body("ball").mass = mass
        data = mujoco.MjData(model)
        mujoco.mj_setConst(model, data)
        length = 0
        for t in range(20):
            now = rollout.observation[t, i].numpy()
            if length == 0:
                mujoco.mj_resetData(model, data)
                data.qpos[0], data.qvel[1] = now[0], 0.5
                mujoco.mj_forward(model, data)
                assert now[3] == 0 and abs(now[0]) <= 0.1 and rollout.valid[t, i]
            assert now[4] == mass and now[2] == np.float32(data.site_xpos[0, 2]) and now[1] == np.float32(data.qvel[0])
            if not rollout.valid[t, i]:
                assert rollout.episode_length[t, i] == length and rollout.reward[t, i] == 0
                length = 0
                continue
            before, data.ctrl[0] = data.qpos.copy(), 1.5
            for _ in range(3):
                mujoco.mj_step(model, data)
            length += 1
            expected = np.float32(data.qpos[1] - before[1]) + np.float32(15)
            assert rollout.reward[t, i] == pytest.approx(expected, rel=1e-6)
            assert bool(rollout.terminated[t, i]) == (data.qpos[0] < -0.5)
            assert bool(rollout.truncated[t, i]) == (length == 8)


def test_seeds_threads_and_parts():
    first, again, other = (played(hr.make(Ball, 4, threads=n), 30, seed) for n, seed in ((1, 5), (2, 5), (1, 6)))
    assert torch.equal(first.observation, again.observation) and torch.equal(first.reward, again.reward)
    assert not torch.equal(first.observation, other.observation)
    part = hr.make(Ball, 2)
    part.first_env = 2
    assert torch.equal(played(part, 30, 5).observation, first.observation[:, 2:])


def test_parameters_change_while_they_are_used():
    env = hr.make(Ball, 2)
    assert (played(env, 4).observation[..., 4] == 1).all()
    falls = played(env, 4, action=1.0).observation[4, :, 1]
    env.set_params(mass=3.0)
    heavy = played(env, 4, action=1.0).observation
    assert (heavy[..., 4] == 3).all() and (heavy[4, :, 1] < falls - 0.05).all() and env.params == {"mass": 3.0}
    with pytest.raises(ValueError, match="no parameter 'weight'"):
        hr.make(Ball, 2, params={"weight": 1.0})


def test_a_training_evaluation_and_resuming():
    trainer = hr.Trainer("ppo", Ball, num_envs=4, num_steps=8, epochs=1, hidden=(8,))
    trainer.iterate()
    trainer.env.load_state_dict(trainer.env.state_dict())
    trainer.iterate()
    found = hr.evaluate(trainer.policy, Ball, episodes=6, params={"floor": -9.0})
    assert found.lengths == (8,) * 6


def test_an_unstable_simulation_ends_its_episode(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    env = hr.make(Ball, 3)
    rollout = env.rollout(3, env.columns())
    env.reset(rollout, 0)
    rollout.action.zero_()
    env._simulations.datas[1].qvel[:] = 1e30
    for t in range(3):
        env.step(rollout, t)
    assert rollout.terminated[0].tolist() == [False, True, False] and env.unstable == 1 and rollout.reward[0, 1] == 0
    assert rollout.valid[:, 1].tolist() == [True, False, True, True] and os.listdir(tmp_path) == []
    assert "Ball: MuJoCo found the simulation of environment 1 unstable" in capfd.readouterr().err


def test_a_line_comes_as_often_as_the_count_of_unstable_simulations_doubles(capfd):
    def far_off(s, p, key):
        s.qpos[0] = 1e30
        return s

    env = hr.make(_with(reset=far_off), 2)
    rollout = env.rollout(18, env.columns())
    env.reset(rollout, 0)
    rollout.action.zero_()
    for t in range(18):
        env.step(rollout, t)
    said = [line.split("(")[1] for line in capfd.readouterr().err.splitlines() if "unstable and reset" in line]
    assert env.unstable == 18 and said == ["2 so far)", "4 so far)", "8 so far)", "16 so far)"]


def test_without_a_reset_episodes_begin_in_the_model_s_own_state():
    env = hr.make(_with(reset=hr.MujocoTask.reset), 2)
    rollout = env.rollout(1, env.columns())
    env.reset(rollout, 0)
    data = mujoco.MjData(mujoco.MjModel.from_xml_string(Ball.xml))
    assert env._simulations.fields["qpos"].tolist() == [data.qpos.tolist()] * 2


def test_actions_that_are_no_numbers_are_errors():
    with pytest.raises(ValueError, match="the action of environment 0 of Ball is"):
        played(hr.make(Ball, 2), 1, action=float("nan"))


def _with(**members):
    return type("Mine", (Ball,), {"__module__": __name__, **members})


@pytest.mark.parametrize(
    ("members", "wrong"),
    [
        ({"xml": "<mujoco><worldbody><geom/></mujoco>"}, "MuJoCo does not take the xml of Mine: .*[Ee]rror"),
        ({"fields": ("qpos", "qpoz")}, "Mine.fields has 'qpoz', which mjData has not"),
        ({"fields": ("qpos", "sensordata")}, "'sensordata', which is empty for this model"),
        ({"action_space": Box(-1, 1, (3,))}, "Mine has 1 actuators and the action space Box"),
        ({"reward": None}, "Mine has no reward: write"),
        ({"xml": None}, "Mine has no xml"),
        ({"frame_skip": 0}, "frame_skip of Mine is 0: give a whole number of at least 1"),
    ],
)
def test_what_is_wrong_is_said(members, wrong):
    with pytest.raises(ValueError, match=wrong):
        hr.make(_with(**members), 2)


FALL = """import headrace as hr


class Fall(hr.MujocoTask):
    xml = "fall.xml"
    observation_space = hr.Box(-9, 9, (1,))

    def reset(s, p, key):
        return s

    def observe(s, p):
        return (s.qpos[0],)

    def reward(s, p, action):
        return s.qpos[0]
"""


def test_a_file_is_found_beside_the_class_and_named_in_errors(tmp_path, monkeypatch):
    file, model = tmp_path / "fall_task.py", tmp_path / "fall.xml"
    file.write_text(FALL)
    with pytest.raises(ValueError, match=r"does not say which class in it to use: use .*fall_task.py:Fall"):
        hr.make(str(file), 2)
    with pytest.raises(FileNotFoundError, match=r"Fall.xml names .*fall.xml, and there is no such file"):
        hr.make(f"{file}:Fall", 2)
    model.write_text(XML)
    monkeypatch.chdir("/")
    assert played(hr.make(f"{file}:Fall", 2), 3).reward[2, 0] < 0
    model.write_text(XML.replace("sphere", "ball"))
    with pytest.raises(ValueError, match=r"MuJoCo does not take .*fall.xml: .*invalid keyword"):
        hr.make(f"{file}:Fall", 2)


def test_options_of_compiled_environments_are_refused_by_other_vectors():
    with pytest.raises(ValueError, match="mujoco/Hopper-v5 comes as a vector of environments, which takes no params"):
        hr.make("mujoco/Hopper-v5", 2, params={"mass": 1})


def test_the_example_of_the_documents_learns(tmp_path):
    text = blocks(ROOT / "docs/robots.md")[0]
    assert len([line for line in text.splitlines() if line.strip()]) <= 40
    (tmp_path / "balance.py").write_text(text)
    task = import_user_module(f"{tmp_path}/balance.py").Balance
    trainer = hr.Trainer("ppo", task, num_envs=32, total_steps=20_000, seed=1)
    before = hr.evaluate(trainer.policy, task, episodes=16).mean
    while trainer.steps < 20_000:
        trainer.iterate()
    assert hr.evaluate(trainer.policy, task, episodes=16).mean > 2 * before


def test_a_check_knows_the_time_limit_and_does_not_time_compiling():
    class Long(Ball):
        max_steps = 100

        def ended(s, p):
            return False

    report = check(Long, 40, seconds=60.0, measure=0.01)
    (ending,) = [one for one in report.findings if one.check == "endings"]
    assert ending.outcome == "ok"
    assert ending.found == "no episode ended in 40 steps of each environment: its time limit is 100"
    assert report.times.reset < 0.1  # s; a compilation takes more
    for cost in report.costs:
        if cost.backend in ("inline", "workers"):
            assert "comes as a vector of environments, and none is made alone" in cost.note


def test_a_parameter_that_configure_misnames_is_told_with_those_there_are():
    class Heavy(Ball):
        def configure(model, p):
            model.body("ball").mass = p.mas

    with pytest.raises(ValueError, match=r"configure\(\) reads p.mas, and Params has mass, floor; did you mean 'mass'"):
        hr.make(Heavy, 2)


def test_what_makes_one_alone_says_what_does_work(tmp_path):
    with pytest.raises(TypeError, match=r"single\(\) is for a KernelEnv: make\(Ball, 1\) is a vector of one"):
        hr.single(Ball)
    with pytest.raises(ValueError, match=r"already: make it with make\(\), and step it as docs/robots.md shows"):
        hr.make_vec(Ball, 4)
    policy = hr.Trainer("ppo", Ball, num_envs=2, hidden=(4,)).policy
    with pytest.raises(ValueError, match=r"a MujocoTask is drawn by mujoco\.Renderer, as docs"):
        play(policy, Ball, tmp_path / "ball.gif")


def test_simulations_are_those_that_are_stepped():
    env = hr.make(Ball, 2)
    rollout = played(env, 3)
    for i, (model, data) in enumerate(env.simulations):
        assert model.nq == 2 and data.time == pytest.approx(3 * 3 * 0.01)
        assert rollout.observation[3, i, 0] == pytest.approx(data.qpos[0])


def test_a_training_that_ends_before_any_episode_can_says_so(tmp_path, capsys):
    class Flying(Ball):
        max_steps, ended = 100, MujocoTask.ended

    options = {"num_envs": 16, "num_steps": 8, "hidden": (4,), "scale": False, "log_folder": str(tmp_path)}
    line = "before step 1,600: 100 in each of 16 environments; total_steps is 256"
    for task, said in ((Flying, True), (Ball, False)):
        hr.train("ppo", task, total_steps=256, progress="plain", **options)
        assert (line in capsys.readouterr().out) == said
    hr.train("ppo", Flying, total_steps=1_600, progress="plain", **options)
    assert "no episode ends" not in capsys.readouterr().out
