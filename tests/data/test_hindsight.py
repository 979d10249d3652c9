"""Hindsight replay: goals are those achieved later in the same episode, and rewards are of the goal that is learned."""

import gymnasium
import numpy as np
import pytest
import torch

import headrace as hr
from headrace.algorithms.dqn import DQNConfig
from headrace.data.flat_dict import FlatDict
from headrace.data.hindsight import GoalReplay, Goals
from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, Dict, Discrete, action_column, env_columns
from headrace.envs.builtin.bit_flip import BitFlip
from headrace.envs.builtin.reach import Reach
from headrace.envs.goals import goals_of

LINE = Box(0, 1e6, (1,))
SPACE = FlatDict({"observation": LINE, "achieved_goal": LINE, "desired_goal": LINE})
GOALS = Goals(slice(1, 2), slice(2, 3), lambda a, d: (a == d).all(-1).float() - 1, lambda a, d: (a == d).all(-1))
ENVS, STEPS = 3, 4


def rollouts(number, replay, lengths=(5, 7, 3)):
    """Rollouts whose environment e has episodes of lengths[e] steps, each followed by a masked row. A row's achieved
    goal is the step's number, 1000 times the environment's, and 10,000 times the episode's; the desired one is -1."""
    columns = env_columns(SPACE) | {"action": action_column(Discrete(2))}
    for k in range(number):
        rollout = Rollout(STEPS, ENVS, columns)
        for env, length in enumerate(lengths):
            for row in range(STEPS + 1):
                time = k * STEPS + row
                episode, step = divmod(time, length + 1)
                rollout.observation[row, env] = torch.tensor([time, 10_000 * episode + 1000 * env + step, -1.0])
                rollout.valid[row, env] = step < length
                if row < STEPS:
                    rollout.terminated[row, env] = False
                    rollout.truncated[row, env] = step == length - 1
                    rollout.reward[row, env] = -5.0
        replay.append(rollout)
    return columns


def replay_of(length=40, hindsight=4, which="future"):
    columns = env_columns(SPACE) | {"action": action_column(Discrete(2))}
    return GoalReplay(Rollout(STEPS, ENVS, columns), length * ENVS, GOALS, hindsight, which)


@pytest.mark.parametrize("number", [5, 33])
def test_goals_are_later_ones_of_the_same_episode(number):
    """33 rollouts overwrite the ring of 40 steps three times."""
    replay = replay_of()
    rollouts(number, replay)
    batch = replay.sample(torch.rand(20_000, replay.draws, generator=torch.Generator().manual_seed(0)), 0.9)
    now, achieved, goal = batch.observation.unbind(-1)
    following = batch.next_observation[:, 1]
    new, counted = goal >= 0, batch.weight > 0
    assert torch.equal(goal, batch.next_observation[:, 2])
    oldest = replay.oldest()[0].item()
    length = torch.tensor([5, 7, 3])[batch.rows % ENVS]
    began = now - achieved % 1000
    whole = (began > oldest) | (oldest == 0)
    assert not (new & ~whole).any()
    assert (new & counted).sum() / (whole & counted).sum() == pytest.approx(0.8, abs=0.02)
    kept = new & counted
    assert torch.equal(goal[kept] // 1000, achieved[kept] // 1000)  # environment and episode
    last = torch.minimum(began + length, replay.written[0].float())  # written so far, of the present episode
    ahead = goal[kept] - achieved[kept]
    assert (ahead >= 1).all() and (ahead <= (last - now)[kept]).all()
    assert torch.equal(batch.reward[kept], (following == goal)[kept].float() - 1)
    assert torch.equal(batch.discount[kept], 0.9 * (following != goal)[kept])
    rest = ~new & counted
    assert (batch.reward[rest] == -5).all() and (batch.discount[rest] == pytest.approx(0.9))
    first = kept & (batch.rows % ENVS == 1) & (achieved % 1000 == 0) & (last - now == 7)
    found = torch.bincount((goal - achieved)[first].long(), minlength=8)[1:8].float()
    assert found.sum() > 300 and (found / found.sum() - 1 / 7).abs().max() < 0.05  # each of the seven as likely


@pytest.mark.parametrize("which", ["episode", "final"])
def test_goals_are_any_or_the_last_of_the_episode(which):
    replay = replay_of(which=which)
    rollouts(33, replay)
    batch = replay.sample(torch.rand(20_000, replay.draws, generator=torch.Generator().manual_seed(0)), 0.9)
    now, achieved, goal = batch.observation.unbind(-1)
    length = torch.tensor([5, 7, 3])[batch.rows % ENVS]
    began, newest = now - achieved % 1000, replay.written[0].item() - 1
    ended = began + length <= newest
    new, whole = goal >= 0, (began > replay.oldest()[0].item()) & (batch.weight > 0)
    kept = new & whole
    assert torch.equal(new & (batch.weight > 0), kept) and torch.equal(goal[kept] // 1000, achieved[kept] // 1000)
    assert torch.equal(batch.reward[kept], (batch.next_observation[:, 1] == goal)[kept].float() - 1)
    step = goal % 1000
    if which == "final":
        assert torch.equal(step[kept], length[kept].float()) and not (kept & ~ended).any()
        assert kept.sum() / (whole & ended).sum() == pytest.approx(0.8, abs=0.02)
    else:
        seven = kept & ended & (batch.rows % ENVS == 1)
        for at in (0, 6):  # of rows of any step, each goal of the episode is as likely
            found = torch.bincount(step[seven & (achieved % 1000 == at)].long(), minlength=8)[1:].float()
            assert found.sum() > 300 and (found / found.sum() - 1 / 7).abs().max() < 0.05


@pytest.mark.parametrize("number", [3, 33])
def test_a_loaded_replay_gives_the_same_batches(number):
    replay, other = replay_of(), replay_of()
    rollouts(number, replay)
    other.load_state_dict(replay.state_dict())
    random = torch.rand(500, replay.draws, generator=torch.Generator().manual_seed(1))
    for mine, theirs in zip(replay.sample(random, 0.9), other.sample(random, 0.9), strict=True):
        assert torch.equal(mine, theirs)


class Walk(gymnasium.Env):
    """Walk along a line to a goal; a GoalEnv of Gymnasium-Robotics' interface."""

    observation_space = Dict({name: Box(-9, 9, (1,)) for name in ("observation", "achieved_goal", "desired_goal")})

    def __init__(self, continuous=False, single=False):
        self.action_space = Box(-1, 1, (1,)) if continuous else Discrete(2)
        self.single = single

    def seen(self):
        place = np.array([self.place], np.float32)
        return {"observation": place, "achieved_goal": place, "desired_goal": self.goal}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = 0.0, 0
        self.goal = self.np_random.integers(-3, 4, 1).astype(np.float32)
        return self.seen(), {}

    def step(self, action):
        self.place += float(np.ravel(action)[0]) if isinstance(self.action_space, Box) else 2 * int(action) - 1
        self.steps += 1
        seen = self.seen()
        return seen, self.compute_reward(seen["achieved_goal"], self.goal, {}), False, self.steps >= 8, {}

    def compute_reward(self, achieved, desired, info):
        far = (np.abs(achieved - desired) > 0.6).any(-1)
        return np.ones(3) if self.single and np.ndim(far) else -far.astype(np.float32) if np.ndim(far) else -float(far)


OPTIONS = {"total_steps": 240, "num_envs": 4, "progress": "none", "hidden": (8,), "learning_starts": 40}
OPTIONS |= {"batch_size": 8, "buffer_size": 400, "hindsight": 4}


@pytest.mark.parametrize("algorithm", ["dqn", "sac", "tqc", "crossq", "td3", "ddpg"])
def test_algorithms_learn_from_goals_of_gymnasium_environments(algorithm, tmp_path):
    own = {"critic_hidden": (8,)} if algorithm in ("tqc", "crossq") else {}
    run = hr.train(algorithm, lambda: Walk(algorithm != "dqn"), log_folder=str(tmp_path), **OPTIONS | own)
    action, _ = run.policy.predict(Walk().reset(seed=1)[0])
    assert np.isfinite(action).all()


def test_goals_of_a_kernel_environment_are_where_they_are_said_to_be():
    env = hr.make(Reach, 3, backend="torch")
    rollout = env.rollout(4, env.columns())
    env.reset(rollout, 0)
    rollout.action.fill_(1.0)
    for t in range(4):
        env.step(rollout, t)
    parts, goals = env.observation_space.split(rollout.observation), goals_of(env, env.factory)
    moved = parts["achieved_goal"][1:] - parts["achieved_goal"][:-1]
    torch.testing.assert_close(moved, parts["observation"][1:])
    assert (parts["desired_goal"] == parts["desired_goal"][0]).all() and (parts["desired_goal"] != 0).all()
    rewards = goals.reward(parts["achieved_goal"][1:].flatten(0, 1), parts["desired_goal"][1:].flatten(0, 1))
    assert torch.equal(rewards.view(4, 3), rollout.reward)


def test_goals_of_a_gymnasium_environment():
    env = hr.make(lambda: Walk(), 2)
    goals = goals_of(env, env.factory)
    rewards = goals.reward(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.5], [3.0]]))
    assert rewards.tolist() == [0, -1] and goals.terminated is None


@pytest.mark.parametrize(
    ("reward", "wanted"),
    [
        (lambda a, d, info: -np.linalg.norm(a - d), [-0.5, -2.0]),  # written for one goal
        (lambda a, d, info: -np.linalg.norm(a - d, axis=-1, keepdims=True), [-0.5, -2.0]),
        (lambda a, d, info: [-float(abs(x - y)[0]) for x, y in zip(a, d, strict=True)], [-0.5, -2.0]),
        (lambda a, d, info: -1, [-1, -1]),
        (lambda a, d, info: np.float64(0.25), [0.25, 0.25]),
        (lambda a, d, info: np.array(True), [1, 1]),
        (lambda a, d, info: np.abs(a - d)[..., 0] > 1, [0, 1]),
        (lambda a, d, info: torch.as_tensor(a)[..., 0], [0, 1]),
    ],
)
def test_functions_of_goals_give_numbers_in_any_form(reward, wanted):
    class Other(Walk):
        def compute_reward(self, achieved, desired, info):
            return reward(achieved, desired, info)

        compute_terminated = compute_reward

    env = hr.make(Other, 2)
    goals = goals_of(env, env.factory)
    for function in (goals.reward, goals.terminated):
        assert function(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.5], [3.0]])).tolist() == wanted
        assert function(torch.tensor([[1.0]]), torch.tensor([[3.0]])).tolist() == wanted[1:]


def test_an_environment_that_never_terminates_by_its_goals_learns_from_them(tmp_path):
    class Endless(Walk):
        def compute_terminated(self, achieved, desired, info):
            return False

    run = hr.train("sac", lambda: Endless(True), log_folder=str(tmp_path), **OPTIONS)
    assert np.isfinite(run.metrics["critic_loss"])


def test_what_cannot_be_relabelled_is_refused(tmp_path):
    options = OPTIONS | {"log_folder": str(tmp_path)}
    with pytest.raises(ValueError, match="hindsight is for goals, and observations of CartPole-v1"):
        hr.train("dqn", "CartPole-v1", registered=False, **options)
    with pytest.raises(ValueError, match=r"compute_reward of .* gave shape .* for 32 goals"):
        hr.train("dqn", lambda: Walk(single=True), **options)
    with pytest.raises(ValueError, match="hindsight goes without n_steps=3: leave one of them out"):
        DQNConfig(hindsight=4, n_steps=3)
    with pytest.raises(ValueError, match="hindsight must be 0 or more"):
        DQNConfig(hindsight=-1)


@pytest.mark.slow
def test_bits_are_flipped_with_hindsight_and_not_without(tmp_path):
    found = {}
    for hindsight in (0, 4):
        env = hr.make(BitFlip, 16, params={"bits": 12}, time_limit=12)
        settings = {"total_steps": 60_000, "hindsight": hindsight, "log_folder": str(tmp_path)}
        run = hr.train("dqn", env, **SMALL | settings)
        found[hindsight] = np.mean(np.array(hr.evaluate(run.policy, env, 200).returns) > -12)
    assert found[4] > 0.9 and found[0] < 0.3


SMALL = {"num_steps": 4, "utd_ratio": 0.25, "hidden": (128,), "normalize_observation": False, "gamma": 0.98}
SMALL |= {"exploration_final": 0.0, "exploration_fraction": 0.5, "progress": "none"}
