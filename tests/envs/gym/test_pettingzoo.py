"""Worlds that several agents share: columns of a rollout, endings, groups."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, Text
from helpers.relay import Mortal, Relay, Returning, Silent

from headrace import envs
from headrace.data.rollout import Rollout
from headrace.envs.gym.agent_groups import grouped, role
from headrace.envs.gym.inline import env_seed
from headrace.envs.gym.pettingzoo import PettingZooEnv, inline
from headrace.envs.gym.unread import STILL_LISTED, collected

WIDE = (Box(-1, 300, (3,)), Box(-1, 1, (2,)))


def run(env, num_steps, seed=0):
    """A rollout of so many steps, with the actions of row t all t % 2."""
    rollout = env.rollout(num_steps, env.columns())
    env.reset(rollout, seed)
    for t in range(num_steps):
        members = [member for _, member in rollout.action] if env.agent_groups.nested else [rollout.action]
        for member in members:
            member[t] = t % 2
        env.step(rollout, t)
    return rollout


def rows(column):
    """[T, N] as one list for each env."""
    return column.int().T.tolist()


def test_an_agent_that_ends_is_dead_until_all_have_ended():
    env = envs.make(lambda: Relay({"a": 2, "b": 4}), 1)
    rollout = run(env, 7)
    assert (env.num_envs, env.num_agents, env.num_copies, env.agents) == (2, 2, 1, ("a", "b"))
    assert rows(rollout.valid) == [[1, 1, 0, 0, 0, 1, 1, 0], [1, 1, 1, 1, 0, 1, 1, 1]]
    assert rows(rollout.reward) == [[1, 2, 0, 0, 0, 1, 2], [1, 2, 3, 4, 0, 1, 2]]
    assert rows(rollout.terminated) == [[0, 1, 0, 0, 0, 0, 1], [0, 0, 0, 1, 0, 0, 0]]
    assert not rollout.truncated.any()
    assert rollout.observation[:, 0, 0].tolist() == [0, 1, 2, 2, 2, 0, 1, 2]  # the final one stays
    assert rollout.observation[:, 1, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]


def test_the_first_dead_row_alone_tells_of_an_agents_episode():
    rollout = run(envs.make(lambda: Relay({"a": 2, "b": 4}), 1), 5)
    rollout.episode_length[:2] = 0  # what stands in valid rows is nothing
    assert rows(rollout.episode_length) == [[0, 0, 2, 0, 0], [0, 0, 0, 0, 4]]
    assert rollout.episode_return[2:, 0].tolist() == [3, 0, 0] and rollout.episode_return[4, 1] == 10


def test_worlds_end_independently_and_agents_lie_side_by_side():
    lasts = iter([2, 3])
    rollout = run(envs.make(lambda: Relay(dict.fromkeys(("a", "b"), next(lasts))), 2), 4)
    assert rows(rollout.valid) == [[1, 1, 0, 1, 1], [1, 1, 1, 0, 1]] * 2  # column agent * worlds + world
    assert rollout.observation[0, :, 1].tolist() == [0, 0, 1, 1]


def test_an_agent_may_join_late():
    rollout = run(envs.make(lambda: Relay({"a": 9, "b": 4}, joins={"b": 2}), 1), 5)
    assert rows(rollout.valid)[1] == [0, 0, 1, 1, 0, 0]
    assert rows(rollout.reward)[1] == [0, 0, 3, 4, 0]
    assert rollout.observation[:, 1, 0].tolist() == [0, 0, 2, 3, 4, 4]
    assert (rollout.episode_return[4, 1], rollout.episode_length[4, 1]) == (7, 2)
    assert rollout.episode_length[:2, 1].tolist() == [0, 0]


def test_an_agent_that_returns_acts_again_and_its_second_life_is_an_episode():
    rollout = run(envs.make(lambda: Returning({"a": 7, "b": 9}), 1), 8)
    assert rows(rollout.valid) == [[1] * 7 + [0, 1], [1, 1, 0, 0, 1, 0, 0, 0, 1]]
    assert rows(rollout.terminated)[1] == [0, 1, 0, 0, 1, 0, 0, 0]
    assert rows(rollout.reward)[1] == [1, 2, 0, 0, 5, 0, 0, 0]
    assert rollout.observation[:, 1, 0].tolist() == [0, 1, 2, 2, 4, 5, 5, 5, 0]
    ends = ~rollout.valid[:8, 1]
    assert rollout.episode_return[:8, 1][ends].tolist() == [3, 0, 5, 0, 0]
    assert rollout.episode_length[:8, 1][ends].tolist() == [2, 0, 1, 0, 0]


def test_an_agent_that_ends_and_does_not_leave_is_masked_and_a_line_says_so():
    class Lingering(Relay):
        def step(self, actions):
            self.agents = list(actions)
            outcome = super().step(actions)
            self.agents = ["a", "b"] if "a" in self.agents else []
            return outcome

    with collected() as found:
        rollout = run(envs.make(lambda: Lingering({"a": 7, "b": 2}), 1), 7)
    assert rows(rollout.valid) == [[1] * 7 + [0], [1, 1, 0, 0, 0, 0, 0, 0]]
    assert list(found) == [STILL_LISTED]


def test_an_agent_that_vanishes_is_truncated_and_keeps_its_last_observation():
    rollout = run(envs.make(lambda: Silent({"a": 2, "b": 4}), 1), 5)
    assert rows(rollout.truncated) == [[0, 1, 0, 0, 0], [0, 0, 0, 1, 0]]
    assert not rollout.terminated.any()
    assert rollout.observation[:, 0, 0].tolist() == [0, 1, 1, 1, 1, 0]


def test_time_limits_truncate():
    rollout = run(envs.make(lambda: Relay({"a": 2, "b": 2}, ending="truncated"), 1), 3)
    assert rows(rollout.truncated) == [[0, 1, 0]] * 2 and not rollout.terminated.any()


def test_actions_reach_their_agent_as_its_space_has_them():
    env = envs.make(lambda: Relay({"a": 3, "b": 2, "c": 3}, spaces={"b": WIDE}), 2)
    rollout = Rollout(2, env.num_envs, env.columns())
    env.reset(rollout, 0)
    first, second = env.groups
    getattr(rollout.action, first)[:] = torch.tensor([0, 1, 2, 1], dtype=torch.int32)
    getattr(rollout.action, second)[:] = torch.tensor([[0.5, -3.0], [0.25, 1.0]])
    env.step(rollout, 0)
    told = [world.told[0] for world in env.envs]
    assert [(one["a"], one["c"]) for one in told] == [(0, 2), (1, 1)]
    assert [one["b"].tolist() for one in told] == [[0.5, -1.0], [0.25, 1.0]]


def test_agents_of_different_spaces_have_columns_of_their_own():
    env = envs.make(lambda: Relay({"fox_0": 2, "hen_0": 3, "fox_1": 2}, spaces={"hen_0": WIDE}), 2)
    assert env.groups == {"fox": ("fox_0", "fox_1"), "hen": ("hen_0",)}
    assert env.agents == ("fox_0", "fox_1", "hen_0") and env.agent_groups.nested
    rollout = run(env, 3)
    assert rollout.observation.fox.shape == (4, 4, 2) and rollout.observation.hen.shape == (4, 2, 3)
    assert rollout.action.fox.dtype == torch.int32 and rollout.action.hen.shape == (3, 2, 2)
    assert rollout.observation.hen[:, 0, 0].tolist() == [0, 1, 2, 3]
    assert rollout.observation.fox[0, :, 1].tolist() == [0, 0, 2, 2]  # as possible_agents counts them
    assert rows(rollout.valid)[4:] == [[1, 1, 1, 0]] * 2


def test_every_world_has_a_seed_of_its_own_and_only_once():
    env = envs.make(lambda: Relay({"a": 1}), 2)
    run(env, 3, seed=5)
    assert [world.seeds for world in env.envs] == [[env_seed(5, k), None] for k in range(2)]


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("spaces", {"fox+hen": ("fox_0", "fox_1", "hen_0"), "hen": ("hen_1",)}),
        ("names", {"fox": ("fox_0", "fox_1"), "hen": ("hen_0",), "hen:2": ("hen_1",)}),
        ("agents", {name: (name,) for name in ("fox_0", "fox_1", "hen_0", "hen_1")}),
        ({"x": ["hen_0", "fox_1"], "y": ["fox_0"], "z": ["hen_1"]}, None),
    ],
)
def test_groups(by, groups):
    spaces = {
        name: WIDE if name == "hen_1" else (Discrete(2), Discrete(2)) for name in ("fox_0", "fox_1", "hen_0", "hen_1")
    }
    expected = groups or {name: tuple(agents) for name, agents in by.items()}
    assert grouped(spaces, by) == expected


def test_one_group_is_called_all_and_names_lose_their_number():
    assert grouped({"fox_0": WIDE, "hen_0": WIDE}) == {"all": ("fox_0", "hen_0")}
    assert [role(name) for name in ("fox_0", "fox12", "first-3", "7")] == ["fox", "fox", "first", "7"]


def test_mistakes_are_named():
    spaces = {"a": WIDE, "b": (Discrete(2), Discrete(2))}
    with pytest.raises(ValueError, match=r"one of spaces, names, agents, or groups by name, got 'teams'"):
        grouped(spaces, "teams")
    with pytest.raises(ValueError, match=r"must name each of a, b once, got \{'x': \['a'\]\}"):
        grouped(spaces, {"x": ["a"]})
    with pytest.raises(ValueError, match=r"in x a has the spaces .*, b "):
        grouped(spaces, {"x": ["a", "b"]})
    with pytest.raises(TypeError, match=r"^observation of b: Text"):
        envs.make(lambda: Relay({"a": 1, "b": 1}, spaces={"b": (Text(3), Discrete(2))}), 1)
    with pytest.raises(ValueError, match="CartPole-v1 has one agent, and group_by='agents' is for several"):
        envs.make("CartPole-v1", 1, backend="inline", group_by="agents")


TURNS = """
class raw_env:
    metadata = {"is_parallelizable": False}
    possible_agents = ["a", "b"]

    def observation_space(self, agent): ...
    def action_space(self, agent): ...
    def reset(self, seed=None, options=None): ...
    def step(self, action): ...
    def agent_iter(self): ...
    def close(self): ...
"""


def test_worlds_that_break_the_rules_are_named():
    class NoOneHere(Relay):
        def reset(self, seed=None, options=None):
            super().reset()
            self.agents = []
            return {}, {}

    class Blind(Relay):
        def step(self, actions):
            return {}, *super().step(actions)[1:]

    class Wrong(Relay):
        def step(self, actions):
            return super().step(actions)[0]

    class Misshapen(Relay):
        def look(self, agent):
            return np.zeros(3, np.float32)

    class Texts(Relay):
        def step(self, actions):
            seen, rewards, *rest = super().step(actions)
            return seen, dict.fromkeys(rewards, "1.5"), *rest

    for world, error, says in [
        (NoOneHere, ValueError, "after reset.. there is no agent"),
        (Blind, ValueError, "b is among the agents, and has no observation"),
        (Wrong, TypeError, "must give five dicts by agent: observations, rewards"),
        (Misshapen, ValueError, "of a does not fit its observation_space Box.* its shape is .3,., not .2,"),
        (Texts, TypeError, "its reward of a is '1.5', a str"),
    ]:
        with pytest.raises(error, match=says) as raised:
            run(envs.make(lambda world=world: world({"a": 1, "b": 3}), 2), 2, seed=3)
        assert any("in env 0 of 2" in note and "the run's 3" in note for note in raised.value.__notes__)


def test_a_module_alone_says_what_is_missing():
    pytest.importorskip("mpe2")
    with pytest.raises(ValueError, match=r"it is a module; .* mpe2.simple_spread_v3:parallel_env"):
        envs.make("mpe2.simple_spread_v3", 1)


def test_turn_taking_worlds_are_refused():
    simple = pytest.importorskip("mpe2.simple_spread_v3")
    with pytest.raises(TypeError, match="agents take turns: give its parallel_env"):
        envs.make(lambda: simple.env(), 1)


def test_games_in_which_agents_can_only_take_turns_are_not_told_to_give_what_they_lack(tmp_path, monkeypatch):
    (tmp_path / "four_in_a_row.py").write_text(TURNS)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"it is a module; name .* four_in_a_row:env, whose agents take turns"):
        envs.make("four_in_a_row", 1)


def test_a_world_that_fails_is_made_anew_where_asked():
    made = []

    def world():
        made.append(Relay({"a": 9, "b": 2}, fails_at=3 if not made else None))
        return made[-1]

    env = inline(world, 1, "Relay", restart=True)
    rollout = run(env, 6)
    assert env.restarts == 1 and len(made) == 2 and made[1].seeds == [env_seed(0, 0, 1)]
    assert rows(rollout.valid) == [[1, 1, 1, 0, 1, 1, 1], [1, 1, 0, 0, 1, 1, 0]]
    assert rows(rollout.truncated)[0] == [0, 0, 1, 0, 0, 0] and rollout.reward[2, 0] == 0
    assert not rollout.episode_return[3].any() and not rollout.episode_length[3].any()  # nor is it an episode's end


@pytest.mark.parametrize("spaces", [{}, {"b": WIDE}], ids=["one group", "two groups"])
def test_agents_of_a_process_that_is_killed_are_truncated_and_begin_anew(tmp_path, spaces):
    def world():
        return Mortal({"a": 9, "b": 9, "c": 2}, tmp_path / "died", dies_at=3, spaces=spaces)

    env = envs.make(world, 2, workers=2, on_error="restart")
    try:
        rollout = run(env, 5)
        assert env.restarts == 1 and env.num_envs == 6
        cut = rollout.truncated.int().argmax(0)  # which of the two dies is the system's choice
        lost = next(world for world in range(2) if cut[env.agents.index("a") * 2 + world])
        for agent, valid, truncated in [
            ("a", [1, 1, 1, 0, 1, 1], [0, 0, 1, 0, 0]),
            ("b", [1, 1, 1, 0, 1, 1], [0, 0, 1, 0, 0]),
            ("c", [1, 1, 0, 0, 1, 1], [0, 0, 0, 0, 0]),
        ]:
            column = env.agents.index(agent) * 2 + lost
            assert rows(rollout.valid)[column] == valid and rows(rollout.truncated)[column] == truncated
            kept = env.agents.index(agent) * 2 + 1 - lost
            assert not rollout.truncated[:, kept].any() and rollout.valid[:3, kept].all() == (agent != "c")
    finally:
        env.close()


def test_going_on_from_a_saved_state_begins_new_episodes():
    env = envs.make(lambda: Relay({"a": 9, "b": 9}), 2)
    rollout = Rollout(3, 4, env.columns())
    env.reset(rollout, 0)
    env.load_state_dict(env.state_dict())
    for t in range(3):
        env.step(rollout, t)
    assert rows(rollout.valid) == [[0, 1, 1, 1]] * 4
    assert not rollout.episode_length[0].any() and not rollout.reward[0].any()


@pytest.mark.parametrize("name", ["simple_spread_v3", "simple_tag_v3", "simple_speaker_listener_v4"])
def test_columns_hold_what_pettingzoo_itself_gives(name):
    module = pytest.importorskip(f"mpe2.{name}")
    env = envs.make(f"mpe2.{name}:parallel_env", 1, max_cycles=4)
    assert isinstance(env, PettingZooEnv)
    rollout = run(env, 5)
    world = module.parallel_env(max_cycles=4)
    seen, _ = world.reset(seed=env_seed(0, 0))
    for t in range(4):
        for agent in env.agents:
            group, place = next((g, them.index(agent)) for g, them in env.groups.items() if agent in them)
            column = getattr(rollout.observation, group) if env.agent_groups.nested else rollout.observation
            np.testing.assert_array_equal(column[t, place], seen[agent])
        seen, rewards, _, truncated, _ = world.step(dict.fromkeys(world.agents, t % 2))
        np.testing.assert_array_equal(rollout.reward[t], np.float32([rewards[agent] for agent in env.agents]))
        assert rollout.truncated[t].tolist() == [truncated[agent] for agent in env.agents]
    assert rows(rollout.valid) == [[1, 1, 1, 1, 0, 1]] * env.num_envs


def test_switches_and_nested_spaces_go_through():
    space = (Box(0, 255, (4, 4, 3), np.uint8), MultiBinary(2))
    rollout = run(envs.make(lambda: Relay({"a": 2, "b": 2}, spaces={"a": space, "b": space}), 1), 1)
    assert rollout.observation.dtype == torch.uint8 and (rollout.observation[1] == 1).all()
    assert rollout.action.shape == (1, 2, 2)
