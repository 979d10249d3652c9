"""Gymnasium environments behind the Env protocol."""

from __future__ import annotations

import re

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text, Tuple
from gymnasium.wrappers import TransformReward

from headrace import envs
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
from headrace.envs.gym import inline
from headrace.envs.gym.inline import InlineEnv, env_seed


class Counting(gymnasium.Env):
    """Shows how often it was stepped; ends after `length` steps, with reward 1, 2, 3 ...; keeps what it is given."""

    observation_space = Box(0, np.inf, (2,), np.float64)
    action_space = Discrete(3, start=5)

    def __init__(self, length: int = 3, action_space: gymnasium.Space | None = None, fails_at: int | None = None):
        self.length, self.fails_at = length, fails_at
        self.action_space = action_space or self.action_space
        self.actions, self.seeds, self.count = [], [], 0

    def look(self):
        return np.array([self.count, self.length], np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.count = 0
        return self.look(), {}

    def step(self, action):
        self.actions.append(action)
        self.count += 1
        if self.count == self.fails_at:
            raise RuntimeError("the gearbox broke")
        return self.look(), float(self.count), self.count == self.length, False, {}


class Rich(Counting):
    """Observations of every supported kind, nested."""

    observation_space = Dict(
        {
            "camera": Box(0, 255, (4, 6, 3), np.uint8),
            "body": Dict({"joints": Box(-1, 1, (2,), np.float64), "gear": Discrete(4)}),
            "switches": MultiDiscrete([3, 50]),
        }
    )

    def look(self):
        joints = np.array([0.1, 0.2]) * self.count
        return {
            "camera": np.full((4, 6, 3), self.count, np.uint8),
            "body": {"joints": joints, "gear": self.count},
            "switches": np.array([1, 10 * self.count]),
        }


def rollout_of(env, num_steps: int) -> Rollout:
    columns = env_columns(env.observation_space) | {"action": action_column(env.action_space)}
    return Rollout(num_steps, env.num_envs, columns)


def test_endings_leave_a_dead_row_with_the_episodes_return_and_length():
    env = InlineEnv(lambda: Counting(length=3), 1, "Counting")
    rollout = rollout_of(env, 6)
    rollout.reward.fill_(9.0)
    env.reset(rollout, seed=0)
    for t in range(6):
        rollout.action[t] = 5
        env.step(rollout, t)
    assert rollout.observation[:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert rollout.valid[:, 0].tolist() == [True, True, True, False, True, True, True]
    assert rollout.reward[:, 0].tolist() == [1, 2, 3, 0, 1, 2]
    assert rollout.terminated[:, 0].tolist() == [False, False, True, False, False, False]
    assert not rollout.truncated.any()
    assert rollout.episode_return[3, 0] == 6 and rollout.episode_length[3, 0] == 3


def test_environments_end_independently():
    lengths = iter([2, 3, 5])
    env = InlineEnv(lambda: Counting(length=next(lengths)), 3, "Counting")
    rollout = rollout_of(env, 6)
    env.reset(rollout, seed=0)
    for t in range(6):
        env.step(rollout, t)
    assert rollout.valid[:6].T.tolist() == [
        [True, True, False, True, True, False],
        [True, True, True, False, True, True],
        [True, True, True, True, True, False],
    ]


def test_the_next_rollout_continues_from_the_bootstrap_row():
    env = InlineEnv(lambda: Counting(length=4), 1, "Counting")
    rollout = rollout_of(env, 3)
    env.reset(rollout, seed=0)
    seen = []
    for _ in range(3):
        for t in range(3):
            env.step(rollout, t)
        seen += rollout.observation[:3, 0, 0].tolist()
        rollout.continue_from(rollout)
    assert seen == [0, 1, 2, 3, 4, 0, 1, 2, 3]


def test_time_limits_truncate():
    env = envs.make(Counting, 1, length=100, wrappers=[lambda world: gymnasium.wrappers.TimeLimit(world, 2)])
    rollout = rollout_of(env, 3)
    env.reset(rollout, seed=0)
    for t in range(3):
        env.step(rollout, t)
    assert rollout.truncated[:, 0].tolist() == [False, True, False]
    assert not rollout.terminated.any()
    assert rollout.valid[:, 0].tolist() == [True, True, False, True]


def test_nested_observations_fill_nested_columns_in_their_own_dtypes():
    env = InlineEnv(Rich, 2, "Rich")
    rollout = rollout_of(env, 2)
    env.reset(rollout, seed=0)
    for t in range(2):
        env.step(rollout, t)
    observation = rollout.observation[2]
    assert observation.camera.dtype == torch.uint8 and observation.camera.shape == (2, 4, 6, 3)
    assert (observation.camera == 2).all()
    assert observation.body.joints.dtype == torch.float32
    assert torch.allclose(observation.body.joints, torch.tensor([[0.2, 0.4]] * 2))
    assert observation.body.gear.tolist() == [2, 2]
    assert observation.switches.tolist() == [[1, 20]] * 2


@pytest.mark.parametrize(
    ("space", "given", "handed"),
    [
        (Discrete(3, start=5), [5, 7], [5, 7]),
        (MultiDiscrete([3, 4]), [[2, 0], [1, 3]], [[2, 0], [1, 3]]),
        (Box(-1, 2, (2,)), [[-3.0, 0.5], [1.0, 7.0]], [[-1.0, 0.5], [1.0, 2.0]]),
        (Box(-1, 2, (2,), np.float64), [[-3.0, 0.5], [1.0, 7.0]], [[-1.0, 0.5], [1.0, 2.0]]),
    ],
)
@pytest.mark.parametrize("num_envs", [1, 2])
def test_actions_arrive_as_the_space_wants_them(num_envs, space, given, handed):
    given, handed = given[:num_envs], handed[:num_envs]
    env = InlineEnv(lambda: Counting(action_space=space), num_envs, "Counting")
    rollout = rollout_of(env, 1)
    env.reset(rollout, seed=0)
    rollout.action[0] = torch.tensor(given)
    env.step(rollout, 0)
    received = [world.actions[0] for world in env.envs]
    assert all(space.contains(action) for action in received)
    assert [action.tolist() for action in received] == handed
    assert rollout.action[0].tolist() == given  # the column keeps what the policy said


def test_each_environment_is_seeded_once_and_differently():
    env = InlineEnv(Counting, 3, "Counting")
    rollout = rollout_of(env, 8)
    env.reset(rollout, seed=4)
    for t in range(8):
        env.step(rollout, t)
    first = [world.seeds[0] for world in env.envs]
    assert first == [env_seed(4, index) for index in range(3)]
    assert len({*first, *(env_seed(5, index) for index in range(3))}) == 6
    assert all(set(world.seeds[1:]) == {None} for world in env.envs)


def test_seeds_may_be_any_integer():
    assert len({env_seed(seed, 0) for seed in (0, 1, 2**40, 2**63, -1)}) == 5


def collect(source, seed: int, num_steps: int = 300) -> Rollout:
    env = envs.make(source, 2, backend="inline")
    rollout = rollout_of(env, num_steps)
    env.reset(rollout, seed)
    choice = np.random.default_rng(0)
    for t in range(num_steps):
        rollout.action[t] = torch.from_numpy(choice.integers(env.action_space.n, size=2))
        env.step(rollout, t)
    env.close()
    return rollout


def test_same_seed_same_rollout():
    one, again, other = collect("CartPole-v1", 1), collect("CartPole-v1", 1), collect("CartPole-v1", 2)
    assert torch.equal(one.observation, again.observation) and torch.equal(one.valid, again.valid)
    assert not torch.equal(one.observation, other.observation)


def test_an_error_inside_names_environment_episode_step_and_seed():
    fails = iter([None, 7])
    env = InlineEnv(lambda: Counting(length=10, fails_at=next(fails)), 2, "Counting")
    rollout = rollout_of(env, 8)
    env.reset(rollout, seed=3)
    with pytest.raises(RuntimeError, match="gearbox") as caught:
        for t in range(8):
            env.step(rollout, t)
    (note,) = caught.value.__notes__
    assert note == f"in env 1 of 2 of Counting, episode 0, step 6; its seed was {env_seed(3, 1)}, the run's 3"


@pytest.mark.parametrize(
    ("observation_space", "action_space", "named"),
    [
        (Tuple((Discrete(2), Text(3))), Discrete(2), r"^observation\[1\]: Text"),
        (Box(0, 1, (2,)), Box(0, 1, (2, 0)), "^action: Box"),
        (Box(0, 1, (2,)), Dict({"a": Text(2)}), r"^action\['a'\]: Text"),
    ],
)
def test_unsupported_spaces_are_refused_when_made(observation_space, action_space, named):
    closed = []

    class Odd(Counting):
        def close(self):
            closed.append(self)

    Odd.observation_space = observation_space
    with pytest.raises(TypeError, match=named):
        envs.make(Odd, 4, action_space=action_space)
    assert len(closed) == 1


def test_going_on_from_a_saved_state_begins_new_episodes():
    env = InlineEnv(lambda: Counting(length=50), 2, "Counting")
    rollout = rollout_of(env, 4)
    env.reset(rollout, seed=0)
    assert env.state_dict() == {}
    rollout.observation[0] = 33.0  # what the interrupted run last saw
    env.load_state_dict({})
    for t in range(4):
        env.step(rollout, t)
    assert not rollout.valid[0].any() and rollout.valid[1:].all()
    assert rollout.observation[1:, :, 0].T.tolist() == [[0, 1, 2, 3]] * 2
    assert rollout.reward[0].tolist() == [0, 0] and rollout.episode_length[0].tolist() == [0, 0]


def test_wrappers_and_keyword_arguments_reach_the_environment():
    env = envs.make(
        "Pendulum-v1", 1, backend="inline", g=0.0, wrappers=[lambda world: TransformReward(world, lambda r: 42.0)]
    )
    assert env.envs[0].unwrapped.g == 0.0
    rollout = rollout_of(env, 1)
    env.reset(rollout, seed=0)
    env.step(rollout, 0)
    assert rollout.reward[0, 0] == 42.0


def test_closing_twice_does_no_harm():
    env = envs.make("CartPole-v1", 2, backend="inline")
    env.close()
    env.close()


def test_lunar_lander_by_id():
    pytest.importorskip("Box2D")
    rollout = collect("LunarLander-v3", 0, 400)
    assert rollout.observation.shape == (401, 2, 8)
    dead = ~rollout.valid[:400]
    assert dead.sum() >= 4  # a random lander crashes after some 90 steps
    assert (rollout.episode_length[dead] > 40).all() and (rollout.episode_return[dead] < 100).all()
    live = rollout.reward[:400][rollout.valid[:400]].sum()
    assert torch.isfinite(live) and (rollout.reward[:400][dead] == 0).all()


@pytest.mark.parametrize(
    ("outcome", "message"),
    [
        ((np.zeros(2), None, False, False, {}), "it must give \\(observation, reward: a number"),
        ((np.zeros(2), 1.0, False, {}), "it must give \\(observation, reward: a number"),
        ((np.zeros(3), 1.0, False, False, {}), "does not fit the observation_space Box.*: its shape is .3,., not .2,"),
        ((np.array(["1", "2"]), 1.0, False, False, {}), "its entries are of dtype <U1, not numbers"),
        ((["1", "2"], 1.0, False, False, {}), "its entries are of dtype <U1, not numbers"),
        ((np.zeros(2), "1.5", False, False, {}), "info\\); its reward is '1.5', a str"),
        ((np.zeros(2), np.array("1.5"), False, False, {}), "its reward is array.*, a ndarray"),
        ((np.zeros(2), 1.0, "False", False, {}), "its terminated is 'False', a str"),
        ((np.zeros(2), 1.0, False, None, {}), "its truncated is None, a NoneType"),
    ],
)
def test_a_step_that_gives_something_else_is_shown(outcome, message):
    class Odd(Counting):
        def step(self, action):
            return outcome

    env = envs.make(Odd, 2)
    rollout = Rollout(2, 2, env_columns(env.observation_space) | {"action": action_column(env.action_space)})
    env.reset(rollout, 0)
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        env.step(rollout, 0)
    assert "in env 0 of 2" in caught.value.__notes__[0]


def test_environments_that_take_long_to_make_are_counted(monkeypatch, capsys):
    clock = iter(range(0, 1000, 2))  # s
    monkeypatch.setattr(inline, "perf_counter", lambda: float(next(clock)))
    envs.make(Counting, 5).close()
    said = capsys.readouterr().err.splitlines()
    assert said and all(re.fullmatch(r"made \d of 5 environments of .*Counting ...", line) for line in said)
    envs.make(Counting, 1).close()
    assert capsys.readouterr().err == ""


def test_messages_show_the_beginning_of_large_values():
    class Vast(Counting):
        observation_space = Box(-np.ones(2000), np.arange(1.0, 2001.0), dtype=np.float64)

        def look(self):
            return np.random.default_rng(0).random((2, 900))

    env = envs.make(Vast, 1)
    rollout = Rollout(2, 1, env_columns(env.observation_space) | {"action": action_column(env.action_space)})
    with pytest.raises(ValueError, match=r"its shape is \(2, 900\), not \(2000,\)") as caught:
        env.reset(rollout, 0)
    assert len(str(caught.value)) < 600 and "\n" not in str(caught.value)


def test_numbers_of_other_types_are_taken():
    class Odd(Counting):
        def step(self, action):
            return np.zeros(2), np.array([1.5]), np.array(False), 0, {}

    env = envs.make(Odd, 1)
    rollout = Rollout(2, 1, env_columns(env.observation_space) | {"action": action_column(env.action_space)})
    env.reset(rollout, 0)
    env.step(rollout, 0)
    assert rollout.reward[0].tolist() == [1.5] and not rollout.terminated[0].any() and rollout.valid[1].all()


def test_a_reset_that_gives_something_else_is_shown():
    class Old(Counting):
        def reset(self, *, seed=None, options=None):
            return self.look()

    env = envs.make(Old, 2)
    rollout = Rollout(2, 2, env_columns(env.observation_space) | {"action": action_column(env.action_space)})
    with pytest.raises(TypeError, match=r"reset\(\) gave .* it must give \(observation, info\)"):
        env.reset(rollout, 0)
