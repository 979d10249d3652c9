"""A kernel compared with its reference: the first field that differs is named with both values."""

from __future__ import annotations

from typing import NamedTuple

import gymnasium
import numpy as np
import pytest

from headrace import envs
from headrace.checks.against import against, kolmogorov_smirnov
from headrace.data.spaces import Box, Dict, Discrete
from headrace.envs import sources
from headrace.envs.builtin.cartpole import CartPole
from headrace.envs.builtin.pendulum import Pendulum
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import f32, i32, sin, uniform


def cartpole():
    return gymnasium.make("CartPole-v1")


def compared(cls, reference=cartpole, **options):
    return {one.check: one for one in against(cls, reference, backend="torch", **{"steps": 400} | options)}


class Spring(gymnasium.Env):
    """A mass on a spring, with attributes for its state; ends when it is far out."""

    observation_space, action_space = Box(-9, 9, (2,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.speed, self.count = *self.np_random.uniform(-1, 1, 2), 0
        return self._seen(), {}

    def step(self, action):
        self.speed += 0.1 * (2 * action - 1 - np.sin(self.place))
        self.place += 0.1 * self.speed
        self.count += 1
        return self._seen(), -abs(self.place), bool(abs(self.place) > 1.2), False, {}

    def _seen(self):
        return np.array([self.place, self.speed], np.float32)


class Port(KernelEnv):
    """Spring, without errors."""

    observation_space, action_space = Spring.observation_space, Spring.action_space

    class State(NamedTuple):
        place: f32
        speed: f32
        count: i32

    def reset(s, p, key):
        return Port.State(uniform(key, 0, -1.0, 1.0), uniform(key, 1, -1.0, 1.0), 0)

    def step(s, p, action, key):
        speed = s.speed + 0.1 * (2.0 * action - 1.0 - sin(s.place))
        place = s.place + 0.1 * speed
        return Port.State(place, speed, s.count + 1), -abs(place), abs(place) > 1.2

    def observe(s, p):
        return s.place, s.speed

    def from_original(env):
        return Port.State(env.place, env.speed, env.count)


class Settable(Port):
    """The same; the state of its reference can be set."""

    def to_original(env, state):
        env.place, env.speed, env.count = float(state.place), float(state.speed), int(state.count)


class LateSpeed(Port):
    """Moves by the speed before the step: one line is wrong."""

    def step(s, p, action, key):
        speed = s.speed + 0.1 * (2.0 * action - 1.0 - sin(s.place))
        place = s.place + 0.1 * s.speed
        return Port.State(place, speed, s.count + 1), -abs(place), abs(place) > 1.2


class WrongReward(Port):
    def step(s, p, action, key):
        state, reward, far = Port.step(s, p, action, key)
        return state, reward - 0.5, far


class WrongStart(Port):
    def reset(s, p, key):
        return Port.State(uniform(key, 0, -1.0, 1.0), uniform(key, 1, -0.5, 0.5), 0)


@pytest.mark.parametrize("cls", [Port, Settable])
def test_a_correct_port_passes(cls):
    found = compared(cls, Spring)
    assert {one.outcome for one in found.values()} == {"ok"}
    assert (
        found["single steps"].found.startswith("400 steps of ") and "agree within 1e-05" in found["single steps"].found
    )


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "MountainCar-v0"])
def test_ports_pass_without_hooks_or_with_their_own(name):
    found = compared(sources.find(envs.spec(name).entry), envs.factory(name), steps=600)
    assert {one.outcome for one in found.values()} <= {"ok", "note"}
    unseen = "" if name == "CartPole-v1" else "; none of them terminated, so that endings are not compared"
    assert found["single steps"].found.endswith(f"agree within 1e-05{unseen}")


def test_the_first_field_that_differs_is_named_with_both_values():
    wrong = compared(LateSpeed, Spring)["single steps"]
    assert wrong.outcome == "wrong" and "400 of 400 steps" in wrong.found
    step, kernel, reference = _numbers(wrong.found, "state.place")
    assert step == 0
    env = Spring()
    env.reset(seed=0)
    env.action_space.seed(0)
    place, speed = np.float32(env.place), np.float32(env.speed)
    env.step(env.action_space.sample())
    assert reference == pytest.approx(env.place, abs=1e-6) and kernel == pytest.approx(place + 0.1 * speed, abs=1e-6)
    assert "from place=" in wrong.found and "headrace.single" in wrong.advice


def test_reward_and_endings_are_compared():
    wrong = compared(WrongReward, Spring)["single steps"]
    _, kernel, reference = _numbers(wrong.found, "reward")
    assert wrong.outcome == "wrong" and kernel == pytest.approx(reference - 0.5)


def test_initial_states_are_compared():
    found = compared(WrongStart, Spring)
    assert found["single steps"].outcome == "ok" and found["resets"].outcome == "wrong"
    assert "speed begins in [-0.4" in found["resets"].found and "[-0.9" in found["resets"].found
    assert "reset() computes speed" in found["resets"].advice


def test_spaces_and_limits_are_compared_first():
    found = compared(Pendulum, cartpole)
    assert (
        found["observation_space"].outcome == found["action_space"].outcome == "wrong" and "single steps" not in found
    )
    assert "(3,)" in found["observation_space"].found and "Discrete(2) in the reference" in found["action_space"].found
    longer = compared(CartPole, lambda: gymnasium.make("CartPole-v1", max_episode_steps=400))
    assert (
        longer["max_steps"].outcome == "note" and longer["max_steps"].found == "500 in the kernel, 400 in the reference"
    )


class Parts(Spring):
    """Spring, whose observations have names that Gymnasium sorts: speed comes before x."""

    observation_space = Dict({"x": Box(-9, 9, (1,)), "speed": Box(-9, 9, (1,))})

    def _seen(self):
        return {"x": np.float32([self.place]), "speed": np.float32([self.speed])}


class Swapped(Port):
    """The port of Parts with a flat observation, in Gymnasium's order."""

    def observe(s, p, out):
        out[0] = s.speed
        out[1] = s.place


class Named(Port):
    """The port of Parts with the names of its observation, of which Headrace takes `observation` first."""

    observation_space = Dict({"observation": Box(-9, 9, (1,)), "a": Box(-9, 9, (1,))})


class Renamed(Parts):
    """Parts with the names of Named."""

    observation_space = Named.observation_space

    def _seen(self):
        return {"observation": np.float32([self.place]), "a": np.float32([self.speed])}


class Flat(Spring):
    """Renamed, flat in Gymnasium's order: `a` is before `observation`."""

    def _seen(self):
        return super()._seen()[::-1]


@pytest.mark.parametrize(("port", "reference"), [(Swapped, Parts), (Named, Renamed), (Named, Flat)])
def test_a_dict_of_vectors_is_compared_with_its_numbers_in_gymnasiums_order(port, reference):
    found = compared(port, reference)
    assert found["observation_space"].outcome == "note" and "of 2 and 2 numbers" in found["observation_space"].found
    assert found["single steps"].outcome == "ok"


def test_a_dict_in_another_order_or_of_other_size_is_wrong():
    found = compared(Port, Parts)["single steps"]
    assert found.outcome == "wrong" and "observation[0] is" in found.found

    class Longer(Parts):
        observation_space = Dict({"x": Box(-9, 9, (1,)), "speed": Box(-9, 9, (2,))})

    found = compared(Port, Longer)["observation_space"]
    assert found.outcome == "wrong" and found.found.endswith("of 2 and 3 numbers")
    assert "Box(-9.0, 9.0, (2,)" in found.found and "'speed': Box(-9.0, 9.0, (2,)" in found.found


def test_for_a_state_that_cannot_be_read_the_error_says_what_to_write():
    plain = type("Plain", (KernelEnv,), {k: v for k, v in vars(Port).items() if k != "from_original"})
    with pytest.raises(TypeError, match=r"cannot be read as Plain.State\(place, speed, count\).*from_original\(env\)"):
        compared(plain, Spring)


def test_the_distance_of_two_samples_is_scipys():
    from scipy import stats  # two seconds

    rng = np.random.default_rng(0)
    one, other = rng.normal(size=50), rng.normal(0.3, size=80)
    assert kolmogorov_smirnov(one, other) == pytest.approx(stats.ks_2samp(one, other).statistic)


def _numbers(found, field):
    """step, value of the kernel and value of the reference in a finding."""
    step, rest = found.split("differ. step ")[1].split(f": {field} is ")
    kernel, rest = rest.split(" in the kernel and ")
    return int(step), float(kernel), float(rest.split(" in the reference")[0])
