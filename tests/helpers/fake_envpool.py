"""Imitation in plain Python of the part of EnvPool that is used. The order in which environments are ready is drawn,
and nothing ever hangs."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

TASK = "Count-v0"
SEEN = Box(-1, 1000, (4,), np.float32)


class FakePool:
    """Environments that count. Observations: number of the environment, its episode, the step, the last action (-1:
    none).

    Episodes take 3 to 6 steps, and are terminated and truncated in turn. slow: environments that are ready only where
    not enough others are. gate: an event that recv() waits for. A recv() that would wait for ever is an AssertionError.
    """

    def __init__(self, num_envs, batch_size, seed, named=False, slow=(), gate=None, **_):
        self.batch_size, self.together = batch_size, batch_size == num_envs
        self.who, self.named, self.slow, self.gate = np.arange(num_envs) + seed % 8, named, slow, gate
        self.episode, self.clock = np.zeros(num_envs, int), np.zeros(num_envs, int)
        self.over = np.ones(num_envs, bool)
        self.done = []  # (world, seen, reward, terminated, truncated) until somebody receives them
        self.draw = np.random.default_rng(seed)
        self.sends, self.resets, self.closed = 0, [], False

    def send(self, actions, worlds):
        assert worlds.dtype == np.int32 and len(actions) == len(worlds) > 0
        self.sends += 1
        for action, world in zip(actions, worlds, strict=True):
            self._do(world, action)

    def _reset(self, worlds):
        assert worlds.dtype == np.int32
        self.resets += worlds.tolist()
        for world in worlds:
            self.over[world] = True
            self._do(world, None)

    def async_reset(self):
        self._reset(np.arange(len(self.who), dtype=np.int32))

    def reset(self, worlds):
        self._reset(worlds)
        return self.recv(reset=True)

    def _do(self, world, action):
        assert not self.closed and world not in [done[0] for done in self.done], f"world {world} is at a step"
        begins = self.over[world]
        self.episode[world] += begins
        self.clock[world] = 0 if begins else self.clock[world] + 1
        odd = (self.who[world] + self.episode[world]) % 2
        self.over[world] = not begins and self.clock[world] == 3 + (self.who[world] + self.episode[world]) % 4
        last, reward = (-1, 0.0) if begins else (action, 10.0 * self.clock[world] + action)
        seen = (self.who[world], self.episode[world], self.clock[world], last)
        self.done.append((world, seen, reward, self.over[world] and odd, self.over[world] and not odd))

    def recv(self, reset=False):
        if self.gate is not None:
            assert self.gate.wait(60)
        assert self.done and (self.together or len(self.done) >= self.batch_size), "this would wait for ever"
        order = list(range(len(self.done)))
        if not self.together:
            self.draw.shuffle(order)
            order = sorted(order, key=lambda place: self.done[place][0] in self.slow)[: self.batch_size]
        given = [self.done[place] for place in order]
        self.done = [done for place, done in enumerate(self.done) if place not in order]
        worlds, seen, reward, terminated, truncated = (list(column) for column in zip(*given, strict=True))
        seen, info = np.array(seen, np.float32), {"env_id": np.array(worlds, np.int32)}
        seen = {"count": seen} if self.named else seen
        if reset:
            return seen, info
        return seen, np.array(reward, np.float32), np.array(terminated, bool), np.array(truncated, bool), info

    def close(self):
        self.closed = True


def fake_envpool():
    """Make a stand-in for the module. Its `pools` are those that were made."""
    pools = []

    def make(task, **options):
        pools.append(FakePool(**options))
        return pools[-1]

    def spec(task, num_envs, named=False, **_):
        space = Dict({"count": SEEN}) if named else SEEN
        config = SimpleNamespace(max_episode_steps=6)
        return SimpleNamespace(gymnasium_observation_space=space, gymnasium_action_space=Discrete(3), config=config)

    return SimpleNamespace(list_all_envs=lambda: [TASK], make_spec=spec, make_gymnasium=make, pools=pools)
