"""Games against opponents as an environment of one agent: rewards and returns by hand; what is rated; resuming."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
import torch
from helpers.stepping import stepped
from helpers.three_moves import ThreeMoves, three_moves_aec

import headrace as hr
from headrace.core.returns import gae
from headrace.envs.builtin.connect_four import ConnectFourPlayers
from headrace.policies.actor_critic import ActorCritic
from headrace.self_play.games import SelfPlayEnv
from headrace.self_play.league import LATEST, League

SMALL = {"num_envs": 8, "num_steps": 8, "hidden": (8,), "minibatch_size": 32, "epochs": 1, "registered": False}
FEW = {"self_play": True, "opponents": 2, "snapshot_freq": 200}


def games(source, copies=2, opponents=1, **league):
    """Games of a policy with random weights against itself."""
    env = SelfPlayEnv(hr.make(source, copies), League(opponents=opponents, **league), seed=0)
    env.join(ActorCritic(env.observation_space, env.action_space, hidden=(8,), seed=0))
    return env


@pytest.mark.parametrize("source", [ThreeMoves, three_moves_aec])
def test_rewards_run_from_own_move_to_own_move(source):
    if source is three_moves_aec:
        pytest.importorskip("pettingzoo")
    rollout = stepped(games(source), 6)
    first, second = (rollout[:, column : column + 1] for column in (0, 1))
    # first moves before moves 0 and 2, second before move 1; a masked row begins the next game
    assert first.observation[:, 0].tolist() == [[0, 0], [2, 0], [3, 0], [0, 0], [2, 0], [3, 0], [0, 0]]
    assert first.valid[:, 0].tolist() == [True, True, False] * 2 + [True]
    assert first.reward[:, 0].tolist() == [1 + 10, 100, 0] * 2
    assert first.terminated[:, 0].tolist() == [False, True, False] * 2
    assert first.episode_return[:, 0].tolist() == [0, 0, 111] * 2
    assert first.episode_length[:, 0].tolist() == [0, 0, 2] * 2
    assert second.observation[:, 0].tolist() == [[1, 1], [3, 1]] * 3 + [[1, 1]]
    assert second.valid[:, 0].tolist() == [True, False] * 3 + [True]
    assert second.reward[:, 0].tolist() == [20 - 5, 0] * 3  # what it gets before its first move follows from none
    assert second.terminated[:, 0].tolist() == [True, False] * 3


@pytest.mark.parametrize("source", [ThreeMoves, three_moves_aec])
def test_returns_and_advantages_of_three_moves_by_hand(source):
    if source is three_moves_aec:
        pytest.importorskip("pettingzoo")
    rollout = stepped(games(source), 3)
    gamma, gae_lambda = 0.5, 0.5
    value = torch.tensor([[4.0, 6.0], [8.0, 2.0], [0.0, 6.0], [4.0, 2.0]])  # of rows 0 .. 3
    ends = (rollout.terminated, rollout.truncated)
    advantage = gae(rollout.reward, value[:-1], value[1:], *ends, gamma, gae_lambda)
    # first: 100 - 8 at its last move; before it 11 + 0.5 * 8 - 4 = 11, and 0.5 * 0.5 of the 92 that follow: one
    # discount from own move to own move, though the other has moved in between. second: 15 - 6, once
    assert advantage[:2, 0].tolist() == [11 + 0.25 * 92, 92]
    assert (advantage + value[:-1])[:2, 0].tolist() == [38, 100]
    assert advantage[0, 1].item() == 9


def test_a_training_learns_from_own_moves_alone():
    with closing(hr.Trainer("ppo", ThreeMoves, **SMALL, **FEW, gamma=0.5, gae_lambda=1.0)) as trainer:
        trainer.iterate()
        rollout = trainer.collector.rollout
        targets = trainer.algorithm.process(rollout)
        first = rollout.valid[:-1, :4] & (rollout.observation[:-1, :4, 0] == 0)
        assert first.any()  # 11 at the first move, 0.5 * 100 at the second one
        # the last row's game goes on with the value of what follows
        assert targets.returns[:-1, :4][first[:-1]].tolist() == pytest.approx([61.0] * int(first[:-1].sum()), rel=1e-5)
        assert trainer.steps == int(rollout.valid[:-1].sum())


def test_each_opponent_moves_by_its_own_weights():
    env = games(ThreeMoves, 8, opponents=2, latest_share=0.5, best_share=0.5)
    rival, learner = env._rivals[1], env._policy
    assert env.league.drawn == [LATEST, 0]
    with torch.no_grad():  # the learner chooses 0, the snapshot 1
        for policy, choice in ((learner, 0), (rival, 1)):
            policy.actor_out.weight.zero_()
            policy.actor_out.bias.copy_(torch.tensor([-30.0, 30.0]) * (1 if choice else -1))
    rollout = env.rollout(2, env.columns())
    env.reset(rollout, 0)
    env.step(rollout, 0)
    # the learner moves first in games 0 .. 3: the opponent's move counts 10; in games 4 .. 7 it has moved before
    assert env.env.target.state()["sum"].tolist() == [0, 0, 10, 10, 0, 0, 101, 101]


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_copies_that_are_held_stay_as_they_were(backend):
    env = hr.make(ThreeMoves, 4, backend=backend)
    assert env.takes_turns and not hr.make("Pursuit", 1).takes_turns
    rollout = env.rollout(2, env.columns())
    env.reset(rollout, 0)
    rollout.action.fill_(1)
    env.step(rollout, 0)
    before, which = env.state_dict(), torch.tensor([True, False, False, True])
    env.step_some(rollout, 1, which)
    assert env.movers().tolist() == [0, 1, 1, 0]
    assert env.target.state()["sum"].tolist() == [11, 1, 1, 11]
    after = env.state_dict()
    for name in ("floats", "integers"):  # returns, lengths and episodes, too
        assert torch.equal(after[name][:, ~which], before[name][:, ~which])
        assert not torch.equal(after[name][:, which], before[name][:, which])


def test_both_sides_are_learned_and_moves_are_by_turns():
    env = games(ConnectFourPlayers, 6, opponents=2)
    rollout = env.rollout(60, env.columns())
    env.reset(rollout, 3)
    rng = np.random.default_rng(0)
    for t in range(60):
        allowed = rollout.observation[t, :, 98:].numpy()
        rollout.action[t] = torch.tensor([rng.choice(np.flatnonzero(row)) if row.any() else 0 for row in allowed])
        pieces = rollout.observation[t, :, :84].view(6, 2, 42).sum(2)
        ahead = (pieces[:, 1] - pieces[:, 0])[rollout.valid[t]]
        assert torch.equal(ahead, torch.tensor([0.0, 0, 0, 1, 1, 1])[rollout.valid[t]])  # who is second has one less
        env.step(rollout, t)
    assert set(rollout.reward.unique().tolist()) == {-1.0, 0.0, 1.0}


def test_games_count_for_the_ratings_of_who_played_them():
    env = games(ThreeMoves, 8, opponents=2, latest_share=0.5, best_share=0.5, snapshot_freq=10_000)
    rollout = stepped(env, 8)
    # first wins 111 : 13, and the learner is first in half of the games
    assert env._games.tolist() == [2 * 2 + 2 * 4, 2 * 2 + 2 * 4]
    assert env._scores.tolist() == [4.0, 4.0]
    rating = env.league.rating
    env.step(rollout, 0)
    assert env.league.pool[0].games == 12 and env.league.rating < rating  # of games against itself none
    assert env.metrics()["self_play/score"] == pytest.approx(4 / 12)
    assert env.league.rating + env.league.pool[0].rating == pytest.approx(0)


def unequal_ends():
    """A game of both at once, whose first agent gets 1 and ends; the second one then gets 5."""
    from pettingzoo import ParallelEnv

    class Unequal(ParallelEnv):
        metadata, render_mode = {"name": "unequal"}, None
        possible_agents = ["first", "second"]  # noqa: RUF012

        def observation_space(self, agent):
            return ThreeMoves.observation_space

        def action_space(self, agent):
            return ThreeMoves.action_space

        def reset(self, seed=None, options=None):
            self.agents = list(self.possible_agents)
            return dict.fromkeys(self.agents, np.zeros(2, np.float32)), {agent: {} for agent in self.agents}

        def step(self, actions):
            now, begins = self.agents, len(self.agents) == 2
            assert list(actions) == now
            rewards = {"first": 1.0, "second": 0.0} if begins else {"second": 5.0}
            self.agents = ["second"] if begins else []
            seen = dict.fromkeys(now, np.zeros(2, np.float32))
            ended = {agent: agent not in self.agents for agent in now}
            return seen, rewards, ended, dict.fromkeys(now, False), {agent: {} for agent in now}

    return Unequal()


def test_a_game_is_won_by_the_return_of_the_whole_game():
    """The learner ends before the opponent, or after it."""
    pytest.importorskip("pettingzoo")
    env = games(unequal_ends, 4, opponents=2, latest_share=0.0, best_share=1.0, snapshot_freq=10_000)
    rollout = stepped(env, 9)  # of each game two steps of play, and a masked one
    assert env._games.tolist() == [6, 6]
    assert env._scores.tolist() == [3.0, 3.0]  # second wins all of them
    assert rollout.episode_return[:, 0].unique().tolist() == [0.0, 1.0]
    assert rollout.episode_return[:, 3].unique().tolist() == [0.0, 5.0]
    assert int(rollout.valid[:-1].sum()) == 2 * 3 * 1 + 2 * 3 * 2


def test_what_acts_at_once_takes_no_turns_though_an_aec_is_in_it():
    pytest.importorskip("pettingzoo")
    from pettingzoo.utils.conversions import aec_to_parallel, parallel_to_aec
    from pettingzoo.utils.wrappers import BaseParallelWrapper

    def at_once():
        aec = parallel_to_aec(unequal_ends())
        aec.metadata = {"name": "unequal", "is_parallelizable": True}
        return BaseParallelWrapper(aec_to_parallel(aec))

    class Apart(BaseParallelWrapper):
        pass

    def in_turn():
        from pettingzoo.utils.conversions import turn_based_aec_to_parallel

        return Apart(turn_based_aec_to_parallel(three_moves_aec()))

    assert not hr.make(at_once, 2).takes_turns
    assert hr.make(in_turn, 2).takes_turns and hr.make(in_turn, 2, reward_scale=0.5, time_limit=2).takes_turns


@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_reported_returns_are_not_scaled(scale):
    pytest.importorskip("pettingzoo")
    options = SMALL | FEW | {"reward_scale": scale}
    with closing(hr.Trainer("ppo", three_moves_aec, **options)) as trainer:
        result = trainer.iterate()
        assert trainer.collector.rollout.reward.max() == pytest.approx(100 * scale)
    assert {round(x, 3) for x in result.returns} == {111.0, 15.0}


def test_a_smaller_pool_on_resuming_and_no_other_number_of_opponents(tmp_path):
    options = {**SMALL, **FEW, "log_folder": str(tmp_path), "progress": "none", "total_steps": 1_500}
    run = hr.train("ppo", "ConnectFourPlayers", **options)
    assert run.metrics["self_play/snapshots"] > 4
    small = hr.train(resume=run.path, pool_size=2, total_steps=2_500, progress="none")
    assert small.metrics["self_play/snapshots"] == 2
    with pytest.raises(ValueError, match="opponents is 1, and the run that is resumed has 2: it cannot change"):
        hr.train(resume=run.path, opponents=1, total_steps=2_500, progress="none")


def test_a_game_that_began_against_another_opponent_is_not_rated():
    env = games(ThreeMoves, 8, opponents=2, latest_share=0.0, best_share=1.0, snapshot_freq=1)
    rollout = stepped(env, 1)
    env.step(rollout, 0)  # a snapshot is taken, and the games of first are at its second move
    assert env.league.taken == 9
    assert not env._rated[:4].any() and not env._games.any()  # nor are those that ended in the row before
    assert env._rated[4:].all()  # which have begun again


def _states(trainer):
    return [trainer.algorithm.state_dict(), trainer.collector.state_dict()]


@pytest.mark.parametrize("source", [ConnectFourPlayers, "Pursuit"])
def test_a_resumed_training_has_the_same_bits(source):
    with closing(hr.Trainer("ppo", source, **SMALL, **FEW)) as trainer:
        for _ in range(6):
            trainer.iterate()
        state = trainer.state_dict()
        taken = trainer.env.league.taken
        for _ in range(6):
            trainer.iterate()
        expected = _states(trainer)
        assert trainer.env.league.taken > taken > 1  # snapshots before and after
    with closing(hr.Trainer("ppo", source, **SMALL, **FEW)) as other:
        other.load_state_dict(state)
        for _ in range(6):
            other.iterate()
        found = _states(other)
    assert _same(expected, found)


def _same(one, other) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_the_pool_survives_where_games_cannot_be_saved():
    pytest.importorskip("pettingzoo")
    with closing(hr.Trainer("ppo", three_moves_aec, **SMALL, **FEW)) as trainer:
        for _ in range(6):
            trainer.iterate()
        state = trainer.state_dict()
        league = trainer.env.league.state_dict()
    with closing(hr.Trainer("ppo", three_moves_aec, **SMALL, **FEW)) as other:
        other.load_state_dict(state)
        assert _same(league, other.env.league.state_dict())
        rows = other.iterate()
        assert rows.steps > trainer.steps and np.isfinite(rows.mean_return)


def test_a_run_of_the_command_line_resumes_and_is_plotted(tmp_path):
    options = {**SMALL, **FEW, "log_folder": str(tmp_path), "progress": "none", "total_steps": 1_000}
    whole = hr.train("ppo", "ConnectFourPlayers", **options | {"total_steps": 2_000})
    run = hr.train("ppo", "ConnectFourPlayers", **options)
    run = hr.train(resume=run.path, total_steps=2_000)
    assert _same(dict(whole.policy.state_dict()), dict(run.policy.state_dict()))
    with pytest.raises(ValueError, match="num_envs cannot change on resuming with self_play"):
        hr.train(resume=run.path, num_envs=16, total_steps=3_000)
    assert run.metrics["self_play/rating"] == whole.metrics["self_play/rating"]
    pytest.importorskip("matplotlib")
    from headrace.evaluation.history import read

    assert list(read(run.path).by_agent) == ["Elo rating"]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("CartPole-v1", {}, "self_play is for two agents with the same spaces and one policy, and CartPole-v1 has 1"),
        ("Tag", {}, "Tag has 100 agents in 2 groups"),
        ("Pursuit", {"num_envs": 3}, "num_envs is 3: give at least twice as many as opponents, which are 2"),
        ("Pursuit", {"actors": 2}, "self_play does not go with actors=2: leave actors out"),
        ("Pursuit", {"recurrent": "lstm"}, "leave out recurrent='lstm'"),
        ("Pursuit", {"latest_share": 0.9, "best_share": 0.2}, "latest_share 0.9 and best_share 0.2 are shares"),
        ("Pursuit", {"self_play": False}, "opponents, snapshot_freq is for self_play"),
        ("Pursuit", {"agent_info": [0.0] * 8}, "self_play does not go with agent_info"),
    ],
)
def test_what_does_not_go_together_is_an_error(source, options, message):
    with pytest.raises(ValueError, match=message):
        hr.Trainer("ppo", source, **{**SMALL, **FEW, **options})


def test_a_few_games_have_a_few_opponents():
    with closing(hr.Trainer("ppo", ThreeMoves, **{**SMALL, "num_envs": 5}, self_play=True)) as trainer:
        assert trainer.env.league.opponents == 2
        assert trainer.env._opponent.tolist() == [0, 0, 1, 0, 1]
        assert np.isfinite(trainer.iterate().metrics["value_loss"])


def test_games_that_cannot_be_saved_are_said_to_begin_again(tmp_path, capfd):
    pytest.importorskip("pettingzoo")
    options = {**SMALL, **FEW, "log_folder": str(tmp_path), "progress": "plain", "total_steps": 100}
    run = hr.train("ppo", three_moves_aec, **options)
    hr.train(env=three_moves_aec, resume=run.path, total_steps=200)
    assert "cannot be saved: resuming with fresh episodes" in "".join(capfd.readouterr())


@pytest.mark.parametrize("algorithm", ["dqn", "pqn"])
def test_algorithms_without_an_actor_are_refused(algorithm):
    with pytest.raises(ValueError, match="self_play is for an actor and a critic that learn from rollouts: use ppo"):
        hr.Trainer(algorithm, "Pursuit", self_play=True, registered=False)


def test_a_training_of_turns_without_self_play_says_what_it_learns_from(capfd):
    with closing(hr.Trainer("ppo", ThreeMoves, **SMALL)):
        assert "take turns, and each acts in every step" in capfd.readouterr().err
    with closing(hr.Trainer("ppo", "Pursuit", **SMALL)):
        assert "take turns" not in capfd.readouterr().err


def test_an_evaluation_says_the_rating_beside_returns_that_cancel(tmp_path, monkeypatch, capsys):
    from headrace.cli.main import main

    monkeypatch.chdir(tmp_path)
    settings = ["--num-envs", "4", "--num-steps", "8", "--final-episodes", "3", "--seed", "0"]
    main(["train", "ppo", "ConnectFourPlayers", "--self-play", "--total-steps", "256", *settings])
    said = capsys.readouterr().out
    assert "return 0 ± 0 over 3 episodes" in said
    assert "in which it played both sides; its Elo rating among the policies of this run is " in said
