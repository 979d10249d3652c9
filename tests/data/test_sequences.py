"""Sequences drawn from a replay: what happened, in order, from the memory that was there; against a slow reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.replay import DRAWS
from headrace.data.rollout import Column, Group, Rollout
from headrace.data.sequences import SequenceReplay
from tests.data.test_replay import COLUMNS, GAMMA, World, transition


class Remembering(World):
    """A World whose rollouts have memory: 100 * env + the time."""

    def __init__(self, num_steps: int, num_envs: int, seed: int, ends: float) -> None:
        super().__init__(num_steps, num_envs, seed, ends)
        first = self.rollout
        self.rollout = Rollout(num_steps, num_envs, COLUMNS | {"rnn_state": Column((2,))})
        self.rollout.valid[0] = True
        self.rollout.observation[0] = first.observation[0]

    def collect(self) -> Rollout:
        first, rollout = self.time, super().collect()
        time = first + torch.arange(rollout.num_steps, dtype=torch.float32).view(-1, 1, 1)
        rollout.rnn_state.copy_(time + 100 * torch.arange(rollout.num_envs).view(1, -1, 1))
        return rollout


sizes = {
    "num_steps": st.integers(1, 5),
    "num_envs": st.integers(1, 3),
    "n": st.integers(1, 3),
    "length": st.integers(1, 4),
    "burn_in": st.integers(0, 5),
    "room": st.integers(0, 9),
    "rollouts": st.integers(1, 12),
    "seed": st.integers(0, 2**31),
    "ends": st.sampled_from((0.0, 0.3, 0.8)),
}


def filled(num_steps, num_envs, n, length, burn_in, room, rollouts, seed, ends):
    world = Remembering(num_steps, num_envs, seed, ends)
    steps = num_steps + burn_in + 3 * length + n + room
    replay = SequenceReplay(world.rollout, steps * num_envs, n, sequence_length=length, burn_in=burn_in)
    for _ in range(rollouts):
        replay.append(world.collect())
    return world, replay


def drawable(world, replay):
    """First row learned from -> (time at which its sequence begins, env), for each sequence that is there whole."""
    starts = range(0, world.time, replay.sequence_length)
    whole = [s for s in starts if s > world.time - replay.length and s + replay.n_step_span <= world.time]
    return {
        (start + replay.burn_in) % replay.length * replay.num_envs + env: (start, env)
        for start in whole
        for env in range(replay.num_envs)
    }


@given(**sizes)
@settings(max_examples=60)
def test_whole_sequences_are_drawn_and_no_others(**size):
    world, replay = filled(**size)
    there = drawable(world, replay)
    if there:
        random = torch.rand(
            60, 2 * replay.sequence_length, DRAWS, generator=torch.Generator().manual_seed(size["seed"])
        )
        random[0] = 1 - 2**-24  # the largest there is
        random[1] = 0.0
        rows = replay.draw(random).view(60, 2, replay.sequence_length)
        assert set(rows[..., 0].flatten().tolist()) <= set(there)
        around = replay.length * replay.num_envs
        for k in range(replay.sequence_length):
            assert torch.equal(rows[..., k], (rows[..., 0] + k * replay.num_envs) % around)
        if size["rollouts"] * size["num_steps"] > 30 and len(there) < 5:
            assert set(rows[..., 0].flatten().tolist()) == set(there)


@given(**sizes)
@settings(max_examples=60)
def test_a_batch_is_what_happened(**size):
    world, replay = filled(**size)
    length, burn_in = replay.sequence_length, replay.burn_in
    for first, (start, env) in drawable(world, replay).items():
        rows = (first + torch.arange(length) * replay.num_envs) % (replay.length * replay.num_envs)
        batch = replay.gather(rows.view(1, length), GAMMA)[0]
        for history in (batch.observation, batch.next_observation):
            assert history.rnn_state.tolist() == [[start + 100 * env] * 2]
            for t, (step, valid) in enumerate(zip(history.observation.step[0], history.valid[0], strict=True)):
                assert step == start + t and history.observation.place[0, t].tolist() == world.place(start + t, env)
                if start + t < world.time:
                    assert valid == world.history[start + t]["valid"][env]
        assert batch.observation.valid.shape[1] == burn_in + length
        assert batch.observation.at[0].tolist() == list(range(burn_in, burn_in + length))
        for i in range(length):
            time = start + burn_in + i
            then = world.history[time]
            assert batch.action[i] == then["action"][env] and bool(batch.weight[i]) == bool(then["valid"][env])
            if then["valid"][env]:
                reward, discount, after = transition(world, time, env, replay.num_steps)
                assert batch.reward[i].item() == pytest.approx(reward, abs=1e-6)
                assert batch.discount[i].item() == pytest.approx(discount, abs=1e-6)
                assert start + int(batch.next_observation.at[0, i]) == after


def test_a_restored_replay_goes_on_as_the_first():
    world, first = filled(3, 2, 2, 4, 3, 5, 9, 0, 0.3)
    second = SequenceReplay(world.rollout, first.length * 2, 2, sequence_length=4, burn_in=3)
    second.load_state_dict(first.state_dict())
    rollout = world.collect()
    random = torch.rand(5, 8, DRAWS, generator=torch.Generator().manual_seed(0))
    batches = []
    for replay in (first, second):
        replay.append(rollout)
        batches.append(replay.gather(replay.draw(random), GAMMA))
    for one, two in zip(*batches, strict=True):
        if isinstance(one, Group):
            assert torch.equal(one.rnn_state, two.rnn_state) and torch.equal(one.at, two.at)
            assert torch.equal(one.observation.place, two.observation.place)
        else:
            assert torch.equal(one, two)


def test_sizes_that_cannot_be_are_refused_with_numbers():
    like = Remembering(2, 3, 0, 0.1).rollout
    with pytest.raises(
        ValueError, match=r"12 steps of each of 3 environments and at least 15 are needed: let buffer_size be 45"
    ):
        SequenceReplay(like, 42, sequence_length=4, burn_in=5)
    replay = SequenceReplay(like, 60, sequence_length=4, burn_in=5)
    assert replay.length == 20
    with pytest.raises(ValueError, match="10 rows are not whole sequences of 4"):
        replay.draw(torch.rand(2, 10, DRAWS))
