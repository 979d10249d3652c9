"""Worlds of vector libraries become the rows that everybody else knows, whenever the library resets them."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

import headrace as hr
from headrace import envs
from headrace.core.returns import gae
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
from headrace.envs.vector.adapter import VectorAdapter
from headrace.envs.vector.gymnasium_vector import GymnasiumSource

STEPS, NUM_ENVS = 60, 4
MODES = list(AutoresetMode)


class Count(gymnasium.Env):
    """Sees (world, episode, step); terminates after 3 + world steps where the episode is even, else is truncated after
    5 + world. Its reward tells step and action. So every row can be told from every other. An episode that is given up
    within a step is not counted: what nobody sees does not show."""

    observation_space = Box(-np.inf, np.inf, (3,))
    action_space = Discrete(3)

    def __init__(self, world=0):
        self.world, self.episode, self.age = world, -1, 0

    def reset(self, *, seed=None, options=None):
        self.episode += self.age > 1 or self.episode < 0
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
    """By gae, of a made-up critic that knows what it looks at."""
    value = (rollout.observation * torch.tensor([0.5, 0.01, 0.2])).sum(-1).sin()
    ends = (rollout.terminated, rollout.truncated)
    return gae(rollout.reward, value[:-1], value[1:], *ends, 0.97, 0.9)


def slow_advantages(world, steps):
    """The same for one world, episode by episode, from the definition: {(episode, age): advantage}, of whole episodes
    that ended within `steps` rows of which each episode's last is dead."""
    env, row, found = Count(world), 0, {}
    value = lambda seen: float(np.sin(seen @ np.array([0.5, 0.01, 0.2])))  # noqa: E731
    while True:
        seen, _ = env.reset()
        rewards, values, over = [], [value(seen)], False
        while not over:
            if row == steps:
                return found
            seen, reward, terminated, truncated, _ = env.step((row * NUM_ENVS + world) % 3)
            over = terminated or truncated
            rewards.append(reward)
            values.append(0.0 if terminated else value(seen))
            row += 1
        deltas = [r + 0.97 * after - before for r, before, after in zip(rewards, values, values[1:], strict=False)]
        for age in range(len(deltas)):
            found[env.episode, age] = sum(delta * (0.97 * 0.9) ** k for k, delta in enumerate(deltas[age:]))
        row += 1  # the dead one


@pytest.mark.parametrize("mode", MODES)
def test_advantages_are_those_of_the_definition(mode):
    rollout = run(VectorAdapter(GymnasiumSource(counts(mode))))
    advantage = advantages(rollout)
    for world in range(NUM_ENVS):
        expected = list(slow_advantages(world, STEPS).values())
        live = rollout.valid[:STEPS, world]
        mine = advantage[live, world][: len(expected)]
        assert len(expected) > 30
        torch.testing.assert_close(mine, torch.tensor(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("world", [Count, DictCount])
def test_rows_are_those_of_the_same_worlds_one_by_one(mode, world):
    theirs = run(VectorAdapter(GymnasiumSource(counts(mode, world=world))))
    places = iter(range(NUM_ENVS))
    mine = run(envs.make(lambda: world(next(places)), NUM_ENVS))
    for name in ("valid", "reward", "terminated", "truncated"):
        assert torch.equal(getattr(theirs, name), getattr(mine, name)), name
    dead = ~mine.valid[:STEPS]
    assert dead.sum() > 20
    for name in ("episode_return", "episode_length"):
        assert torch.equal(getattr(theirs, name)[dead], getattr(mine, name)[dead]), name
    see = (lambda o: torch.cat([o.a, o.b.c], -1)) if world is DictCount else (lambda o: o)
    assert torch.equal(see(theirs.observation), see(mine.observation))


def test_worlds_in_processes():
    worlds = counts(AutoresetMode.SAME_STEP, AsyncVectorEnv, num_envs=2)
    env = VectorAdapter(GymnasiumSource(worlds))
    rollout = run(env, 12)
    env.close()
    assert rollout.valid[:, 0].tolist() == [True, True, True, False, True, True, True, True, True, False] + [True] * 3
    assert rollout.observation[:11, 0, 2].tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 0]


class Unmasked(VectorEnv):
    """Worlds of which the library resets all or none, and that knows no masks."""

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
    """Of a library that resets at once: its world has moved by the time that the dead row is over."""
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
    assert not rollout.truncated.any()
    ends = ~rollout.valid[1 : STEPS + 1] & rollout.valid[:STEPS]
    assert torch.equal(rollout.terminated, ends)


@pytest.mark.parametrize("mode", MODES)
def test_worlds_that_are_cut_off_begin_anew(mode):
    """As headrace.parallel.stagger does it, between two rollouts."""
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


# ---- by make() and train()


def test_make_by_backend_takes_the_vector_that_an_id_brings():
    env = envs.make("CartPole-v1", 3, backend="vector")
    assert env.backend == "vector" and env.max_steps == 500
    assert run(env, 30).valid.sum() < 93, "some ended"


def test_make_takes_functions_and_classes_of_many():
    def many(num_envs):
        return counts(AutoresetMode.SAME_STEP, num_envs=num_envs)

    class Many(Unmasked):
        def __init__(self, num_envs):
            super().__init__(AutoresetMode.NEXT_STEP, num_envs)

    assert envs.make(many, 3).num_envs == 3
    assert envs.make(Many, 5).num_envs == 5
    with pytest.raises(ValueError, match="gave 4 environments where 2 were asked for"):
        envs.make(lambda num_envs: counts(AutoresetMode.SAME_STEP), 2)
    with pytest.raises(TypeError, match="let the function take a parameter `num_envs`"):
        envs.make(lambda: counts(AutoresetMode.SAME_STEP), 2)


def test_what_make_refuses():
    with pytest.raises(ValueError, match="does not come as a vector"):
        envs.make("MountainCar-v0", 2, backend="vector")
    with pytest.raises(TypeError, match="takes no wrappers"):
        envs.make("CartPole-v1", 2, backend="vector", wrappers=[lambda env: env])
    silent = Unmasked(AutoresetMode.NEXT_STEP)
    silent.metadata = {}
    with pytest.raises(ValueError, match="set it to gymnasium"):
        envs.adapted(silent)
    with pytest.raises(TypeError, match="has no device, observation_space"):
        envs.adapted(type("Half", (), {"num_envs": 1, "step": 0, "reset": 0, "action_space": 0})())


@pytest.mark.parametrize("mode", MODES)
def test_training_on_a_vector_env(mode):
    trainer = hr.Trainer("ppo", counts(mode), num_steps=16, epochs=1)
    for _ in range(3):
        metrics = trainer.iterate().metrics
    assert trainer.config.num_envs == NUM_ENVS
    assert trainer.steps < 3 * 16 * NUM_ENVS and trainer.episodes.count > 10
    assert np.isfinite(metrics["loss"])


def test_evaluating_many_at_once():
    def many(num_envs):
        return counts(AutoresetMode.SAME_STEP, num_envs=num_envs)

    trainer = hr.Trainer("ppo", many, num_envs=3, num_steps=16, epochs=1)
    evaluation = hr.evaluate(trainer.policy, many, episodes=3)
    assert evaluation.lengths == (3, 4, 5)


class Wrong(VectorEnv):
    """Gives one wrong value at every step."""

    num_envs, single_observation_space, single_action_space = NUM_ENVS, Box(-1, 1, (2,)), Discrete(2)

    def __init__(self, place, value):
        self.place, self.value = place, value
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def reset(self, *, seed=None, options=None):
        return np.zeros((NUM_ENVS, 2), np.float32), {}

    def step(self, actions):
        outcome = [np.zeros((NUM_ENVS, 2), np.float32), np.zeros(NUM_ENVS), *np.zeros((2, NUM_ENVS), bool), {}]
        outcome[self.place] = self.value
        return tuple(outcome)


@pytest.mark.parametrize(
    ("place", "value", "wrong"),
    [
        (0, np.zeros((1, 2), np.float32), r"the observation of Wrong has the shape \[1, 2\].* \[4, 2\]"),
        (0, np.zeros(2, np.float32), r"has the shape \[2\]"),
        (1, 1.0, r"the reward of Wrong has the shape \[\]: give that of 4 environments, \[4\]"),
        (1, np.ones((4, 1)), r"has the shape \[4, 1\]"),
        (1, ["1"] * 4, r"the reward of Wrong is \['1'.*no array of numbers"),
        (2, False, "terminated of Wrong has the shape"),
        (3, np.array(["False"] * 4), "truncated of Wrong is .*no array of numbers"),
    ],
)
def test_what_would_be_stretched_to_all_environments_is_refused(place, value, wrong):
    with pytest.raises((ValueError, TypeError), match=wrong):
        run(VectorAdapter(GymnasiumSource(Wrong(place, value))), steps=1)
