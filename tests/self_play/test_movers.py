"""Games in which one agent moves several times in a row: after the other one has ended, or for ever."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from helpers.stepping import stepped
from helpers.three_moves import ThreeMoves, three_moves_aec

import headrace as hr
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import f32, i32
from headrace.policies.actor_critic import ActorCritic
from headrace.self_play import games
from headrace.self_play.games import SelfPlayEnv
from headrace.self_play.league import League

SMALL = {"num_envs": 4, "num_steps": 8, "hidden": (8,), "minibatch_size": 16, "epochs": 1, "registered": False}
SMALL |= {"self_play": True, "opponents": 1, "total_steps": 200, "progress": "none"}


def out_before_the_other():
    """An AECEnv: `first` is out after its second move, and `second` moves twice more, each worth 1 to it."""

    class Out(type(three_moves_aec())):
        metadata = {"name": "out", "is_parallelizable": False}  # noqa: RUF012

        def reset(self, seed=None, options=None):
            super().reset(seed, options)
            self.terminations = dict(self.terminations)  # which are one dict with truncations there

        def step(self, action):
            mover = self.agent_selection
            if self.terminations[mover]:
                self._was_dead_step(action)
                return
            self.moves += 1
            self.rewards = {agent: float(agent == mover) for agent in self.agents}
            self.terminations[mover] = (mover, self.moves) in (("first", 3), ("second", 5))
            self.agent_selection = "first" if self.moves == 2 else "second"
            if self.moves == 3:
                self._deads_step_first()

    return Out()


def test_an_opponent_plays_on_where_the_learner_has_ended():
    pytest.importorskip("pettingzoo")
    env = SelfPlayEnv(hr.make(out_before_the_other, 2), League(opponents=1, latest_share=0.0, best_share=1.0), seed=0)
    env.join(ActorCritic(env.observation_space, env.action_space, hidden=(8,), seed=0))
    rollout = stepped(env, 12)
    assert rollout.valid[:12, 0].tolist() == [True, True, False] * 4  # first
    assert rollout.valid[:12, 1].tolist() == [True, True, True, False] * 3  # second
    seen = rollout.observation[..., 0]
    assert seen[:3, 0].tolist() == [0, 2, 3] and seen[:4, 1].tolist() == [1, 3, 4, 5]
    assert rollout.reward[:, 0].tolist() == [1, 1, 0] * 4 and rollout.reward[:, 1].tolist() == [1, 1, 1, 0] * 3
    assert rollout.terminated[:3, 0].tolist() == [False, True, False]
    assert env._games.tolist() == [4 + 3] and env._scores.tolist() == [3.0]  # second has made more moves in each game


class Unending(KernelEnv):
    """`mover` is what `at` says from the fourth move on."""

    observation_space, action_space = ThreeMoves.observation_space, ThreeMoves.action_space
    num_agents = 2

    class Params(NamedTuple):
        at: f32 = 1.0

    class State(NamedTuple):
        moves: i32
        mover: i32

    def reset(s, p, key):
        return Unending.State(0, 0)

    def step(s, p, action, key):
        return Unending.State(s.moves + 1, i32(p.at) if s.moves >= 3 else 1 - s.mover), (0.0, 0.0), False

    def observe(s, p, agent):
        return s.moves, agent


@pytest.mark.parametrize("backend", ["cpu", "torch"])
@pytest.mark.parametrize(
    ("at", "said"),
    [
        (1, "an agent of .*Unending has made (1,000|50) moves, and the other one none in between: `mover` of its"),
        (2, "`mover` of its State says which of the 2 agents of .*Unending moves next, 0 or 1, and is 2"),
        (-1, "moves next, 0 or 1, and is -1"),
    ],
)
def test_an_agent_that_moves_for_ever_or_is_none_is_an_error(backend, at, said, monkeypatch, tmp_path):
    if backend == "torch":
        monkeypatch.setattr(games, "MOST_MOVES", 50)
    options = {**SMALL, "backend": backend, "params": {"at": at}, "log_folder": str(tmp_path)}
    with pytest.raises(ValueError, match=said):
        hr.train("ppo", Unending, **options)


def test_an_environment_of_pettingzoo_names_what_it_has(monkeypatch, tmp_path):
    pytest.importorskip("pettingzoo")
    monkeypatch.setattr(games, "MOST_MOVES", 50)

    def for_ever():
        env = three_moves_aec()
        env.step = lambda action: setattr(env, "agent_selection", "second")
        return env

    with pytest.raises(ValueError, match="none in between: agent_selection has to come back to it"):
        hr.train("ppo", for_ever, log_folder=str(tmp_path), **SMALL)
