"""Replays whose environments have write heads of their own, against what happened in each environment."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.priorities import PrioritizedReplay
from headrace.data.replay import DRAWS, Replay, spread
from headrace.data.rollout import Rollout, each_column
from headrace.data.sequences import SequenceReplay
from tests.data.test_replay import GAMMA, World, transition
from tests.data.test_sequences import Remembering

MOST = 3  # columns of one environment in a rollout, in these tests


class Worlds:
    """N environments, each a World of its own; a rollout has the steps of some of them, of some of them twice."""

    def __init__(self, num_steps: int, num_envs: int, seed: int, ends: float, kind: type[World] = World) -> None:
        self.each = [kind(num_steps, 1, seed + number, ends) for number in range(num_envs)]
        self.rollout = Rollout(num_steps, num_envs, self.each[0].rollout.columns)
        self.rollout.env = torch.arange(num_envs)
        self.generator = torch.Generator().manual_seed(seed)

    def collect(self) -> Rollout:
        envs = torch.arange(len(self.each)).repeat(MOST)
        order = torch.randperm(len(envs), generator=self.generator)
        return self.collect_of(envs[order][: len(self.each)].tolist())

    def collect_of(self, envs: list[int]) -> Rollout:
        self.rollout.env = torch.tensor(envs)
        for column, env in enumerate(envs):
            part = self.each[env].collect()
            for _, target, source in each_column(self.rollout.columns, self.rollout, part):
                target[:, column] = source[:, 0]
        return self.rollout


sizes = {
    "num_steps": st.integers(1, 4),
    "num_envs": st.integers(1, 4),
    "n": st.integers(1, 4),
    "room": st.integers(0, 9),
    "rollouts": st.integers(1, 9),
    "seed": st.integers(0, 2**31),
    "ends": st.sampled_from((0.0, 0.3, 0.8)),
}


def drawable(worlds: Worlds, replay: Replay) -> dict[int, tuple[int, int]]:
    """Row in the ring -> (time, env), for each row that is there and has its n-step successor."""
    return {
        time % replay.length * replay.num_envs + env: (time, env)
        for env, world in enumerate(worlds.each)
        for time in range(max(0, world.time - replay.length + 1), world.time - replay.num_steps + 1)
    }


@given(**sizes)
@settings(max_examples=60)
def test_every_row_gives_the_transition_that_happened(num_steps, num_envs, n, room, rollouts, seed, ends):
    worlds = Worlds(num_steps, num_envs, seed, ends)
    replay = Replay(worlds.rollout, (MOST * num_steps + n + 1 + room) * num_envs, n)
    for _ in range(rollouts):
        replay.append(worlds.collect())
    at = drawable(worlds, replay)
    batch = replay.gather(torch.tensor(list(at), dtype=torch.int64), GAMMA)
    for i, (time, env) in enumerate(at.values()):
        world, part = worlds.each[env], batch[i]
        then = world.history[time]
        assert part.observation.place.tolist() == world.place(time, 0) and part.observation.step == time
        assert part.action == then["action"][0] and bool(part.weight) == bool(then["valid"][0])
        if then["valid"][0]:
            reward, discount, after = transition(world, time, 0, n)
            assert part.reward.item() == pytest.approx(reward, abs=1e-6)
            assert part.discount.item() == pytest.approx(discount, abs=1e-6)
            assert part.next_observation.place.tolist() == world.place(after, 0)


@given(**sizes)
@settings(max_examples=40)
def test_only_what_can_be_drawn_is_drawn(num_steps, num_envs, n, room, rollouts, seed, ends):
    worlds = Worlds(num_steps, num_envs, seed, ends)
    replay = Replay(worlds.rollout, (MOST * num_steps + n + 1 + room) * num_envs, n)
    for number in range(rollouts):
        replay.append(worlds.collect())
        at = drawable(worlds, replay)
        # so many rows are waited for before the first draw: one environment at least has enough of them
        assert at or (number + 1) * num_steps * num_envs < replay.n_step_span * num_envs
        if at:
            random = torch.rand(50, 2, DRAWS, generator=torch.Generator().manual_seed(seed))
            random[0] = 1 - 2**-24  # the largest there is
            random[1] = 0.0
            assert set(replay.draw(random).flatten().tolist()) <= set(at)


def test_rows_are_drawn_alike_whoever_wrote_more():
    worlds = Worlds(2, 3, 0, 0.0)
    replay = Replay(worlds.rollout, 90, 2)
    for envs in ([0, 0, 1], [0, 1, 0], [0, 0, 0], [2, 0, 0]):
        replay.append(worlds.collect_of(envs))
    assert replay.written.tolist() == [18, 4, 2]
    rows = replay.draw(torch.rand(40_000, DRAWS, generator=torch.Generator().manual_seed(1)))
    at = drawable(worlds, replay)
    counts = torch.bincount(rows, minlength=90)[list(at)]
    expected = 40_000 / len(at)
    assert counts.sum() == 40_000 and (counts - expected).abs().max() < 5 * expected**0.5


@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=6))
def test_rows_are_numbered_once_each_step_by_step(counts):
    number = torch.arange(sum(counts))
    step, env = spread(number, torch.tensor(counts))
    expected = [(s, e) for s in range(5) for e, count in enumerate(counts) if s < count]
    assert sorted(zip(step.tolist(), env.tolist(), strict=True)) == sorted(expected)
    assert (step.diff() >= 0).all()
    if len(set(counts)) == 1:
        assert list(zip(step.tolist(), env.tolist(), strict=True)) == expected


@pytest.mark.parametrize("kind", [Replay, PrioritizedReplay, SequenceReplay])
def test_columns_named_in_their_order_give_the_same_bits_as_columns_without_names(kind):
    options = {"sequence_length": 3, "burn_in": 2} if kind is SequenceReplay else {}
    world = (Remembering if kind is SequenceReplay else World)(3, 4, 0, 0.3)
    first, second = (kind(world.rollout, 120, 2, **options) for _ in range(2))
    for number in range(13):
        rollout = world.collect()
        for replay, env in ((first, None), (second, torch.arange(4))):
            rollout.env = env
            replay.append(rollout)
        if number > 3:
            random = torch.rand(3, 6, DRAWS, generator=torch.Generator().manual_seed(number))
            rows = [replay.draw(random) for replay in (first, second)]
            rewards = [replay.gather(rows[0], GAMMA).reward for replay in (first, second)]
            assert torch.equal(*rows) and torch.equal(*rewards)
    assert torch.equal(first.written, second.written)


@given(**sizes)
@settings(max_examples=40)
def test_priorities_are_those_of_the_rows_that_can_be_drawn(num_steps, num_envs, n, room, rollouts, seed, ends):
    worlds = Worlds(num_steps, num_envs, seed, ends)
    replay = PrioritizedReplay(worlds.rollout, (MOST * num_steps + n + 1 + room) * num_envs, n, alpha=1.0)
    generator = torch.Generator().manual_seed(seed)
    known: dict[tuple[int, int], float] = {}
    highest = 1.0
    for _ in range(rollouts):
        replay.append(worlds.collect())
        at = drawable(worlds, replay)
        live = {row: place for row, place in at.items() if worlds.each[place[1]].history[place[0]]["valid"][0]}
        known = {place: known.get(place, highest) for place in live.values()}
        expected = [known[live[row]] if row in live else 0.0 for row in range(len(replay.leaves()))]
        assert replay.leaves().tolist() == pytest.approx(expected)
        if live:
            rows = torch.tensor(list(live))
            error = torch.rand(len(rows), generator=generator) * 3
            replay.update(rows, error)
            leaves = replay.leaves()[rows].tolist()
            known = dict(zip(live.values(), leaves, strict=True))
            highest = max(highest, *leaves)


@given(**sizes | {"length": st.integers(1, 4), "burn_in": st.integers(0, 5), "rollouts": st.integers(1, 12)})
@settings(max_examples=60)
def test_sequences_are_those_of_their_environment(num_steps, num_envs, n, room, rollouts, seed, ends, length, burn_in):
    worlds = Worlds(num_steps, num_envs, seed, ends, Remembering)
    steps = MOST * num_steps + burn_in + 3 * length + n + room
    replay = SequenceReplay(worlds.rollout, steps * num_envs, n, sequence_length=length, burn_in=burn_in)
    for _ in range(rollouts):
        replay.append(worlds.collect())
    whole = {
        (start + burn_in) % replay.length * num_envs + env: (start, env)
        for env, world in enumerate(worlds.each)
        for start in range(0, world.time, length)
        if start > world.time - replay.length and start + replay.n_step_span <= world.time
    }
    if rollouts * num_steps >= replay.n_step_span:
        assert whole
        random = torch.rand(200, length, DRAWS, generator=torch.Generator().manual_seed(seed))
        assert set(replay.draw(random)[:, 0].tolist()) <= set(whole)
    for first, (start, env) in whole.items():
        rows = (first + torch.arange(length) * num_envs) % (replay.length * num_envs)
        batch, world = replay.gather(rows.view(1, length), GAMMA)[0], worlds.each[env]
        assert batch.observation.rnn_state.tolist() == [[start] * 2]
        for t, step in enumerate(batch.next_observation.observation.step[0]):
            assert step == start + t
            assert batch.next_observation.observation.place[0, t].tolist() == world.place(start + t, 0)
        for i in range(length):
            time = start + burn_in + i
            if world.history[time]["valid"][0]:
                assert batch.reward[i].item() == pytest.approx(transition(world, time, 0, n)[0], abs=1e-6)


def interrupted(worlds: Worlds, env: int) -> None:
    """Let an environment begin again at its next step, as one that was lost: the row is masked."""
    worlds.each[env].rollout.valid[-1] = False


@pytest.mark.parametrize("kind", [Replay, PrioritizedReplay, SequenceReplay])
@pytest.mark.parametrize("together", [False, True])  # both parts of env 1 come in one rollout
def test_no_return_reaches_over_an_episode_that_was_cut_off(kind, together):
    memory = kind is SequenceReplay
    worlds = Worlds(2, 2, 0, 0.0, Remembering if memory else World)
    replay = kind(worlds.rollout, 60, 3, **({"sequence_length": 2} if memory else {}))
    replay.append(worlds.collect_of([0, 1]))
    if together:
        lost = worlds.rollout
        for column, first in ((0, False), (1, True)):
            if first:
                interrupted(worlds, 1)
            part = worlds.each[1].collect()
            for _, target, source in each_column(lost.columns, lost, part):
                target[:, column] = source[:, 0]
        lost.env, last = torch.tensor([1, 1]), 3
        replay.append(lost)
    else:
        interrupted(worlds, 1)
        replay.append(worlds.collect_of([0, 1]))
        last = 1
    replay.append(worlds.collect_of([0, 1]))
    world, row = worlds.each[1], last * 2 + 1
    assert replay.ring.truncated.flatten().nonzero().flatten().tolist() == [row]
    rows = torch.tensor([row - 2, row]) if memory else torch.tensor([row])
    reward, discount, steps = (x[-1] for x in replay._ahead(rows, GAMMA))
    assert reward == world.history[last]["reward"][0] and discount == pytest.approx(GAMMA) and steps == 1
    if not memory:  # and bootstraps from the last observation of its own episode
        after = replay.gather(rows, GAMMA).next_observation
        assert after.step.item() == last + 1 and after.place[0].tolist() == world.place(last + 1, 0)


def test_an_episode_that_ended_in_the_last_row_stays_as_it_was():
    world = World(2, 3, 0, 0.8)
    replay, ends = Replay(world.rollout, 90), 0
    for _ in range(9):
        rollout = world.collect()
        ends += int((~rollout.valid[0]).sum())
        replay.append(rollout)
    happened = torch.stack([row["truncated"] for row in world.history])
    assert ends > 3 and torch.equal(replay.ring.truncated[: len(happened)], happened)


def test_columns_without_room_and_of_no_environment_are_refused():
    worlds = Worlds(4, 3, 0, 0.0)
    replay = Replay(worlds.rollout, 30)
    with pytest.raises(
        ValueError, match=r"8 rows of one environment, .* ring 9 rows of each: give a buffer_size of 30"
    ):
        Replay(worlds.rollout, 27).append(worlds.collect_of([0, 0, 1]))
    replay.append(worlds.collect_of([0, 0, 1]))
    for env in (-1, 3):
        rollout = worlds.collect_of([0, 1, 2])
        rollout.env = torch.tensor([0, 1, env])
        with pytest.raises(ValueError, match=rf"rollout.env has values .*{env}.*, of 3 envs"):
            replay.append(rollout)


def test_views_and_copies_of_a_rollout_know_their_environments():
    worlds = Worlds(4, 3, 0, 0.0)
    rollout = worlds.collect_of([2, 0, 0])
    rollout.lag = torch.tensor([0.0, 1.0, 2.0])
    part = rollout[:2, 1:]
    assert part.env.tolist() == [0, 0] and part.lag.tolist() == [1.0, 2.0]
    assert rollout.to("meta").env.shape == (3,) and rollout[:2].env.tolist() == [2, 0, 0]
