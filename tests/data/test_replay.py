"""The replay ring and its priorities, against slow and obvious references."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data import replay as replay_module
from headrace.data.priorities import SMALLEST, PrioritizedReplay
from headrace.data.replay import DRAWS, Replay, plan
from headrace.data.rollout import Column, Group, Rollout

COLUMNS = {
    "observation": {
        "place": Column((2,), bootstrap=True, feature_major=True),
        "step": Column((), torch.int32, bootstrap=True),
    },
    "valid": Column(dtype=torch.bool, bootstrap=True),
    "action": Column((), torch.int32),
    "reward": Column(),
    "terminated": Column(dtype=torch.bool),
    "truncated": Column(dtype=torch.bool),
    "hint": Column(),
}
GAMMA = 0.9


class World:
    """N envs that end at random, by next-step autoreset; remembers all that happened. observation.step is the time."""

    def __init__(self, num_steps: int, num_envs: int, seed: int, ends: float) -> None:
        self.rollout = Rollout(num_steps, num_envs, COLUMNS)
        self.generator, self.ends, self.time = torch.Generator().manual_seed(seed), ends, 0
        self.history: list[dict[str, torch.Tensor]] = []  # one entry a step
        self.rollout.valid[0] = True
        self._observe(0)

    def _observe(self, t: int) -> None:
        self.rollout.observation.step[t] = self.time
        self.rollout.observation.place[t] = torch.rand(
            self.rollout.observation.place[t].shape, generator=self.generator
        )

    def collect(self) -> Rollout:
        rollout = self.rollout
        if self.time:
            rollout.continue_from(rollout)
        for t in range(rollout.num_steps):
            live = rollout.valid[t]
            draw = torch.rand(4, rollout.num_envs, generator=self.generator)
            rollout.action[t] = (draw[0] * 5).int()
            rollout.reward[t] = draw[1] * live
            rollout.hint[t] = draw[2]
            rollout.terminated[t] = live & (draw[3] < self.ends / 2)
            rollout.truncated[t] = live & (draw[3] > 1 - self.ends / 2)
            names = ("valid", "action", "reward", "terminated", "truncated", "hint")
            row = {name: getattr(rollout, name)[t].clone() for name in names}
            self.history.append(row | {"place": rollout.observation.place[t].clone()})
            self.time += 1
            rollout.valid[t + 1] = ~(rollout.terminated[t] | rollout.truncated[t])
            self._observe(t + 1)
        self.edge = rollout.observation.place[-1].clone()
        return rollout

    def place(self, time: int, env: int) -> list[float]:
        return (self.edge if time == self.time else self.history[time]["place"])[env].tolist()


def transition(world: World, time: int, env: int, n: int) -> tuple[float, float, int]:
    """(reward, discount, time of the observation after) of up to n steps, one after another."""
    reward, discount = 0.0, 1.0
    for k in range(n):
        row = world.history[time + k]
        reward += discount * row["reward"][env].item()
        discount *= GAMMA
        if row["terminated"][env]:
            return reward, 0.0, time + k + 1
        if row["truncated"][env]:
            return reward, discount, time + k + 1
    return reward, discount, time + n


def drawable(world: World, replay: Replay) -> dict[int, tuple[int, int]]:
    """Row in the ring -> (time, env), for all that has been written, not been overwritten, and has its successor."""
    oldest = max(0, world.time - replay.length + 1)
    times = range(oldest, world.time - replay.num_steps + 1)
    return {
        time % replay.length * replay.num_envs + env: (time, env) for time in times for env in range(replay.num_envs)
    }


sizes = {
    "num_steps": st.integers(1, 4),
    "num_envs": st.integers(1, 3),
    "n": st.integers(1, 4),
    "room": st.integers(0, 9),
    "rollouts": st.integers(1, 9),
    "seed": st.integers(0, 2**31),
    "ends": st.sampled_from((0.0, 0.3, 0.8)),
}


@given(**sizes)
@settings(max_examples=60)
def test_every_row_gives_the_transition_that_happened(num_steps, num_envs, n, room, rollouts, seed, ends):
    world = World(num_steps, num_envs, seed, ends)
    replay = Replay(world.rollout, (num_steps + n + 1 + room) * num_envs, n, ("hint",))
    for _ in range(rollouts):
        replay.append(world.collect())
    at = drawable(world, replay)
    rows = torch.tensor(list(at), dtype=torch.int64).view(-1, 1)
    batch = replay.gather(rows, GAMMA)
    assert batch.observation.place.shape == (len(at), 1, 2) and batch.reward.shape == rows.shape
    for i, (time, env) in enumerate(at.values()):
        part = batch[i, 0]
        then = world.history[time]
        assert part.observation.place.tolist() == world.place(time, env) and part.observation.step == time
        assert part.action == then["action"][env] and bool(part.weight) == bool(then["valid"][env])
        assert replay.ring.hint.flatten()[rows[i, 0]] == then["hint"][env]
        if then["valid"][env]:
            reward, discount, after = transition(world, time, env, n)
            assert part.reward.item() == pytest.approx(reward, abs=1e-6)
            assert part.discount.item() == pytest.approx(discount, abs=1e-6)
            assert part.next_observation.place.tolist() == world.place(after, env)
            assert part.next_observation.step == after


@given(**sizes)
@settings(max_examples=40)
def test_only_what_can_be_drawn_is_drawn(num_steps, num_envs, n, room, rollouts, seed, ends):
    world = World(num_steps, num_envs, seed, ends)
    replay = Replay(world.rollout, (num_steps + n + 1 + room) * num_envs, n)
    for _ in range(rollouts):
        replay.append(world.collect())
    at = drawable(world, replay)
    if at:
        random = torch.rand(50, 2, DRAWS, generator=torch.Generator().manual_seed(seed))
        random[0] = 1 - 2**-24  # the largest there is
        assert set(replay.draw(random).flatten().tolist()) <= set(at)


@pytest.mark.parametrize("prioritized", [False, True])
def test_live_rows_are_drawn_alike_and_dead_ones_hardly_ever(prioritized):
    world = World(4, 3, 0, 0.2)
    replay = (PrioritizedReplay if prioritized else Replay)(world.rollout, 60, 2)
    for _ in range(11):
        replay.append(world.collect())
    at = drawable(world, replay)
    live = [row for row, (time, env) in at.items() if world.history[time]["valid"][env]]
    assert len(live) < len(at)
    random = torch.rand(40, 1000, DRAWS, generator=torch.Generator().manual_seed(1))
    rows = replay.draw(random)
    counts = torch.bincount(rows.flatten(), minlength=60)
    expected = 40_000 / len(live)
    assert counts[live].sum() >= 40_000 * (1 if prioritized else 0.98)
    assert (counts[live] - expected).abs().max() < 5 * expected**0.5


def test_a_large_ring_has_no_row_that_draws_cannot_tell_from_its_neighbour():
    """Float32 draws have 2^24 values; a ring may have more rows."""
    like = Rollout(1, 1, {name: COLUMNS[name] for name in COLUMNS if name != "observation"} | {"observation": Column()})
    replay = Replay(like, 100)
    replay.length, replay.ring.valid = 2**26, torch.ones(1, 1, dtype=torch.bool).expand(2**26, 1)
    replay.written.fill_(2**26)
    random = torch.rand(2000, DRAWS, generator=torch.Generator().manual_seed(0))
    rows = replay.draw(random)
    assert all(len(torch.unique(rows % k)) == k for k in (2, 4, 8)) and rows.max() < 2**26


@given(**sizes)
@settings(max_examples=40)
def test_a_restored_replay_goes_on_as_the_first(num_steps, num_envs, n, room, rollouts, seed, ends):
    world, capacity = World(num_steps, num_envs, seed, ends), (num_steps + n + 1 + room) * num_envs
    first, second = (PrioritizedReplay(world.rollout, capacity, n) for _ in range(2))
    for _ in range(rollouts):
        first.append(world.collect())
    state = first.state_dict()
    # only what has been written
    assert sum(len(piece["valid"]) for piece in state["rows"]) == min(first.length, world.time + 1) * num_envs
    second.load_state_dict(state)
    rollout = world.collect()
    for replay in (first, second):
        replay.append(rollout)
    assert torch.equal(first.tree, second.tree)
    rows = torch.tensor(list(drawable(world, first)) or [0], dtype=torch.int64)
    for one, two in zip(first.gather(rows, GAMMA), second.gather(rows, GAMMA), strict=True):
        if isinstance(one, Group):
            assert torch.equal(one.place, two.place) and torch.equal(one.step, two.step)
        else:
            assert torch.equal(one, two)


def test_a_step_of_learning_is_undone_by_the_state_before_it():
    world = World(2, 3, 0, 0.1)
    replay = PrioritizedReplay(world.rollout, 60, alpha=1.0)
    replay.append(world.collect())
    before, state = replay.tree.clone(), replay.state_dict()
    replay.update(torch.tensor([0, 1, 2]), torch.tensor([5.0, 6.0, 7.0]))
    assert not torch.equal(replay.tree, before)
    replay.load_state_dict(state)
    assert torch.equal(replay.tree, before)


def test_a_state_of_another_size_is_refused():
    world = World(2, 3, 0, 0.1)
    replay = Replay(world.rollout, 60)
    replay.append(world.collect())
    with pytest.raises(ValueError, match=r"3 rows of 3 envs .* 20 rows of 2 envs cannot continue"):
        Replay(World(2, 2, 0, 0.1).rollout, 40).load_state_dict(replay.state_dict())


@given(**sizes)
@settings(max_examples=40)
def test_priorities_are_those_of_the_rows_that_can_be_drawn(num_steps, num_envs, n, room, rollouts, seed, ends):
    """A dictionary of priorities, kept row by row, says the same as the tree."""
    world = World(num_steps, num_envs, seed, ends)
    replay = PrioritizedReplay(world.rollout, (num_steps + n + 1 + room) * num_envs, n, alpha=0.7)
    replay.beta.fill_(0.5)
    generator = torch.Generator().manual_seed(seed)
    known: dict[tuple[int, int], float] = {}
    highest = 1.0
    for _ in range(rollouts):
        replay.append(world.collect())
        at = drawable(world, replay)
        live = {row: place for row, place in at.items() if world.history[place[0]]["valid"][place[1]]}
        known = {place: known.get(place, highest) for place in live.values()}
        leaves = replay.leaves()
        for row in range(replay.length * num_envs):
            assert leaves[row].item() == pytest.approx(known[live[row]] if row in live else 0.0)
        assert replay.tree[1].item() == pytest.approx(sum(known.values()))
        if live:
            rows = replay.draw(torch.rand(3, 5, DRAWS, generator=generator))
            weight = replay.gather(rows, GAMMA).weight
            assert set(rows.flatten().tolist()) <= set(live)
            drawn = torch.tensor([[known[live[row]] for row in line] for line in rows.tolist()])
            assert torch.allclose(weight, (drawn.amin(1, keepdim=True) / drawn) ** 0.5, atol=1e-5)
            error = torch.randn(3, 5, generator=generator)
            replay.update(rows, error)
            new: dict[tuple[int, int], float] = {}
            for row, value in zip(rows.flatten().tolist(), error.flatten().tolist(), strict=True):
                new[live[row]] = max(new.get(live[row], 0.0), (abs(value) + SMALLEST) ** 0.7)
            known |= new
            highest = max(highest, *new.values())


def test_rows_are_drawn_in_proportion_to_their_priority():
    world = World(4, 3, 0, 0.2)
    replay = PrioritizedReplay(world.rollout, 60, alpha=1.0)
    for _ in range(11):
        replay.append(world.collect())
    generator = torch.Generator().manual_seed(2)
    replay.update(torch.arange(60), torch.rand(60, generator=generator) * 9)
    rows = replay.draw(torch.rand(50, 1000, DRAWS, generator=generator))
    share = replay.leaves() / replay.tree[1]
    counts = torch.bincount(rows.flatten(), minlength=60)
    assert (counts - 50_000 * share).abs().max() < 5 * (50_000 * share.max()) ** 0.5


def test_the_memory_is_planned_and_refused_with_numbers(monkeypatch):
    like = World(2, 64, 0, 0.1).rollout
    monkeypatch.setattr(replay_module, "free_memory", lambda device: 2**40)
    # two floats, int32 step, valid, action, reward, terminated, truncated
    assert plan(like, 100_000) == "replay: 99,968 steps x 23 bytes = 2.2 MiB"
    assert plan(like, 10**8, ("hint",), 16) == "replay: 100,000,000 steps x 43 bytes = 4.0 GiB"
    monkeypatch.setattr(replay_module, "free_memory", lambda device: 2**20)
    with pytest.raises(MemoryError, match=r"2\.2 MiB, and 1\.0 MiB are free on cpu: set buffer_size to 45,590 or less"):
        plan(like, 100_000)


def test_a_ring_too_short_for_one_draw_is_refused():
    with pytest.raises(ValueError, match=r"at least 6 are needed: let buffer_size be 18 or more"):
        Replay(World(2, 3, 0, 0.1).rollout, 15, 3)
