"""Films: frames, captions' room, rates, endings, and what is said where one cannot be made."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from PIL import Image

from headrace.evaluation.video import CAPTION, play
from headrace.policies.base import Policy
from headrace.policies.group_policy import GroupedPolicy
from headrace.training.trainer import Trainer

EXAMPLES = Path(__file__).parents[2] / "examples"


class Left(Policy):
    """A policy that always says 0, and notes how it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bool] = []

    def predict(self, observation, state=None, deterministic=True, generator=None):
        self.asked.append(deterministic)
        return 0, state


class Clock(gymnasium.Env):
    """Five steps of reward 2; a picture of 9 x 7 pixels that brightens."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, rate: int = 10, size: tuple[int, int] = (7, 9), steps: int = 5) -> None:
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": rate}
        self.size, self.steps = size, steps
        self.seeds: list[int | None] = []

    def reset(self, *, seed=None, options=None):
        self.time = 0
        self.seeds.append(seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.zeros(1, np.float32), 2.0, self.time == self.steps, False, {}

    def render(self):
        return np.full((*self.size, 3), 40 * (self.time % 6), np.uint8)


def durations(path) -> list[int]:
    """Milliseconds of each frame."""
    with Image.open(path) as film:
        times = []
        for frame in range(film.n_frames):
            film.seek(frame)
            times.append(film.info["duration"])
        return times


def test_a_film_has_every_step_of_every_episode(tmp_path):
    world, policy = Clock(), Left()
    film = play(policy, world, tmp_path / "some" / "clock.gif", episodes=2, seed=5)
    assert film.returns == (10.0, 10.0) and film.lengths == (5, 5) and film.frames == 12
    assert world.seeds == [5, 6]
    assert policy.asked == [True] * 10
    # each frame differs from the next, so none were merged; the last of an episode stays for a second
    assert durations(film.path) == [100] * 5 + [1000] + [100] * 5 + [1000]
    with Image.open(film.path) as picture:
        assert picture.info["loop"] == 0  # for ever
        assert picture.size == (324, 252 + CAPTION)  # 9 x 7, 36 times
        assert picture.convert("RGB").getpixel((160, 100)) == (0, 0, 0)


def test_frames_beyond_what_a_gif_can_show_are_left_out_evenly(tmp_path):
    film = play(Left(), Clock(rate=100, steps=10), tmp_path / "fast.gif")
    assert film.frames == 11
    assert durations(film.path) == [20] * 5 + [1000]


def test_an_endless_episode_is_cut_off(tmp_path):
    assert play(Left(), Clock(steps=10**9), tmp_path / "cut.gif", max_steps=7).lengths == (7,)


def test_the_original_is_filmed_by_its_own_renderer_without_a_screen(tmp_path, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    film = play(Left(), "CartPole-v1", tmp_path / "cart.gif", deterministic=False)
    assert film.returns[0] == film.lengths[0] > 5
    with Image.open(film.path) as picture:
        assert picture.size == (600, 400 + CAPTION)


def test_a_world_with_a_render_of_its_own_is_filmed(tmp_path):
    film = play(Left(), "Catch", tmp_path / "catch.gif")
    assert film.lengths == (9,) and film.returns[0] in (-1.0, 1.0)
    assert film.frames_per_second == 5


@pytest.mark.parametrize(
    ("output", "episodes", "message"),
    [
        ("film.avi", 1, r"a \.gif or an \.mp4"),
        ("film", 1, r"a \.gif or an \.mp4"),
        ("film.gif", 0, "at least one episode"),
    ],
)
def test_what_cannot_be_filmed_is_said_before_anything_is_played(tmp_path, output, episodes, message):
    world = Clock()
    with pytest.raises(ValueError, match=message):
        play(Left(), world, tmp_path / output, episodes)
    assert not world.seeds


def test_a_world_that_draws_nothing_is_an_error(tmp_path):
    world = Clock()
    world.render = lambda: None
    with pytest.raises(ValueError, match="Clock draws no pictures"):
        play(Left(), world, tmp_path / "film.gif")


def test_a_kernel_world_without_a_render_says_what_to_add(tmp_path):
    with pytest.raises(ValueError, match=r"Collect has none: give it a render\(s, p\)"):
        play(Left(), f"{EXAMPLES}/my_env.py:Collect", tmp_path / "film.gif")


def test_a_missing_library_gives_the_line_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "imageio_ffmpeg" else object())
    with pytest.raises(ImportError, match=r"pip install 'imageio\[ffmpeg\]'"):
        play(Left(), Clock(), tmp_path / "film.mp4")


def test_several_agents_are_filmed_each_with_its_return(tmp_path):
    pytest.importorskip("pettingzoo")
    policy = Trainer("ppo", "Pursuit", num_envs=2, num_steps=4, minibatch_size=8, total_steps=10).policy
    film = play(policy, "Pursuit", tmp_path / "chase.gif", episodes=2, max_steps=6)
    assert film.frames == 14 and film.lengths == (6, 6) and film.returns == pytest.approx((0.0, 0.0), abs=1e-5)
    assert [set(returns) for returns in film.by_agent] == [{"pursuer", "evader"}] * 2
    assert all(returns["pursuer"] == pytest.approx(-returns["evader"], abs=1e-5) for returns in film.by_agent)
    apart = GroupedPolicy({"a": policy, "b": policy}, {"a": ["pursuer"], "b": ["evader"]})
    assert play(apart, "Pursuit", tmp_path / "apart.gif", episodes=2, max_steps=6).by_agent == film.by_agent


def test_a_world_of_pictures_is_filmed_as_it_is_seen(tmp_path):
    settings = {"num_envs": 2, "num_steps": 4, "minibatch_size": 8, "total_steps": 10, "stagger": False}
    policy = Trainer("ppo", "PixelPendulum", **settings).policy
    film = play(policy, "PixelPendulum", tmp_path / "swing.gif", max_steps=2)
    with Image.open(film.path) as pictures:
        assert film.frames == 3 and pictures.size == (42 * 8, 42 * 8 + CAPTION)
        grey = np.asarray(pictures.convert("L"))[: 42 * 8]
    assert grey.max() > 200 and np.median(grey) < 10
