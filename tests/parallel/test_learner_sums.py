"""Sums over learners: in order of rank, in pieces, where a rank has nothing to add; and gloo's."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial

import pytest
import torch
from torch.distributed import FileStore, ProcessGroupGloo

from headrace.algorithms.a2c import A2C, A2CConfig, gradient
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.algorithms.reduce import gathered, of_each
from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, Discrete, action_column, env_columns
from headrace.parallel.learners import RankLost, SharedSum
from headrace.training.distributed import DistributedSum
from headrace.training.shards import Sharded


def sums(size: int, room: int) -> list[SharedSum]:
    first = SharedSum(0, size, room, timeout=0.5)
    return [first, *(SharedSum(rank, size, room, first.memory, 0.5) for rank in range(1, size))]


def together(calls) -> list[object]:
    """Make several calls at the same time, and return their results; an exception where one raises it."""
    found: list[object] = [None] * len(calls)

    def run(place):
        try:
            found[place] = calls[place]()
        except Exception as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("length", [3, 10_000])  # in one piece, and in several
def test_a_sum_is_taken_in_order_of_rank(length):
    ranks = sums(3, 64)
    values = [torch.randn(length, generator=torch.Generator().manual_seed(rank)) * 10**rank for rank in range(3)]
    counts = [torch.tensor(rank + 1) for rank in range(3)]
    expected = values[0] + values[1] + values[2]
    together([lambda rank=rank: ranks[rank](values[rank], counts[rank]) for rank in range(3)])
    assert all(torch.equal(value, expected) for value in values)
    assert [int(count) for count in counts] == [6, 6, 6]


def test_rows_are_gathered_in_order_of_rank_where_some_have_none():
    ranks = sums(3, 64)
    rows = [torch.arange(float(2 * count)).view(count, 2) + rank for rank, count in enumerate((2, 0, 1))]
    for found in together([lambda rank=rank: gathered(rows[rank], ranks[rank]) for rank in range(3)]):
        assert torch.equal(found, torch.cat(rows))


def test_a_sum_that_a_rank_does_not_come_to_is_given_up_and_names_it():
    ranks = sums(3, 64)
    calls = [lambda rank=rank: ranks[rank](torch.zeros(3)) for rank in (0, 2)]
    for error in together(calls):
        assert isinstance(error, RankLost)
        assert "rank 1 has made no step for 0.5" in str(error)


def made_up(envs: int, valid: torch.Tensor) -> Rollout:
    algorithm = small_a2c()
    spaces = Box(-3, 3, (5,)), Discrete(3)
    columns = env_columns(spaces[0]) | {"action": action_column(spaces[1])} | algorithm.columns()
    rollout, generator = Rollout(8, envs, columns), torch.Generator().manual_seed(3)
    for name in ("observation", "reward", "value"):
        getattr(rollout, name).copy_(torch.randn(getattr(rollout, name).shape, generator=generator))
    rollout.valid.copy_(valid)
    return rollout


def small_a2c(**settings) -> A2C:
    return A2C.build(A2CConfig(num_steps=8, hidden=(8,), **settings), Box(-3, 3, (5,)), Discrete(3), 1, "cpu")


def test_a_learner_without_a_valid_row_adds_nothing():
    valid = torch.ones(9, 6, dtype=torch.bool)
    valid[:, 3:] = False
    rollout = made_up(6, valid)
    alone, both = small_a2c(normalize_advantage=True), Sharded(small_a2c(normalize_advantage=True), 2)
    part = made_up(6, valid)[:, :3]
    both.prepare(rollout)
    for _ in range(3):
        expected, found = alone.update(part, 0.0), both.update(rollout, 0.0)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name)
    for mine, its in zip(both.policy.state_dict().values(), alone.policy.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, its)


def test_normalisers_count_the_rows_of_all_learners_once():  # rl_games issue 363
    valid = torch.rand(9, 7, generator=torch.Generator().manual_seed(1)) > 0.3
    rollout, alone, both = made_up(7, valid), small_a2c(), Sharded(small_a2c(), 3)
    both.prepare(rollout)
    for _ in range(2):
        alone.update(rollout, 0.0)
        both.update(rollout, 0.0)
    for replica in both.replicas:
        mine, its = (x.policy.encoder.normalizer.statistics for x in (replica, alone))
        assert int(mine.count) == 2 * int(valid[:8].sum()) == int(its.count)
        torch.testing.assert_close(mine.mean, its.mean)
        torch.testing.assert_close(mine.squares, its.squares)


def test_sums_by_gloo_are_those_of_shared_memory_within_rounding(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    valid = torch.rand(9, 7, generator=torch.Generator().manual_seed(1)) > 0.3
    kind = {"num_steps": 8, "hidden": (8,), "epochs": 2, "minibatch_size": 20}
    gradients, weights = [], []
    for gloo in (False, True):
        both = Sharded(PPO.build(PPOConfig(**kind), Box(-3, 3, (5,)), Discrete(3), 1, "cpu"), 2)
        rollout = made_up(7, valid)
        both.prepare(rollout)
        if gloo:
            store = str(tmp_path / "store")
            made = [partial(gloo_group, store, rank) for rank in range(2)]
            for rank, group in enumerate(together(made)):
                both.replicas[rank].reduce = summed = DistributedSum(rank, 2, group)
                summed.columns = [3, 4]
        both._cut(rollout)
        targets = [replica.process(part) for replica, part in zip(both.replicas, both._parts, strict=True)]
        gradients.append(first_gradient(both, targets))
        both.update(rollout, 0.0)
        weights.append(torch.cat([parameter.detach().flatten() for parameter in both.policy.parameters()]))
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-6, atol=1e-6 * gradients[0].abs().max().item())
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=1e-5)


def gloo_group(store: str, rank: int) -> ProcessGroupGloo:
    return ProcessGroupGloo(FileStore(store, 2), rank, 2, timedelta(seconds=20))


def first_gradient(both: Sharded, targets) -> torch.Tensor:
    """The sum of the gradients of A2C's loss over all parts, by the learners' own sums."""
    calls = []
    for replica, part, target in zip(both.replicas, both._parts, targets, strict=True):

        def run(replica=replica, part=part, target=target):
            gradient(replica.policy, part, target, A2CConfig(normalize_advantage=True), replica.reduce)
            replica.reduce(replica.optimizer.gradient)
            found = replica.optimizer.gradient.clone()
            replica.optimizer.gradient.zero_()
            return found

        calls.append(run)
    first, second = together(calls)
    assert torch.equal(first, second)
    return first


def test_each_of_all_is_known_to_all():
    ranks = sums(2, 64)
    found = together([lambda rank=rank: of_each(torch.tensor([rank, 5]), ranks[rank]) for rank in range(2)])
    assert all(each.tolist() == [[0, 5], [1, 5]] for each in found)
