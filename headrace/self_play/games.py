"""Games of two agents as an environment of one agent: the learner plays one side, opponents of a league the other.

If agents take turns, a step is the learner's move and all of the opponent's moves until the learner moves again or the
game ends. Its reward is the sum of the learner's rewards in between. Rows of a rollout are the learner's moves only. So
any algorithm's losses, advantages and statistics refer to these moves, and discounting counts one step per move.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from headrace.algorithms.adam import flatten
from headrace.core import rng
from headrace.core.types import StateDict
from headrace.data.rollout import Column, Columns, Rollout, tree_map
from headrace.data.spaces import action_column, env_columns
from headrace.envs.base import Env, EnvWrapper, Round
from headrace.policies.base import Policy
from headrace.self_play.league import LATEST, League, score_of

MOST_MOVES = 1_000  # of an opponent between two moves of the learner: with more, the game counts as endless
NOW, AFTER, LAST = range(3)  # rows of the inner rollout: before the learner's move, after it, after an opponent's move
OWN = ("_return", "_margin", "_length", "_played", "_rated", "_scores", "_games")  # tensors of the state


class _Opponent(NamedTuple):
    """An opponent's policy, and the slice of its games, which are sorted by opponent."""

    policy: Policy
    part: slice


class SelfPlayEnv(EnvWrapper):
    """An env with the learner as the only agent of each game of `env`, whose games have two agents.

    In the first half of the games the learner is the first agent, in the second half the second agent. Each half is
    divided into one block of games per opponent. A game that began before its opponent was drawn is not rated. A game
    is won by the agent with the higher return.
    seed: of the opponents' actions and of the league's draws. reward_scale: of `env`. join() has to be called before
    the first reset().
    Raises ValueError for games that self-play does not support.
    """

    def __init__(self, env: Env, league: League, seed: int, reward_scale: float = 1.0) -> None:
        super().__init__(env)
        _check(env, league.opponents)
        self.league, self.seed, self._scale = league, seed, reward_scale
        self.num_envs, self._half = env.num_copies, (env.num_copies + 1) // 2
        self.agents, self.groups = Env.agents, Env.groups
        self._turns: Any = env if env.takes_turns else None  # a TurnBasedEnv
        self._inner = env.rollout(LAST, env.columns())
        self._agent = (torch.arange(self.num_envs) >= self._half).int()
        self._return, self._margin = torch.zeros(self.num_envs), torch.zeros(self.num_envs)
        self._length = torch.zeros(self.num_envs, dtype=torch.int32)
        self._played, self._rated = torch.zeros(2, self.num_envs, dtype=torch.bool)
        self._scores = torch.zeros(league.opponents, dtype=torch.float64)  # of rated games since the last rollout
        self._games = torch.zeros(league.opponents, dtype=torch.int64)
        self._steps = self._draws = 0  # moves of the learner; resets and steps, which count the opponents' random draws
        self._recent = (0.0, 0)  # score and number of games against snapshots in the last rollout
        parts = (self._half, self.num_envs - self._half)
        self._opponent = torch.cat([torch.arange(n) * league.opponents // n for n in parts])  # of each game

    def join(self, policy: Policy) -> None:
        """Set the learner's policy, and take its first snapshot as the first opponent."""
        self._policy = policy
        self._rivals = [deepcopy(policy) for _ in range(self.league.opponents)]
        for rival in self._rivals:
            flatten(list(rival.parameters()))  # into one buffer, which kernels read
        self.league.take(policy, 0)
        self._place_opponents()

    def _place_opponents(self) -> None:
        """Load the weights of the drawn opponents, and assign games to them."""
        drawn = self.league.drawn
        for number, rival in zip(drawn, self._rivals, strict=True):
            snapshot = self.league.snapshot(number)
            if snapshot is not None:
                rival.load_state_dict(snapshot.weights)
        policy_of_game = torch.tensor([LATEST if n == LATEST else k for k, n in enumerate(drawn)])[self._opponent]
        self._order = policy_of_game.argsort(stable=True)
        self._order_columns = torch.where(self._agent == 0, self.num_envs, 0)[self._order] + self._order
        self._opponents, first = [], 0
        for number, count in zip(*(x.tolist() for x in policy_of_game.unique(return_counts=True)), strict=True):
            policy = self._policy if number == LATEST else self._rivals[number]
            self._opponents.append(_Opponent(policy, slice(first, first + count)))
            first += count

    def columns(self) -> dict[str, Column | Columns]:
        return {**env_columns(self.observation_space), "action": action_column(self.action_space)}

    def rollout(self, num_steps: int, columns: Columns) -> Rollout:
        return Rollout(num_steps, self.num_envs, columns, self.device)

    def metrics(self) -> dict[str, float]:
        """Elo ratings of the learner and of the best snapshot, the number of snapshots, and the learner's mean score
        against snapshots in the last rollout, if such games have ended."""
        score, games = self._recent
        rated = {"self_play/score": score / games} if games else {}
        best = {"self_play/best_rating": self.league.best.rating, "self_play/snapshots": len(self.league.pool)}
        return {"self_play/rating": self.league.rating, **best, **rated}

    @torch.no_grad()
    def reset(self, rollout: Rollout, seed: int) -> None:
        self.env.reset(self._inner, seed)
        for own in (self._return, self._margin, self._length, self._played):
            own.zero_()
        self._rated.fill_(True)
        self._move_row(NOW, AFTER)
        self._begin_outcome()
        self._opponents_move()
        self._draws += self._turns is not None
        self._observe(rollout, 0)

    def begin(self, rollout: Rollout, seed: int, episodes: Round) -> None:
        raise ValueError("evaluations have the games themselves, not those of self-play")

    @torch.no_grad()
    def step(self, rollout: Rollout, t: int) -> None:
        if t == 0:
            self.begin_rollout()
        inner, valid = self._inner, self._mine(self._inner.valid[NOW])
        rollout.valid[t] = valid  # differs from before if games could not be restored
        self._finish_games(rollout, t, valid)
        self._act(inner.action[NOW], rollout.action[t])
        if self._turns is None:
            self._opponents_act(NOW, 0)
        self.env.step(inner, NOW)
        self._begin_outcome()
        self._count(NOW, valid, self._others(inner.valid[NOW]))
        self._opponents_move()
        rollout.reward[t] = self._reward.masked_fill_(~valid, 0.0)
        rollout.terminated[t], rollout.truncated[t] = self._ended & valid
        self._return += self._reward
        self._length += valid
        self._played |= valid
        self._steps += int(valid.sum())
        self._draws += 1
        self._observe(rollout, t + 1)

    def end_rollout(self, rollout: Rollout, scores: np.ndarray, games: np.ndarray) -> None:
        """Add the results of a kernel that has played in place of step(). scores, games: sum of scores and number of
        rated games, by opponent."""
        self._scores += torch.from_numpy(scores)
        self._games += torch.from_numpy(games)
        self._steps += int(rollout.valid[:-1].sum())
        self._draws += rollout.num_steps

    def begin_rollout(self) -> None:
        """Rate the games of the last rollout, and take a snapshot if one is due."""
        scores, games = self._scores.tolist(), self._games.tolist()
        self.league.rate(scores, games)
        of_snapshots = [k for k, number in enumerate(self.league.drawn) if number != LATEST]
        self._recent = (sum(scores[k] for k in of_snapshots), sum(games[k] for k in of_snapshots))
        self._scores.zero_()
        self._games.zero_()
        if self.league.is_due(self._steps):
            self.league.take(self._policy, self._steps)
            self._place_opponents()
            self._rated.fill_(False)

    def _finish_games(self, rollout: Rollout, t: int, valid: Tensor) -> None:
        """Report returns and lengths of the learner's games that ended before row t. Rate games that have ended for
        both agents: the next ones begin."""
        rollout.episode_return[t] = torch.where(valid, 0.0, self._return / self._scale)
        rollout.episode_length[t] = torch.where(valid, 0, self._length)
        over = ~valid & ~self._others(self._inner.valid[NOW])
        counted = over & self._rated & self._played
        self._scores.index_add_(0, self._opponent, torch.where(counted, score_of(self._margin), 0.0).double())
        self._games.index_add_(0, self._opponent, counted.long())
        self._rated |= over
        for own, ended in ((self._return, ~valid), (self._length, ~valid), (self._margin, over), (self._played, over)):
            own.masked_fill_(ended, 0)

    def _begin_outcome(self) -> None:
        self._reward = torch.zeros(self.num_envs)
        self._ended = torch.zeros(2, self.num_envs, dtype=torch.bool)  # terminated, truncated

    def _count(self, row: int, mine: Tensor, others: Tensor) -> None:
        """Add the outcome of a step at `row`. mine, others: games in which it counts for the learner and for the other
        agent, since one may play on after the other has ended."""
        inner, reward = self._inner, torch.where(mine, self._mine(self._inner.reward[row]), 0.0)
        self._reward += reward
        self._margin += reward - torch.where(others, self._others(inner.reward[row]), 0.0)
        flags = torch.stack((self._mine(inner.terminated[row]), self._mine(inner.truncated[row])))
        self._ended |= flags & mine

    def _opponents_move(self) -> None:
        """Let opponents move until it is the learner's turn in each game, or the game has ended. An opponent plays on
        if only the learner has ended."""
        if self._turns is None:
            return
        inner, moves = self._inner, 0
        while (acting := self._others(inner.valid[AFTER]) & ((movers := self._turns.movers()) != self._agent)).any():
            self.check_movers(movers[acting], moves)
            self._opponents_act(AFTER, moves)
            moves += 1
            self._turns.step_some(inner, AFTER, acting)
            self._count(AFTER, acting & self._mine(inner.valid[AFTER]), acting)
            self._move_row(LAST, AFTER, acting)

    def check_movers(self, movers: Tensor, moves: int) -> None:
        """Raise ValueError for numbers in `movers`, int [K], that are not an agent, and for opponents that have moved
        MOST_MOVES times since the learner."""
        name, which = self.env.name, "`mover` of its State" if self.env.backend != "inline" else "agent_selection"
        if wrong := {*movers.tolist()} - {0, 1}:
            raise ValueError(f"{which} says which of the 2 agents of {name} moves next, 0 or 1, and is {min(wrong)}")
        if moves >= MOST_MOVES:
            raise ValueError(
                f"an agent of {name} has made {MOST_MOVES:,} moves, and the other one none in between: {which} has to "
                "come back to it, or the game to end"
            )

    def _opponents_act(self, row: int, moves: int) -> None:
        """Write the opponents' actions for a row. moves: number of their moves so far in this step."""
        inner, draws = self._inner, self._policy.num_draws
        skipped = moves * (-(-draws // 4) * 4)  # draws come in fours
        place = (self.num_envs, skipped + draws, self.device, self.first_env)
        random = rng.uniform(self.seed, rng.Purpose.OPPONENT, self._draws, 1, *place)[0, :, skipped:]
        seen = tree_map(lambda column: _rows(column[row], self._order_columns), inner.observation)
        drawn = _rows(random, self._order)
        actions = [policy.act(seen[part], None, drawn[part]).action for policy, part in self._opponents]
        inner.action[row, self._order_columns] = torch.cat(actions)

    def _move_row(self, source: int, target: int, games: Tensor | None = None) -> None:
        """Copy observations and `valid` of some games, or all, from one row to another."""
        which = None if games is None else torch.cat((games, games))

        def move(column: Tensor) -> Tensor:
            here, there = column[target], column[source]
            if which is None:
                return here.copy_(there)
            return here.copy_(torch.where(which.view(-1, *[1] * (here.dim() - 1)), there, here))

        tree_map(move, self._inner.observation)
        move(self._inner.valid)

    def _observe(self, rollout: Rollout, row: int) -> None:
        """Write the learner's observations into its rollout, and begin the next step from them."""
        inner = self._inner
        tree_map(
            lambda target, source: target[row].copy_(self._mine(source[AFTER])), rollout.observation, inner.observation
        )
        rollout.valid[row] = self._mine(inner.valid[AFTER])
        self._move_row(AFTER, NOW)

    def _mine(self, column: Tensor) -> Tensor:
        """The learner's part [N, ...] of a row [2 N, ...]."""
        return torch.cat((column[: self._half], column[self.num_envs + self._half :]))

    def _others(self, column: Tensor) -> Tensor:
        """The opponents' part [N, ...] of a row [2 N, ...]."""
        return torch.cat((column[self.num_envs : self.num_envs + self._half], column[self._half : self.num_envs]))

    def _act(self, target: Tensor, action: Tensor) -> None:
        """Write the learner's actions [N, ...] into a row of actions [2 N, ...]."""
        target[: self._half] = action[: self._half]
        target[self.num_envs + self._half :] = action[self._half :]

    def state_dict(self) -> StateDict:
        """State of the games, if they can be saved, and of the league. It is never empty, since the league can always
        be saved."""
        row = {
            "observation": tree_map(lambda x: x[NOW].clone(), self._inner.observation),
            "valid": self._inner.valid[NOW].clone(),
        }
        own = {name.removeprefix("_"): getattr(self, name).clone() for name in OWN}
        counts = {"steps": self._steps, "draws": self._draws, "recent": list(self._recent)}
        return {"env": self.env.state_dict(), "league": self.league.state_dict(), "row": row, **own, **counts}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from state_dict(). Games that could not be saved begin again, after a masked row. Raises ValueError
        for another number of opponents."""
        if (before := len(state["league"]["drawn"])) != self.league.opponents:
            raise ValueError(
                f"opponents is {self.league.opponents}, and the run that is resumed has {before}: it cannot change"
            )
        self.league.load_state_dict(state["league"])
        self._steps, self._draws, self._recent = int(state["steps"]), int(state["draws"]), tuple(state["recent"])
        self._place_opponents()
        for name in OWN:
            getattr(self, name).copy_(state[name.removeprefix("_")])
        if not state["env"]:
            self.env.reset(self._inner, rng.seed(self.seed, rng.Purpose.RESUME, self._steps))
        else:
            tree_map(lambda x, saved: x[NOW].copy_(saved), self._inner.observation, state["row"]["observation"])
        self.env.load_state_dict(state["env"])
        self._inner.valid[NOW] = state["row"]["valid"] if state["env"] else False
        if not state["env"]:
            for own in (self._return, self._margin, self._length, self._played):
                own.zero_()


def _rows(column: Tensor, which: Tensor) -> Tensor:
    """Select columns of a rollout's row, [N, ...]. Vectors keep the feature-major layout that kernels read."""
    return column.t().index_select(1, which).t() if column.dim() == 2 else column[which]


def _check(env: Env, opponents: int) -> None:
    """Raise ValueError for games that self-play does not support."""
    if env.num_agents != 2 or len(env.groups) != 1:
        found = f"{env.num_agents} agents in {len(env.groups)} groups"
        raise ValueError(
            f"self_play is for two agents with the same spaces and one policy, and {env.name} has {found}: leave it out"
        )
    if env.device.type != "cpu" or env.backend == "workers":
        raise ValueError("self_play steps its games in this process, on the CPU: give device='cpu' and no workers")
    if env.num_copies < 2 * opponents:
        raise ValueError(
            f"num_envs is {env.num_copies}: give at least twice as many as opponents, which are {opponents}"
        )
