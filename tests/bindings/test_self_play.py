"""Self-play in one compiled call: the same bits as the plain loop over moves, for games of every kind."""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

import pytest
import torch
from gymnasium.spaces import Box
from helpers.three_moves import ThreeMoves, three_moves_aec

import headrace as hr
from headrace.bindings.collecting import acting, self_play
from headrace.core import fused
from headrace.envs.builtin.connect_four import ConnectFourPlayers
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import array, f32, i8, i32, randint
from headrace.parallel.collector import steps
from headrace.self_play.games import SelfPlayEnv
from headrace.self_play.league import LATEST

SMALL = {"num_envs": 8, "num_steps": 8, "hidden": (8,), "minibatch_size": 32, "epochs": 1, "opponents": 2}
BLOCKS = {"num_envs": 150, "num_steps": 12, "hidden": (24, 24), "minibatch_size": 600, "epochs": 1, "opponents": 7}
OWN = {"self_play": True, "registered": False, "seed": 3}
COLUMNS = ("observation", "valid", "action", "log_prob", "value", "reward", "terminated", "truncated")
COLUMNS += ("episode_return", "episode_length")
OWN_STATE = ("_return", "_margin", "_length", "_played", "_rated", "_scores", "_games")


class Dice(KernelEnv):
    """A die says which of two agents moves next, so that one may move several times. Actions are of two numbers; the
    first state has an array, and games end by truncation or with a total above 3."""

    observation_space = Box(-10.0, 10.0, (4,))
    action_space = Box(-1.0, 1.0, (2,))
    num_agents = 2
    agents = ("one", "other")
    max_steps = 9

    class State(NamedTuple):
        moved: array(i8, 2)
        mover: i32
        total: f32

    def reset(s, p, key):
        s.moved[0] = 0
        s.moved[1] = 0
        return Dice.State(s.moved, randint(key, 0, 2), 0.0)

    def step(s, p, action, key):
        gain = action[0][0] - action[0][1] if s.mover == 0 else action[1][1] - action[1][0]
        s.moved[s.mover] = s.moved[s.mover] + 1
        total = s.total + gain
        first = gain if s.mover == 0 else -0.5 * gain
        return Dice.State(s.moved, randint(key, 0, 2), total), (first, -0.7 * first), (total > 3.0) | (total < -3.0)

    def observe(s, p, agent):
        return s.moved[0], s.moved[1], s.total, agent


def serving(trainer):
    """The kernel that collects."""
    with torch.no_grad():
        return fused.kernel_of(steps, trainer.collector, 0)


def played(source, settings, alone=True, rollouts=5, state=None):
    """Columns of some rollouts, and the state after them. alone: with the kernel for whole games, else without."""
    kernels = fused._kernels["collector.steps"]
    before, columns = kernels[:], []
    with closing(hr.Trainer("ppo", source, **OWN, **settings)) as trainer:
        assert serving(trainer) is self_play.steps
        if state is not None:
            trainer.load_state_dict(state)
        kernels[:] = kernels if alone else [kernel for kernel in kernels if kernel.call is not self_play.steps]
        try:
            for _ in range(rollouts):
                trainer.iterate()
                columns.append({name: getattr(trainer.collector.rollout, name).clone() for name in COLUMNS})
        finally:
            kernels[:] = before
        return columns, trainer.state_dict(), trainer.env


def assert_same(found, expected):
    for row, (mine, theirs) in enumerate(zip(found[0], expected[0], strict=True)):
        for name in COLUMNS:
            assert torch.equal(mine[name], theirs[name]), f"{name} of rollout {row}"
    for name in OWN_STATE:
        assert torch.equal(getattr(found[2], name), getattr(expected[2], name)), name
    assert found[2].league.state_dict()["rating"] == expected[2].league.state_dict()["rating"]
    assert found[2]._draws == expected[2]._draws and found[2]._steps == expected[2]._steps


@pytest.mark.parametrize("settings", [SMALL, BLOCKS], ids=["few", "blocks"])
@pytest.mark.parametrize("source", [ThreeMoves, ConnectFourPlayers, "Pursuit", Dice])
def test_games_in_one_call_have_the_bits_of_games_by_moves(source, settings):
    settings = settings | {"snapshot_freq": 6 * settings["num_envs"]}
    found, expected = (played(source, settings, alone) for alone in (True, False))
    assert_same(found, expected)
    assert found[2].league.taken > 2 and min(found[2].league.drawn) == LATEST < max(found[2].league.drawn)
    if source is ThreeMoves:
        assert sum(snapshot.games for snapshot in found[2].league.pool) > 0


def test_an_opponent_that_moves_several_times_draws_anew(monkeypatch):
    """An opponent moves in one step of the learner as often as the die says, each time with other draws."""
    counted = []
    monkeypatch.setattr(SelfPlayEnv, "_opponents_act", _noting(SelfPlayEnv._opponents_act, counted))
    played(Dice, SMALL, alone=False, rollouts=2)
    assert max(moves for moves, _ in counted) >= 2
    for (moves, one), (next_moves, two) in pairwise(counted):
        assert next_moves == 0 or (next_moves == moves + 1 and not torch.equal(one, two))


def _noting(act, counted):
    def noted(self, row, moves):
        act(self, row, moves)
        counted.append((moves, self._inner.action[row].clone()))

    return noted


def test_returns_in_other_units_are_the_same_bits():
    settings = SMALL | {"normalize_return": True, "normalize_observation": True}
    assert_same(*(played(Dice, settings, alone) for alone in (True, False)))


def test_bits_do_not_depend_on_threads(monkeypatch):
    monkeypatch.setattr(acting, "WORTH_HELP", 0)
    found = []
    for threads in ("1", "3"):
        monkeypatch.setenv("HEADRACE_THREADS", threads)
        found.append(played(ConnectFourPlayers, BLOCKS, rollouts=3))
    assert_same(*found)


def test_a_call_goes_on_where_the_plain_loop_stopped():
    whole = played(Dice, SMALL, rollouts=6)
    _, state, _ = played(Dice, SMALL, alone=False, rollouts=3)
    rest = played(Dice, SMALL, rollouts=3, state=state)
    assert_same((whole[0][3:], *whole[1:]), rest)


@pytest.mark.parametrize("settings", [{"layer_norm": True}, {"shared": True, "activation": "relu"}])
def test_policies_of_other_shapes_have_the_same_bits(settings):
    assert_same(*(played("Pursuit", SMALL | settings, alone, rollouts=2) for alone in (True, False)))


def test_games_that_are_not_compiled_are_played_by_moves():
    pytest.importorskip("pettingzoo")
    with closing(hr.Trainer("ppo", three_moves_aec, **OWN, **SMALL)) as trainer:
        assert serving(trainer) is not self_play.steps
    with closing(hr.Trainer("ppo", ThreeMoves, **OWN, **SMALL, backend="torch")) as trainer:
        assert serving(trainer) is not self_play.steps


def test_an_opponent_that_was_changed_by_hand_plays_as_it_is():
    with closing(hr.Trainer("ppo", "Pursuit", **OWN, **SMALL)) as trainer:
        assert serving(trainer) is self_play.steps
        trainer.env._rivals[0].actor.register_forward_hook(lambda *_: None)
        assert serving(trainer) is not self_play.steps
