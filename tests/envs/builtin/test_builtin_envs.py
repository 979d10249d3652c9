"""Built-in environments against Gymnasium's: single steps, resets, endings; Catch and GridWorld against their rules."""

from __future__ import annotations

import importlib
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
import torch

from headrace import envs
from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, action_column, env_columns
from headrace.envs import sources
from headrace.envs.builtin.catch import Catch
from headrace.envs.builtin.grid_world import FREE, PILL, WALL, GridWorld
from headrace.envs.builtin.switchback import WALL as WALLS
from headrace.envs.builtin.switchback import Switchback
from headrace.envs.compiled.env import CompiledEnv

PORTS = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"]
STEPS = 12_000
RANDOM_STEPS = 10_000  # the rest are driven towards an ending, which a random policy may never see


class Steps(NamedTuple):
    """Single steps of a Gymnasium environment, M of them."""

    state: np.ndarray  # float32 [M, S], before
    length: np.ndarray  # steps of the episode before
    action: np.ndarray  # as a policy gives it: not clipped
    observation: np.ndarray  # after
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def world_class(name: str) -> type:
    return sources.find(envs.spec(name).entry)


def normalised(name: str, state) -> np.ndarray:
    """Gymnasium's state as the compiled environment keeps it, in float32."""
    state = np.array(state, np.float64)
    if name == "Pendulum-v1":
        state[0] = (state[0] + np.pi) % (2 * np.pi) - np.pi
    return state.astype(np.float32)


def driven_action(name: str, state: np.ndarray):
    """An action that adds energy, so that the goal is reached."""
    if name == "MountainCar-v0":
        return np.int64(2 if state[1] >= 0 else 0)
    if name == "MountainCarContinuous-v0":
        return np.array([1.0 if state[1] >= 0 else -1.0], np.float32)
    if name == "Acrobot-v1":
        return np.int64(2 if state[3] >= 0 else 0)
    return None


def visited(name: str, steps: int, seed: int = 0) -> Steps:
    """Steps from states that a random policy visits, each from the same float32 state that the compiled environment
    will get.

    In one step of fifty the time limit is due. Actions of a Box reach to twice its bounds; Gymnasium gets them clipped.
    """
    env = gymnasium.make(name)
    space, rng, rows = env.action_space, np.random.default_rng(seed), []
    limit = env.spec.max_episode_steps
    while not isinstance(env, gymnasium.wrappers.TimeLimit):
        env = env.env
    env.reset(seed=seed)
    for step in range(steps):
        state = normalised(name, env.unwrapped.state)
        env.unwrapped.state = state.astype(np.float64)
        if rng.random() < 0.02:
            env._elapsed_steps = limit - 1
        length = env._elapsed_steps
        drawn = (
            rng.uniform(2 * space.low, 2 * space.high).astype(np.float32)
            if isinstance(space, Box)
            else rng.integers(space.n)
        )
        driven = driven_action(name, state) if step >= steps * RANDOM_STEPS / STEPS else None
        action = drawn if driven is None else driven
        handed = np.clip(action, space.low, space.high) if isinstance(space, Box) else action
        observation, reward, terminated, truncated, _ = env.step(handed)
        rows.append((state, length, action, observation, reward, terminated, truncated))
        if terminated or truncated:
            env.reset()
    env.close()
    return Steps(*(np.array(column) for column in zip(*rows, strict=True)))


def close(found: np.ndarray, expected: np.ndarray) -> None:
    """Check that numbers agree within 1e-5 * max(1, |x|)."""
    np.testing.assert_array_less(np.abs(found - expected), 1e-5 * np.maximum(1.0, np.abs(expected)))


def agree(found: Steps, expected: Steps) -> None:
    close(found.observation, expected.observation)
    close(found.reward, expected.reward)
    np.testing.assert_array_equal(found.terminated, expected.terminated)
    np.testing.assert_array_equal(found.truncated, expected.truncated)


def rollout_of(env, num_steps: int) -> Rollout:
    columns = env_columns(env.observation_space) | {"action": action_column(env.action_space)}
    return Rollout(num_steps, env.num_envs, columns)


def stepped(name: str, given: Steps, backend: str) -> Steps:
    """The same steps by compiled environments, all in one step."""
    env = envs.make(name, len(given.state), backend=backend, threads=1 if backend == "cpu" else None)
    rollout = rollout_of(env, 1)
    env.reset(rollout, seed=0)
    fields = world_class(name).State._fields
    env.target.set_state({field: torch.from_numpy(given.state[:, k].copy()) for k, field in enumerate(fields)})
    saved = env.state_dict()
    saved["integers"][-2] = torch.from_numpy(given.length)
    env.load_state_dict(saved)
    rollout.action[0] = torch.from_numpy(given.action)
    env.step(rollout, 0)
    return given._replace(
        observation=rollout.observation[1].numpy(),
        reward=rollout.reward[0].numpy(),
        terminated=rollout.terminated[0].numpy(),
        truncated=rollout.truncated[0].numpy(),
    )


@pytest.mark.parametrize("name", PORTS)
def test_single_steps_agree_with_gymnasium(name):
    """12,000 of them, in one call of the CPU kernel and one of batched torch."""
    expected = visited(name, STEPS)
    assert expected.truncated.sum() > 100
    assert expected.terminated.any() == (name != "Pendulum-v1")
    for backend in ("cpu", "torch"):
        agree(stepped(name, expected, backend), expected)


@pytest.mark.parametrize("name", PORTS)
def test_the_plain_source_agrees_with_gymnasium(name):
    """Plain Python runs the source under a debugger: one environment, and Python numbers."""
    cls, expected = world_class(name), visited(name, 600)
    params, space = cls.Params(), cls.action_space
    rows = []
    for state, length, action in zip(expected.state, expected.length, expected.action, strict=True):
        handed = tuple(np.clip(action, space.low, space.high)) if isinstance(space, Box) else int(action)
        after, reward, terminated = cls.step(cls.State(*state), params, handed, None)
        rows.append((cls.observe(after, params), reward, terminated, length + 1 >= cls.max_steps))
    observation, reward, terminated, truncated = (np.array(column) for column in zip(*rows, strict=True))
    agree(Steps(*expected[:3], observation, reward, terminated, truncated), expected)


@pytest.mark.parametrize("name", PORTS)
def test_resets_agree_in_distribution(name):
    from scipy import stats  # two seconds

    count = 4000
    env = envs.make(name, count, threads=1)
    env.reset(rollout_of(env, 1), seed=0)
    ours = env.target.state()
    original = gymnasium.make(name).unwrapped
    original.reset(seed=0)
    theirs = np.stack([normalised(name, (original.reset(), original.state)[1]) for _ in range(count)])
    for k, values in enumerate(ours.values()):
        assert stats.ks_2samp(values.numpy(), theirs[:, k]).pvalue > 0.01


@pytest.mark.parametrize("name", PORTS)
def test_spaces_and_time_limit_are_gymnasiums(name):
    cls, original = world_class(name), gymnasium.make(name)
    assert cls.observation_space == original.observation_space
    assert cls.action_space == original.action_space
    assert cls.max_steps == original.spec.max_episode_steps
    assert cls.gymnasium_id == name


def test_angles_stay_in_one_turn():
    """However fast it spins: what float32 loses with each turn would add up."""
    env = envs.make("Pendulum-v1", 64, threads=1)
    rollout = rollout_of(env, 200)
    env.reset(rollout, seed=0)
    env.target.set_state({"angle": torch.linspace(-3, 3, 64), "spin": torch.full((64,), 8.0)})
    rollout.action.fill_(2.0)
    for t in range(200):
        env.step(rollout, t)
        assert env.target.state()["angle"].abs().max() <= np.pi + 1e-6


def test_parameters_change_the_physics():
    env = envs.make("CartPole-v1", 2, threads=1, params={"force": [10.0, 20.0], "gravity": 0.0})
    rollout = rollout_of(env, 1)
    env.reset(rollout, seed=0)
    env.target.set_state({field: torch.zeros(2) for field in ("x", "velocity", "angle", "spin")})
    rollout.action[0] = 1
    env.step(rollout, 0)
    slow, fast = rollout.observation[1, :, 1].tolist()
    assert slow > 0 and fast == pytest.approx(2 * slow, rel=1e-6)


# ---- Catch


def play_catch(policy, num_envs: int, num_steps: int) -> Rollout:
    env = envs.make("Catch", num_envs, threads=1)
    rollout = rollout_of(env, num_steps)
    env.reset(rollout, seed=0)
    for t in range(num_steps):
        rollout.action[t] = policy(rollout.observation[t])
        env.step(rollout, t)
    return rollout


def towards_the_ball(observation: torch.Tensor) -> torch.Tensor:
    board = observation.view(-1, 10, 5)
    ball = board[:, :9].sum(1).argmax(1)
    paddle = board[:, 9].argmax(1)
    return 1 + torch.sign(ball - paddle)


def test_catch_pays_one_to_a_perfect_policy_in_nine_steps():
    rollout = play_catch(towards_the_ball, 200, 20)
    dead = ~rollout.valid[:20]
    assert dead[9].all() and dead[19].all() and dead.sum() == 400
    assert (rollout.episode_return[dead] == 1).all() and (rollout.episode_length[dead] == 9).all()
    assert rollout.terminated[8].all() and rollout.terminated.sum() == 400 and not rollout.truncated.any()
    assert (rollout.reward[:8] == 0).all()


def test_catch_is_lost_four_times_in_five_by_a_random_policy():
    choice = torch.Generator().manual_seed(0)
    rollout = play_catch(lambda seen: torch.randint(3, (len(seen),), generator=choice), 2000, 10)
    assert set(rollout.reward[8].tolist()) == {-1.0, 1.0}
    assert rollout.reward[8].mean() == pytest.approx(-0.6, abs=0.06)


def test_catch_shows_ball_and_paddle():
    rollout = play_catch(lambda seen: torch.full((len(seen),), 2), 50, 4)
    boards = rollout.observation.view(5, 50, 10, 5)
    assert (boards.sum((2, 3)) == 2).all()
    assert [int(boards[t, 0].sum(1).argmax()) for t in range(5)] == [0, 1, 2, 3, 4]
    assert boards[:, 0, 9].argmax(1).tolist() == [2, 3, 4, 4, 4]  # moves right until the edge
    balls = boards[0, :, 0].argmax(1)
    assert set(balls.tolist()) == {0, 1, 2, 3, 4}
    assert (boards[3, :, 3].argmax(1) == balls).all()  # falls straight


# ---- GridWorld


def grid(board: list[str], row: int, column: int) -> tuple[CompiledEnv, Rollout]:
    """One GridWorld with the top left corner of its board as drawn: # wall, o pill."""
    env = envs.make("GridWorld", 1, threads=1)
    rollout = rollout_of(env, 12)
    env.reset(rollout, seed=0)
    cells = np.zeros((1, 8, 8), np.int8)
    for r, line in enumerate(board):
        for c, sign in enumerate(line):
            cells[0, r, c] = {"#": WALL, "o": PILL, ".": FREE}[sign]
    place = {"row": torch.tensor([row]), "column": torch.tensor([column])}
    env.target.set_state({"board": torch.from_numpy(cells), "pills": torch.tensor([(cells == PILL).sum()]), **place})
    return env, rollout


def test_grid_world_walks_collects_and_ends():
    env, rollout = grid([".o#", "o.."], 0, 0)
    up, down, left, right = range(4)
    places = []
    for t, action in enumerate([up, left, right, right, down, left]):
        rollout.action[t] = action
        env.step(rollout, t)
        state = env.target.state()
        places.append((state["row"].item(), state["column"].item()))
    assert places == [(0, 0), (0, 0), (0, 1), (0, 1), (1, 1), (1, 0)]  # edge, edge, pill, wall, down, last pill
    assert rollout.reward[:6, 0].tolist() == [0, 0, 1, 0, 0, 1]
    assert rollout.terminated[:6, 0].tolist() == [False] * 5 + [True]
    assert env.target.state()["board"].count_nonzero() == 1  # the wall is left


def test_grid_world_shows_the_board_as_seen_from_the_agent():
    env, rollout = grid([".o#", "o.."], 1, 2)
    rollout.action[0] = 1
    env.step(rollout, 0)  # down, to row 2 and column 2
    seen = rollout.observation[1, 0].view(15, 15)
    assert seen[5:7, 5:8].tolist() == [[0, 1, -1], [1, 0, 0]]
    board = seen[5:13, 5:13]
    assert (board == 0).sum() == 61 and (board == PILL).sum() == 2
    outside = seen.clone()
    outside[5:13, 5:13] = WALL
    assert (outside == WALL).all()


def test_grid_world_boards_are_new_each_episode_and_as_promised():
    env = envs.make("GridWorld", 2000, threads=1)
    rollout = rollout_of(env, 101)
    env.reset(rollout, seed=0)
    first = env.target.state()
    board = first["board"]
    assert set(board.unique().tolist()) == {FREE, WALL, PILL}
    assert (board[:, 0, 0] == FREE).all() and (board[:, 7, 7] == PILL).all()
    inner = board.flatten(1)[:, 1:63].float()
    assert (inner == WALL).float().mean() == pytest.approx(1 / 8, abs=0.005)
    assert (inner == PILL).float().mean() == pytest.approx(1 / 8, abs=0.005)
    assert (first["pills"] == (board == PILL).flatten(1).sum(1)).all()
    assert len(board.flatten(1).unique(dim=0)) == 2000
    for t in range(101):
        rollout.action[t] = 0  # up, from the top row: stays
        env.step(rollout, t)
    assert rollout.truncated[99].all() and not rollout.valid[100].any() and rollout.valid[101].all()
    assert (env.target.state()["board"] != board).flatten(1).any(1).all()


# ---- pictures


def test_pictures_show_the_state():
    image = Catch.render(Catch.State(3, 1, 4), None)
    assert image.dtype == np.uint8 and image.shape == (320, 160, 3)
    lit = np.argwhere((image[::32, ::32] != image[0, 0]).any(2))
    assert lit.tolist() == [[3, 1], [9, 4]]
    board = np.zeros((8, 8), np.int8)
    board[2, 5], board[6, 1] = WALL, PILL
    image = GridWorld.render(GridWorld.State(board, 7, 7, 1), None)
    assert image.dtype == np.uint8 and image.shape == (256, 256, 3)
    lit = np.argwhere((image[::32, ::32] != image[0, 0]).any(2))
    assert lit.tolist() == [[2, 5], [6, 1], [7, 7]]
    assert len({tuple(image[32 * r, 32 * c]) for r, c in lit}) == 3


def test_the_worlds_are_where_the_registry_says():
    for name in [*PORTS, "Catch", "GridWorld"]:
        module, _, cls = envs.spec(name).entry.partition(":")
        assert getattr(importlib.import_module(module), cls) is world_class(name)


# ---- Switchback


def test_the_way_along_the_switchback_is_58_steps_and_its_walls_hold():
    free = {(r, c) for r in range(15) for c in range(15)}
    free -= {(r, c) for r, first in ((3, 0), (7, 3), (11, 0)) for c in range(first, first + 12)}
    moves = [(-1, 0), (1, 0), (0, -1), (0, 1)]
    distance, border = {(0, 0): 0}, [(0, 0)]
    for row, column in border:
        for action, (down, right) in enumerate(moves):
            state, reward, done = Switchback.step(Switchback.State(row, column), None, action, None)
            expected = (row + down, column + right) if (row + down, column + right) in free else (row, column)
            assert tuple(state) == expected and done == (expected == (14, 0)) and reward == done
            if expected not in distance:
                distance[expected] = distance[row, column] + 1
                border.append(expected)
    assert distance.keys() == free and distance[14, 0] == 58
    image = Switchback.render(Switchback.State(2, 5), None)
    assert image.shape == (300, 300, 3) and (image[::20, ::20] == WALLS).all(2).sum() == 36
