"""One environment in plain Python, against Gymnasium's checker and against the compiled kernels."""

import sys
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from helpers.kernel_envs import Medley, rollout

from headrace import Box, Discrete, KernelEnv
from headrace.envs.builtin.acrobot import Acrobot
from headrace.envs.builtin.cartpole import CartPole
from headrace.envs.builtin.catch import Catch
from headrace.envs.builtin.grid_world import GridWorld
from headrace.envs.builtin.mountain_car_continuous import MountainCarContinuous
from headrace.envs.builtin.pendulum import Pendulum
from headrace.envs.compiled.env import CompiledEnv
from headrace.envs.compiled.single_env import single
from headrace.kernels.language.errors import EnvError
from headrace.kernels.language.ops import f32
from headrace.kernels.language.read import read

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
from my_env import Collect

WORLDS = [CartPole, Acrobot, Pendulum, MountainCarContinuous, Catch, GridWorld, Collect, Medley]


@pytest.mark.parametrize("cls", WORLDS)
@pytest.mark.filterwarnings("ignore:.*(infinity|Not able to test|render):UserWarning")
def test_passes_gymnasiums_checker(cls):
    check_env(single(cls), skip_render_check=True)


@pytest.mark.parametrize("cls", WORLDS)
def test_plain_python_is_what_the_kernel_does(cls):
    """Step for step from the same state: float32 apart in observation, reward and state, equal in every flag."""
    plain, compiled = single(cls).unwrapped, CompiledEnv(cls, 1, threads=1)
    columns = rollout(read(cls), 150, 1)
    compiled.reset(columns, 5)
    observation, _ = plain.reset(seed=5)
    ended = False
    for t in range(150):
        np.testing.assert_allclose(observation, columns.observation[t, 0], rtol=1e-5, atol=2e-6)
        assert bool(columns.valid[t, 0]) is not ended
        compiled.step(columns, t)
        if ended:
            observation, _ = plain.reset()
            ended = False
        else:
            observation, reward, terminated, truncated, _ = plain.step(columns.action[t, 0].numpy())
            assert reward == pytest.approx(float(columns.reward[t, 0]), rel=1e-5, abs=1e-5)
            assert (terminated, truncated) == (bool(columns.terminated[t, 0]), bool(columns.truncated[t, 0]))
            ended = terminated or truncated
        _align(plain, compiled)


def _align(plain, compiled):
    """States agree; the plain environment continues from the kernel's state, so that no difference grows."""
    state = {name: value[0].numpy() for name, value in compiled.target.state().items()}
    for name, value in plain.state._asdict().items():
        np.testing.assert_allclose(np.asarray(value, np.float64), state[name], rtol=1e-5, atol=1e-5, err_msg=name)
    kept = {
        n: type(getattr(plain.state, n))(v) if v.ndim == 0 else v.copy().view(type(getattr(plain.state, n)))
        for n, v in state.items()
    }
    plain.state = plain.state._replace(**kept)


@pytest.mark.parametrize("cls", [CartPole, Catch, Medley])
def test_compiled_it_has_the_states_of_plain_python(cls):
    """Two episodes, the first of them cut short. After each step both go on from the same state."""
    plain, fast = single(cls).unwrapped, single(cls, compiled=True).unwrapped
    fast.action_space.seed(0)
    for seed, length in ((5, 4), (None, 40)):
        (observation, _), (seen, _) = plain.reset(seed=seed), fast.reset(seed=seed)
        over = False
        for _ in range(length):
            assert seen.dtype == observation.dtype
            np.testing.assert_allclose(seen, observation, rtol=1e-5, atol=2e-6)
            for name, value in plain.state._asdict().items():
                ours = getattr(fast.state, name)
                assert type(ours) is type(value), name
                np.testing.assert_allclose(np.asarray(ours, np.float64), value, rtol=1e-5, atol=1e-5, err_msg=name)
            if over:
                break
            fast.state = plain.state
            action = fast.action_space.sample()
            observation, reward, terminated, truncated, _ = plain.step(action)
            seen, *outcome, _ = fast.step(action)
            assert outcome == [pytest.approx(reward, rel=1e-5, abs=1e-5), terminated, truncated]
            over = terminated or truncated


def test_compiled_its_parameters_may_be_set():
    env = single(CartPole, {"gravity": 20.0}, compiled=True).unwrapped
    speeds = []
    for gravity in (20.0, 5.0):
        env.params = {"gravity": gravity}
        env.reset(seed=0)
        env.state = CartPole.State(0.0, 0.0, 0.1, 0.0)
        speeds.append(env.step(1)[0][3])
    assert speeds[0] > speeds[1]
    with pytest.raises(RuntimeError, match="call reset"):
        single(CartPole, compiled=True).step(0)


def test_seeds_and_episodes():
    env = single(CartPole)
    first, _ = env.reset(seed=1)
    second, _ = env.reset()
    again, _ = env.reset(seed=1)
    assert np.array_equal(first, again) and not np.array_equal(first, second)
    assert np.array_equal(env.reset()[0], second)
    columns = rollout(read(CartPole), 1, 3)
    CompiledEnv(CartPole, 3).reset(columns, 1)
    assert torch.equal(columns.observation[0, 0], torch.from_numpy(first))


def test_parameters_and_errors():
    heavy, usual = single(CartPole, {"gravity": 20.0}), single(CartPole)
    for env in (heavy, usual):
        env.reset(seed=0)
        env.unwrapped.state = CartPole.State(0.0, 0.0, 0.1, 0.0)
    assert heavy.step(1)[0][3] > usual.step(1)[0][3]
    with pytest.raises(RuntimeError, match="call reset"):
        single(CartPole).step(0)
    with pytest.raises(ValueError, match="no parameter 'mass'"):
        single(CartPole, {"mass": 1.0})
    with pytest.raises(ValueError, match="no render_mode 'human'"):
        single(Catch, render_mode="human")
    assert isinstance(single(CartPole), gymnasium.Env)


class Talking(KernelEnv):
    """Prints what it does."""

    observation_space = Box(-10.0, 10.0, (1,))
    action_space = Discrete(2)

    class State(NamedTuple):
        x: f32

    def reset(s, p, key):
        return Talking.State(0.0)

    def step(s, p, action, key):
        print(f"at {s.x} by", action)
        return Talking.State(s.x + 1.0), 0.0, False

    def observe(s, p):
        return (s.x,)


def test_plain_python_may_print_and_compiled_code_may_not(capsys):
    env = single(Talking)
    env.reset(seed=0)
    env.step(1)
    assert capsys.readouterr().out == "at 0.0 by 1\n"
    with pytest.raises(EnvError, match=r"print\(\) cannot run in a compiled environment. .*headrace.single"):
        read(Talking)
