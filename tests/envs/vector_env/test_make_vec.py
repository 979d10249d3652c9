"""make_vec(): vector environments for other libraries' loops, compared with Gymnasium's SyncVectorEnv."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import SyncVectorEnv

import headrace as hr
from headrace import envs as registered
from headrace import gym
from headrace.envs import sources
from headrace.envs.construct import entry_of
from headrace.envs.vector_env.batches import write
from headrace.envs.vector_env.vector_stepping import VectorStepping

MODES = ("NextStep", "SameStep")


def equal(one: Any, other: Any) -> bool:
    """Tell whether two values are equal bit for bit, with their types and dtypes."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        if one.dtype == object:
            return all(equal(a, b) for a, b in zip(one, other, strict=True))
        return one.dtype == other.dtype and np.array_equal(one, other)
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("mode", MODES)
def test_compiled_steps_are_those_of_the_reference_from_the_same_state(mode):
    num = 5
    ours = hr.make_vec("CartPole-v1", num, autoreset_mode=mode)
    reference = SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * num, autoreset_mode=mode)
    ours.reset(seed=0)
    reference.reset(seed=0)
    generator, ends = np.random.default_rng(0), 0
    for _ in range(120):
        states = zip(*map(ours.get_attr, ("x", "velocity", "angle", "spin")), strict=True)
        for copy, values in zip(reference.envs, states, strict=True):
            copy.unwrapped.state = np.array(values, np.float64)
        actions = generator.integers(0, 2, num)
        mine, theirs = ours.step(actions), reference.step(actions)
        for flags, expected in zip(mine[2:4], theirs[2:4], strict=True):
            assert np.array_equal(flags, expected)
        ended = theirs[2] | theirs[3]
        begun = ended if mode == "SameStep" else reset_now(theirs)
        np.testing.assert_allclose(mine[0][~begun], theirs[0][~begun], rtol=1e-5, atol=1e-6)
        assert np.abs(mine[0][begun]).max(initial=0) <= 0.05  # the range of first observations
        np.testing.assert_array_equal(mine[1], theirs[1].astype(np.float32))
        if mode == "SameStep" and ended.any():
            for place in np.flatnonzero(ended):
                np.testing.assert_allclose(mine[4]["final_obs"][place], theirs[4]["final_obs"][place], rtol=1e-5)
            assert np.array_equal(mine[4]["_final_obs"], theirs[4]["_final_obs"])
            assert mine[4].keys() == theirs[4].keys() and mine[4]["final_info"] == {}
        ends += ended.sum()
    assert ends > 10


def reset_now(outcome: Any) -> np.ndarray:
    """Mask of environments that the step has reset: CartPole's reward is 1 at each step, and 0 at those that reset."""
    return outcome[1] == 0


@pytest.mark.parametrize("mode", MODES)
def test_compiled_episode_statistics_are_sums_of_rewards_and_steps(mode):
    num = 40
    ours = hr.make_vec("Catch", num, autoreset_mode=mode, episode_statistics=True)
    ours.reset(seed=3)
    returns, lengths, masked, ends = np.zeros(num), np.zeros(num, int), np.zeros(num, bool), 0
    for step in range(100):
        _, reward, terminated, truncated, infos = ours.step(np.full(num, step % 3))
        returns, lengths = returns + reward, lengths + ~masked
        ended = terminated | truncated
        masked = ended & (mode == "NextStep")
        if ended.any():
            ends += ended.sum()
            assert np.array_equal(infos["_episode"], ended)
            np.testing.assert_array_equal(infos["episode"]["r"][ended], returns[ended].astype(np.float32))
            np.testing.assert_array_equal(infos["episode"]["l"][ended], lengths[ended])
            assert (infos["episode"]["t"][ended] > 0).all()
            returns[ended], lengths[ended] = 0, 0
        else:
            assert infos == {}
    assert ends >= 3 * num


@pytest.mark.parametrize(
    ("source", "backend"),
    [("CartPole-v1", "cpu"), ("GridWorld", "cpu"), ("PixelCatch", "cpu"), ("CartPole-v1", "torch")],
)
def test_both_modes_give_the_same_episodes(source, backend):
    """Each environment goes through the same observations in SAME_STEP, without the steps that reset."""
    num, seen = 3, {}
    space = hr.make_vec(source, 1).single_action_space
    for mode in MODES:
        ours = hr.make_vec(source, num, autoreset_mode=mode, backend=backend)
        observation, _ = ours.reset(seed=1)
        rows: list[list[np.ndarray]] = [[first] for first in observation]
        masked, steps = np.zeros(num, bool), np.zeros(num, int)
        while min(map(len, rows)) < 60:
            actions = (steps * 7 + steps // 5) % space.n  # a function of each environment's own step
            observation, _, terminated, truncated, infos = ours.step(actions.astype(int))
            ended = terminated | truncated
            for place in range(num):
                if mode == "SameStep" and ended[place]:
                    rows[place].append(infos["final_obs"][place])
                rows[place].append(observation[place])
            steps += ~masked
            masked = ended & (mode == "NextStep")
        seen[mode] = rows
    for one, other in zip(seen["NextStep"], seen["SameStep"], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one[:60], other[:60], strict=True))


def test_a_seed_gives_the_same_episodes_and_a_mask_resets_some():
    ours = hr.make_vec("CartPole-v1", 3)
    first, _ = ours.reset(seed=4)
    again, _ = ours.reset()
    assert not np.array_equal(first, again)  # the next episodes
    assert np.array_equal(ours.reset(seed=4)[0], first)
    before = ours.step(np.zeros(3, int))[0]
    after, _ = ours.reset(options={"reset_mask": np.array([False, True, False])})
    assert np.array_equal(after[[0, 2]], before[[0, 2]])
    assert np.array_equal(after[1], again[1])
    assert np.array_equal(ours.step(np.zeros(3, int))[0].shape, (3, 4))


def test_outputs_are_copies_or_share_memory():
    ours = hr.make_vec("CartPole-v1", 4)
    first, _ = ours.reset(seed=0)
    kept = first.copy()
    for _ in range(20):
        ours.step(np.zeros(4, int))
    assert np.array_equal(first, kept) and first.flags.c_contiguous
    shared = hr.make_vec("CartPole-v1", 4, output="torch", copy=False)
    observation, _ = shared.reset(seed=0)
    assert isinstance(observation, torch.Tensor)
    assert observation.data_ptr() == shared._rollout.observation[0].data_ptr()
    for step in range(20):  # an output keeps its values during the next step
        kept = observation.clone()
        following = shared.step(torch.ones(4, dtype=torch.int64))[0]
        assert torch.equal(observation, kept), step
        observation = following


def test_state_and_parameters_are_read_and_set():
    ours = hr.make_vec("CartPole-v1", 2, params={"gravity": 3.0})
    ours.reset(seed=0)
    assert ours.get_attr("gravity") == (3.0, 3.0) and ours.get_attr("force") == (10.0, 10.0)
    name = next(iter(ours.env.target.state()))
    ours.set_attr(name, [0.25, -0.5])
    assert ours.get_attr(name) == (0.25, -0.5)
    ours.set_attr("gravity", [1.0, 1.0])
    assert ours.get_attr("gravity") == (1.0, 1.0) == tuple([ours.params["gravity"]] * 2)
    with pytest.raises(ValueError, match="gravity"):
        ours.set_attr("gravity", [1.0, 2.0])  # they were made with one number
    with pytest.raises(AttributeError, match=r"'colour' is no parameter of CartPole-v1 \(gravity, .*its state \("):
        ours.set_attr("colour", 1.0)
    with pytest.raises(AttributeError, match=r"params cannot be set: make them with make_vec"):
        ours.params = {"gravity": 1.0}
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        ours.get_attr("colour")


@pytest.mark.parametrize(
    ("do", "message"),
    [
        (lambda: hr.make_vec("CartPole-v1", 2).step([0, 0]), r"step\(\) before reset"),
        (lambda: ready().step(np.zeros(3, int)), r"shape \[2\], got \[3\]"),
        (lambda: ready().step(np.array([0, 2])), r"whole numbers of Discrete\(2\)"),
        (lambda: ready().step(np.zeros(2)), "float64"),
        (lambda: ready().reset(seed=[1, 2]), "one whole number"),
        (lambda: ready().reset(options={"low": 1}), "reset_mask alone"),
        (lambda: ready().reset(options={"reset_mask": np.zeros(2, bool)}), "with a True in it"),
        (lambda: hr.make_vec("CartPole-v1", 2, autoreset_mode="Disabled"), "NEXT_STEP and SAME_STEP"),
        (lambda: hr.make_vec("CartPole-v1", 2, output="jax"), "'numpy' or 'torch'"),
        (lambda: hr.make_vec("Pursuit", 2), "agents"),
        (lambda: hr.make_vec("MountainCarContinuous-v0", 2, backend="inline", threads=2), "takes no threads"),
        (lambda: gymnasium.make_vec("headrace/Catch", 2, render_mode="rgb_array"), "renders no images"),
    ],
)
def test_what_is_wrong_is_said(do: Callable[[], Any], message: str):
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
        do()


@pytest.mark.parametrize("workers", [None, 1])
def test_a_function_that_gives_the_same_environment_again_is_refused(workers: int | None):
    same = several_spaces()()
    with pytest.raises(ValueError, match=r"gave the same environment again, .*give `lambda: gymnasium\.make"):
        hr.make_vec(lambda: same, 2, workers=workers)


def ready() -> Any:
    ours = hr.make_vec("CartPole-v1", 2)
    ours.reset(seed=0)
    return ours


def several_spaces() -> Callable[[], gymnasium.Env]:
    """A maker of an environment with observations of every kind, and infos."""

    class Several(gymnasium.Env):
        observation_space = Dict(
            {
                "box": Box(-np.inf, np.inf, (2,), np.float64),
                "image": Box(0, 255, (4, 4, 3), np.uint8),
                "one": Discrete(50, start=-3),
                "more": MultiDiscrete([40, 50]),
                "bits": MultiBinary(3),
            }
        )
        action_space = MultiDiscrete([3, 2])
        metadata = {"render_modes": []}  # noqa: RUF012
        colour = "red"

        def sample(self):
            drawn = self.np_random.integers(0, 40, 6)
            return {
                "box": self.np_random.standard_normal(2),
                "image": np.full((4, 4, 3), drawn[0], np.uint8),
                "one": np.int64(drawn[1]),
                "more": drawn[2:4],
                "bits": (drawn[3:6] % 2).astype(np.int8),
            }

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.steps = 0
            return self.sample(), {"options": str(options)} if options else {}

        def step(self, action):
            self.steps += 1
            info = {"half": self.steps / 2, "text": f"{action}"} if self.steps % 3 == 0 else {}
            info |= {"array": np.arange(2) + self.steps, "inner": {"deep": self.steps}} if self.steps % 2 else {}
            ended = bool(self.np_random.random() < 0.2)
            return self.sample(), float(action.sum()) + 0.1, ended, self.steps == 7, info

        def speed(self, factor):
            return factor * self.steps

    return Several


@pytest.mark.parametrize("mode", [*MODES, "Disabled"])
def test_workers_give_the_bits_of_sync_vector_env(mode, workers):
    make, num = several_spaces(), 5
    ours = hr.make_vec(make, num, workers=workers, autoreset_mode=mode)
    reference = SyncVectorEnv([make] * num, autoreset_mode=mode)
    assert ours.single_observation_space == reference.single_observation_space
    assert all(map(equal, ours.reset(seed=7), reference.reset(seed=7)))
    reference.action_space.seed(0)
    for _ in range(40):
        actions = reference.action_space.sample()
        mine, theirs = ours.step(actions), reference.step(actions)
        assert all(equal(a, b) for a, b in zip(mine, theirs, strict=True))
        ended = theirs[2] | theirs[3]
        if mode == "Disabled" and ended.any():
            given = [{"reset_mask": ended.copy(), "level": 2} for _ in range(2)]
            assert all(map(equal, ours.reset(options=given[0]), reference.reset(options=given[1])))
    assert ours.call("speed", 2) == reference.call("speed", 2) and ours.get_attr("colour") == ("red",) * num
    ours.set_attr("colour", ["blue", "red", "red", "red", "green"])
    assert ours.get_attr("colour") == ("blue", "red", "red", "red", "green")
    seeds = [5, None, 4, 3, 2]
    assert ours.reset(seed=seeds)[0]["box"][0].tolist() == reference.reset(seed=seeds)[0]["box"][0].tolist()
    ours.close()


@pytest.fixture(scope="module")
def workers():
    with hr.Workers(2) as both:
        yield both


def failing() -> Callable[[], gymnasium.Env]:
    class Failing(several_spaces()):
        def step(self, action):
            raise OSError("the simulator is gone")

    return Failing


def worded() -> Callable[[], gymnasium.Env]:
    class Worded(several_spaces()):
        observation_space = Dict({"mission": Text(5)})

    return Worded


def test_errors_of_workers_are_raised_here():
    ours = hr.make_vec(failing(), 2, workers=1)
    ours.reset(seed=0)
    with pytest.raises(ValueError, match=r"actions .* are not of"):
        ours.step(np.zeros(2, int))
    with pytest.raises(OSError, match="the simulator is gone"):
        ours.step(np.zeros((2, 2), int))
    with pytest.raises(TypeError, match=r"\['mission'\] cannot be in shared memory.*leave workers out"):
        hr.make_vec(worded(), 2, workers=1)
    with pytest.raises(ValueError, match="between 1 and num_envs = 2, got 3"):
        hr.make_vec(worded(), 2, workers=3)


def test_gymnasium_makes_registered_ids_that_name_the_module():
    """Gymnasium makes the ids in another process, which has not imported headrace."""
    program = (
        "import gymnasium\n"
        "envs = gymnasium.make_vec('headrace.gym:headrace/CartPole-v1', num_envs=3, autoreset_mode='SameStep')\n"
        "print(type(envs).__name__, envs.reset(seed=0)[0].shape, envs.spec.max_episode_steps)\n"
        "print(gymnasium.make('headrace/CartPole-v1', gravity=3.0).unwrapped.p.gravity)\n"
    )
    lines = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert lines.splitlines() == ["CompiledVectorEnv (3, 4) 500", "3.0"]


def test_registered_ids_are_all_environments_of_one_agent():
    known = {}
    for name in (listed.name for listed in map(registered.spec, registered.registry.names()) if listed.listed):
        entry = entry_of(name)
        if sources.is_kernel(entry) and entry.num_agents == 1:
            known[name] = entry.max_steps
    assert known == gym.MAX_STEPS


@pytest.mark.filterwarnings("ignore:.*A Box observation space")
@pytest.mark.parametrize("name", gym.MAX_STEPS)
def test_gymnasiums_checker_passes(name):
    check_env(gymnasium.make(f"headrace/{name}").unwrapped, skip_render_check=True)


def test_make_takes_the_ids_too():
    assert hr.make("headrace/CartPole-v1", 2).backend == "cpu"


class Says(gymnasium.Env):
    """Gives these values at every step."""

    observation_space, action_space = Box(-9, 9, (2,)), Discrete(2)

    def __init__(self, *outcome):
        self.outcome = outcome

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return *self.outcome, {}


ZEROS = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("outcome", "wrong"),
    [
        ((ZEROS, "1.5", False, False), "its reward is '1.5', a str"),
        ((ZEROS, None, False, False), "its reward is None"),
        ((ZEROS, 1.0, "False", False), "its terminated is 'False'"),
        ((ZEROS, 1.0, False, "False"), "its truncated is 'False'"),
        ((np.array(["1", "2"]), 1.0, False, False), "dtype"),
        ((ZEROS, 1.0, False), r"it must give \(observation, reward: a number, .*expected 5, got 4"),
    ],
)
def test_text_is_no_number(outcome, wrong):
    env = hr.make_vec(lambda: Says(*outcome), 2)
    env.reset()
    with pytest.raises(TypeError, match=wrong):
        env.step(np.zeros(2, int))


def test_nor_is_it_in_a_worker():
    role = VectorStepping(cloudpickle.dumps(lambda: Says(ZEROS, "1.5", "", False)), 0, 1, 1, "NextStep", False, None)
    with pytest.raises(TypeError, match=r"its reward is '1\.5'|its terminated is ''"):
        role.envs[0].step(0)
    with pytest.raises(TypeError, match="dtype <U1, not numbers"):
        write([((), np.zeros((1, 2)))], 0, np.array(["1", "2"]))
