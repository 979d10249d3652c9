"""The benchmark of critics of all agents: its environment steps as mpe2's does, and it runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import benchmark

import headrace as hr
from benchmarks.returns.central_critic import SimpleSpread


def test_its_steps_are_those_of_mpe2():
    simple_spread = pytest.importorskip("mpe2.simple_spread_v3")
    reference, env = simple_spread.parallel_env(), hr.make(SimpleSpread, 1)
    assert reference.observation_space("agent_0").shape == env.observation_space.shape
    rollout, random, collisions = env.rollout(1, env.columns()), np.random.default_rng(0), 0
    env.reset(rollout, 0)
    for episode in range(8):
        reference.reset(seed=episode)
        world = reference.unwrapped.world
        for entity in world.entities:
            entity.state.p_pos *= 0.3  # near the middle, where agents meet
        for step in range(25):
            arrays = {
                "place": [agent.state.p_pos for agent in world.agents],
                "speed": [agent.state.p_vel for agent in world.agents],
                "mark": [landmark.state.p_pos for landmark in world.landmarks],
            }
            state = env.state_dict()
            env.load_state_dict(
                {
                    **state,
                    **{f"array.{name}": torch.tensor(np.array([x]), dtype=torch.float32) for name, x in arrays.items()},
                }
            )
            actions = random.integers(0, 5, 3)
            seen, rewards, _, truncated, _ = reference.step(dict(zip(reference.agents, actions, strict=True)))
            rollout.action[0] = torch.from_numpy(actions)
            rollout.valid[0] = True
            env.step(rollout, 0)
            assert np.allclose(rollout.reward[0], list(rewards.values()), atol=1e-4)
            assert np.allclose(rollout.observation[1], np.array(list(seen.values())), atol=1e-4)
            assert rollout.truncated[0].tolist() == list(truncated.values()) == [step == 24] * 3
            collisions += len(set(rewards.values())) > 1
        rollout.valid[0] = False
        env.step(rollout, 0)
    assert collisions > 5
    began = rollout.observation[1]
    assert began[:, 2:4].abs().max() <= 1 and not began[:, :2].any()


@pytest.mark.slow
def test_it_runs_quickly(tmp_path):
    rows = benchmark.last(benchmark.ran("returns.central_critic", tmp_path, "--quick"))["rows"]
    assert [row["critic"] for row in rows] == ["own observation", "all agents"]
    assert all(-40 < row["return"] < -10 for row in rows)
