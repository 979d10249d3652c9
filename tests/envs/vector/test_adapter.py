"""Worlds of vector libraries become the rows that everybody else knows, whenever the library resets them."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from headrace import envs
from headrace.core.returns import gae
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
from headrace.envs.vector.adapter import VectorAdapter
from headrace.envs.vector.gymnasium_vector import GymnasiumSource

STEPS, NUM_ENVS = 60, 4
MODES = list(AutoresetMode)


class Count(gymnasium.Env):
    """Sees (environment, episode, step); terminates after 3 + environment steps where the episode is even, else is
    truncated after 5 + environment. Its reward is a function of step and action. So all rows differ."""

    observation_space = Box(-np.inf, np.inf, (3,))
    action_space = Discrete(3)

    def __init__(self, world=0):
        self.world, self.episode, self.age = world, -1, 0

    def reset(self, *, seed=None, options=None):
        self.episode += 1
        self.age = 0
        return self._seen(), {}

    def step(self, action):
        self.age += 1
        even = self.episode % 2 == 0
        ends = self.age == (3 if even else 5) + self.world
        return self._seen(), self.age + 0.1 * float(action), ends and even, ends and not even, {}

    def _seen(self):
        return np.array([self.world, self.episode, self.age], np.float32)


class DictCount(Count):
    observation_space = Dict(a=Box(-np.inf, np.inf, (2,)), b=Dict(c=Box(-np.inf, np.inf, (1,))))

    def _seen(self):
        seen = super()._seen()
        return {"a": seen[:2], "b": {"c": seen[2:]}}


def counts(mode, kind=SyncVectorEnv, world=Count, num_envs=NUM_ENVS):
    return kind([lambda n=n: world(n) for n in range(num_envs)], autoreset_mode=mode)


def rollout_of(env, steps=STEPS):
    return Rollout(
        steps, env.num_envs, env_columns(env.observation_space) | {"action": action_column(env.action_space)}
    )


def run(env, steps=STEPS, seed=0):
    """A rollout by actions of a fixed pattern."""
    rollout = rollout_of(env, steps)
    rollout.action.copy_(torch.arange(steps * env.num_envs).view(steps, env.num_envs) % int(env.action_space.n))
    env.reset(rollout, seed)
    for t in range(steps):
        env.step(rollout, t)
    return rollout


def advantages(rollout):
    """Advantages by gae, with a made-up critic that is a function of the observation."""
    value = (rollout.observation * torch.tensor([0.5, 0.01, 0.2])).sum(-1).sin()
    ends = (rollout.terminated, rollout.truncated)
    return gae(rollout.reward, value[:-1], value[1:], *ends, 0.97, 0.9)


def slow_advantages(world, steps, mode):
    """The same for one world, episode by episode, from the definition: {(episode, age): advantage}, of whole episodes
    that ended within `steps` rows of which each episode's last is dead. Unless the library resets at the next step, the
    masked step has the next episode's first step."""
    env, row, found = Count(world), 0, {}
    value = lambda seen: float(np.sin(seen @ np.array([0.5, 0.01, 0.2])))  # noqa: E731
    while True:
        seen, _ = env.reset()
        begins = int(mode is not AutoresetMode.NEXT_STEP and row > 0)
        if begins:
            seen, *_ = env.step(0)
        rewards, values, over = [], [value(seen)], False
        while not over:
            if row >= steps:
                return found
            seen, reward, terminated, truncated, _ = env.step((row * NUM_ENVS + world) % 3)
            over = terminated or truncated
            rewards.append(reward)
            values.append(0.0 if terminated else value(seen))
            row += 1
        deltas = [r + 0.97 * after - before for r, before, after in zip(rewards, values, values[1:], strict=False)]
        for age in range(len(deltas)):
            found[env.episode, begins + age] = sum(delta * (0.97 * 0.9) ** k for k, delta in enumerate(deltas[age:]))
        row += 1  # the dead one


@pytest.mark.parametrize("mode", MODES)
def test_advantages_are_those_of_the_definition(mode):
    rollout = run(VectorAdapter(GymnasiumSource(counts(mode))))
    advantage = advantages(rollout)
    for world in range(NUM_ENVS):
        expected = list(slow_advantages(world, STEPS, mode).values())
        live = rollout.valid[:STEPS, world]
        mine = advantage[live, world][: len(expected)]
        assert len(expected) > 30
        torch.testing.assert_close(mine, torch.tensor(expected), rtol=1e-4, atol=1e-4)


class Begun(Count):
    """The first step of each episode but the first is in its reset, by the action of the row: as a row sees it of
    worlds of which the others go on."""

    def __init__(self, world, begun):
        super().__init__(world)
        self.begun = begun

    def reset(self, **options):
        found = super().reset()
        if self.begun and self.episode > 0:
            found = self.step(0)[0], {}
        return found


class DictBegun(Begun, DictCount):
    pass


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("world", "alone"), [(Count, Begun), (DictCount, DictBegun)])
def test_rows_are_those_of_the_same_worlds_one_by_one(mode, world, alone):
    theirs = run(VectorAdapter(GymnasiumSource(counts(mode, world=world))))
    places, begun = iter(range(NUM_ENVS)), mode is not AutoresetMode.NEXT_STEP
    mine = run(envs.make(lambda: alone(next(places), begun), NUM_ENVS))
    for name in ("valid", "reward", "terminated", "truncated"):
        assert torch.equal(getattr(theirs, name), getattr(mine, name)), name
    dead = ~mine.valid[:STEPS]
    assert dead.sum() > 20 and mine.valid.any(1).all()
    unseen = torch.zeros(STEPS, NUM_ENVS)  # rewards and steps of masked steps
    for place, row in dead.T.nonzero().tolist() if begun else []:
        for after in dead[row + 1 :, place].nonzero()[:1]:
            unseen[row + 1 + after, place] = 1 + 0.1 * ((row * NUM_ENVS + place) % 3)
    assert torch.equal(theirs.episode_length[dead], mine.episode_length[dead] + (unseen[dead] > 0))
    torch.testing.assert_close(theirs.episode_return[dead], mine.episode_return[dead] + unseen[dead])
    see = (lambda o: torch.cat([o.a, o.b.c], -1)) if world is DictCount else (lambda o: o)
    assert torch.equal(see(theirs.observation), see(mine.observation))


@pytest.mark.parametrize("mode", MODES)
def test_each_episode_is_reset_once(mode):
    ages = []

    class Old(Count):
        def reset(self, **options):
            ages.append(self.age)
            return super().reset(**options)

    env = VectorAdapter(GymnasiumSource(counts(mode, world=Old)))
    rollout = run(env)
    assert 0 not in ages[NUM_ENVS:] and {*ages[NUM_ENVS:]} == {3, 4, 5, 6, 7, 8}
    assert len(ages) >= NUM_ENVS + (~rollout.valid[:STEPS]).sum()
    env.load_state_dict(env.state_dict())
    del ages[:]
    env.reset(rollout, 1)
    env.load_state_dict(env.state_dict())
    env.step(rollout, 0)
    assert len(ages) == NUM_ENVS, "those that were begun have had no step"


@pytest.mark.parametrize("mode", MODES)
def test_a_world_alone_is_not_stepped_while_it_is_reset(mode):
    if mode is AutoresetMode.SAME_STEP:
        return
    rollout = run(VectorAdapter(GymnasiumSource(counts(mode, num_envs=1))), 12)
    assert rollout.observation[:12, 0, 2].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0, 1]


class Short(Count):
    """Each episode has one step."""

    def step(self, action):
        self.age += 1
        return self._seen(), 1.0, True, False, {}


@pytest.mark.parametrize("mode", MODES)
def test_episodes_of_one_step_are_seen(mode):
    envs_ = SyncVectorEnv([lambda: Short(0), lambda: Count(1)], autoreset_mode=mode)
    rollout = run(VectorAdapter(GymnasiumSource(envs_)), 12)
    assert rollout.valid[:, 0].tolist() == [True, False] * 6 + [True]
    seen = rollout.observation[:12, 0]
    assert (seen[::2, 2] == 0).all() and (seen[1::2, 2] == 1).all()
    assert (rollout.reward[::2, 0] == 1).all() and rollout.terminated[::2, 0].all()
    assert {*rollout.episode_length[1::2, 0].tolist()} == {1}


def test_worlds_in_processes():
    worlds = counts(AutoresetMode.SAME_STEP, AsyncVectorEnv, num_envs=2)
    env = VectorAdapter(GymnasiumSource(worlds))
    rollout = run(env, 12)
    env.close()
    assert rollout.valid[:, 0].tolist() == [True] * 3 + [False] + [True] * 4 + [False] + [True] * 2 + [False, True]
    assert rollout.observation[:11, 0, 2].tolist() == [0, 1, 2, 3, 1, 2, 3, 4, 5, 1, 2]


class Unmasked(VectorEnv):
    """Vector whose library resets all environments or none, and takes no masks."""

    def __init__(self, mode, num_envs=NUM_ENVS, final=True):
        self.worlds, self.final = counts(mode, num_envs=num_envs), final
        self.metadata = {"autoreset_mode": mode}
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = Count.observation_space, Count.action_space

    def reset(self, *, seed=None, options=None):
        assert not options, "it knows no options"
        return self.worlds.reset(seed=seed)

    def step(self, actions):
        *outcome, info = self.worlds.step(actions)
        return *outcome, info if self.final else {}


def test_where_some_cannot_be_reset_the_first_step_goes_unseen():
    """A library that resets at once has stepped its environment by the time that the masked step is over."""
    rollout = run(VectorAdapter(GymnasiumSource(Unmasked(AutoresetMode.SAME_STEP))), 40)
    first = rollout.observation[:, 0]
    assert first[:6].tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 0, 3], [0, 1, 1], [0, 1, 2]]
    dead = (~rollout.valid[:40, 0]).nonzero().flatten().tolist()
    assert dead[:2] == [3, 8]
    assert rollout.episode_length[dead[:2], 0].tolist() == [3, 5], "the unseen step counts"
    assert rollout.episode_return[8, 0] == pytest.approx(15 + 0.1 * sum((4 * t) % 3 for t in range(3, 8)))


def test_the_library_that_tells_no_last_observation_gets_a_warning_once():
    env = VectorAdapter(GymnasiumSource(Unmasked(AutoresetMode.SAME_STEP, final=False)))
    with pytest.warns(UserWarning, match="Unmasked gives no final observations") as caught:
        rollout = run(env)
    assert len(caught) == 1
    ends = ~rollout.valid[1 : STEPS + 1] & rollout.valid[:STEPS]
    assert torch.equal(rollout.terminated | rollout.truncated, ends) and rollout.truncated.any()
    before, final = rollout.observation[:-1][ends], rollout.observation[1:][ends]
    assert torch.equal(before, final), "the last ones that were seen"


@pytest.mark.parametrize("mode", MODES)
def test_worlds_that_are_cut_off_begin_anew(mode):
    """Episodes are cut off between two rollouts, as headrace.parallel.stagger does it."""
    env = VectorAdapter(GymnasiumSource(counts(mode)))
    rollout = run(env, 2)
    rollout.valid[-1, 1:3] = False
    rollout.continue_from(rollout)
    env.step(rollout, 0)
    assert rollout.valid[1].tolist() == [False, True, True, True]
    assert rollout.observation[1, :, 2].tolist() == [3, 0, 0, 3]
    assert rollout.reward[0, 1:3].tolist() == [0, 0]
    assert rollout.episode_length[0, 1:3].tolist() == [2, 2]
    env.step(rollout, 1)
    assert rollout.observation[2, 1:, 2].tolist() == [1, 1, 4]


def test_worlds_that_cannot_be_cut_off_go_on():
    env = VectorAdapter(GymnasiumSource(Unmasked(AutoresetMode.NEXT_STEP)))
    rollout = run(env, 2)
    rollout.valid[-1, :2] = False
    rollout.continue_from(rollout)
    env.step(rollout, 0)  # unseen, the episode of world 0 ends: 3 steps
    assert rollout.valid[1].tolist() == [False, True, True, True]
    assert rollout.episode_length[0, :2].tolist() == [0, 0], "no episode has ended"
    env.step(rollout, 1)
    assert rollout.episode_length[1, 0] == 3
    assert rollout.observation[2, :2, 1:].tolist() == [[1, 0], [0, 4]]


@pytest.mark.parametrize("mode", MODES)
def test_a_loaded_state_begins_new_episodes(mode):
    env = VectorAdapter(GymnasiumSource(counts(mode)))
    rollout = run(env, 7)
    rollout.continue_from(rollout)
    env.load_state_dict(env.state_dict())
    env.step(rollout, 0)
    assert not rollout.valid[0].any() and rollout.valid[1].all()
    assert rollout.observation[1, :, 2].tolist() == [0] * NUM_ENVS
    assert rollout.reward[0].tolist() == [0] * NUM_ENVS


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_gives_the_same_episodes(mode):
    def worlds():
        return SyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 3, autoreset_mode=mode)

    first, again, other = (run(VectorAdapter(GymnasiumSource(worlds())), 30, seed) for seed in (5, 5, 6))
    assert torch.equal(first.observation, again.observation)
    assert not torch.equal(first.observation, other.observation)


def test_box_actions_are_clipped_and_the_column_keeps_them():
    seen = []

    class Box1(Count):
        action_space = Box(-1, 1, (2,))

        def step(self, action):
            seen.append(action.tolist())
            return super().step(0)

    env = VectorAdapter(GymnasiumSource(SyncVectorEnv([Box1])))
    rollout = rollout_of(env, 1)
    env.reset(rollout, 0)
    rollout.action[0] = torch.tensor([[-3.0, 0.5]])
    env.step(rollout, 0)
    assert seen == [[-1.0, 0.5]]
    assert rollout.action[0].tolist() == [[-3.0, 0.5]]


def test_rewards_are_clipped_and_returns_are_not():
    rollout = run(VectorAdapter(GymnasiumSource(counts(AutoresetMode.NEXT_STEP)), clip_reward=(-1, 1)), 4)
    assert rollout.reward[:3, 0].tolist() == [1, 1, 1]
    assert rollout.episode_return[3, 0] > 6
