"""Videos: frames, captions, rates, durations, and error messages."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
import pytest
from PIL import Image

from headrace.agent_groups.group_policy import GroupedPolicy
from headrace.data.spaces import Box, Dict, Discrete, Space
from headrace.evaluation import video
from headrace.evaluation.video import CAPTION, play
from headrace.policies.base import Policy
from headrace.training.trainer import Trainer

EXAMPLES = Path(__file__).parents[2] / "examples"


class AlwaysLeft(Policy):
    """A policy that always acts 0, and records `deterministic` of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[bool] = []

    def predict(self, observation, state=None, episode_start=None, deterministic=True, generator=None):
        self.calls.append(deterministic)
        return 0, state


class Clock(gymnasium.Env):
    """Five steps of reward 2; an image of 9 x 7 pixels that brightens."""

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
    with Image.open(path) as video:
        times = []
        for frame in range(video.n_frames):
            video.seek(frame)
            times.append(video.info["duration"])
        return times


def test_a_video_has_every_step_of_every_episode(tmp_path):
    env, policy = Clock(), AlwaysLeft()
    video = play(policy, env, tmp_path / "some" / "clock.gif", episodes=2, seed=5)
    assert video.returns == (10.0, 10.0) and video.lengths == (5, 5) and video.frames == 12
    assert env.seeds == [5, 6]
    assert policy.calls == [True] * 10
    # each frame differs from the next, so none were merged; the last of an episode stays for a second
    assert durations(video.path) == [100] * 5 + [1000] + [100] * 5 + [1000]
    with Image.open(video.path) as image:
        assert image.info["loop"] == 0  # for ever
        assert image.size == (324, 252 + CAPTION)  # 9 x 7, 36 times
        assert image.convert("RGB").getpixel((160, 100)) == (0, 0, 0)


class Told(AlwaysLeft):
    """Notes its arguments."""

    def __init__(self, agent_info: Space) -> None:
        super().__init__()
        self.observation_space = Dict({"observation": Clock.observation_space, "agent_info": agent_info})
        self.told: list[np.ndarray] = []

    def predict(self, observation, state=None, episode_start=None, deterministic=True, generator=None):
        self.told.append(np.asarray(observation["agent_info"]))
        return super().predict(observation["observation"], state, deterministic=deterministic, generator=generator)


TOLD = [
    (Discrete(3, start=2), [2, 3, 4, 2]),
    (Box(5.0, 6.0, (2,)), None),
    (np.array([[0.5, 1.0], [1.5, 2.0]], np.float32), [[0.5, 1.0], [1.5, 2.0], [0.5, 1.0], [1.5, 2.0]]),
]


@pytest.mark.parametrize(("agent_info", "expected"), TOLD)
def test_each_episode_has_its_agent_info(tmp_path, agent_info, expected):
    env, policy = Clock(), Told(agent_info if isinstance(agent_info, Space) else Box(-9.0, 9.0, (2,)))
    video = play(policy, env, tmp_path / "told.gif", episodes=4, agent_info=agent_info)
    told = policy.told[:: video.lengths[0]]
    assert len(told) == 4 and all(np.array_equal(policy.told[i], told[i // 5]) for i in range(20))
    if expected is None:
        assert all(((x >= 5) & (x <= 6)).all() for x in told) and not np.array_equal(told[0], told[1])
    else:
        assert np.array_equal(told, expected)
    with pytest.raises(ValueError, match="trained with agent_info: give it"):
        play(policy, env, tmp_path / "none.gif")


def test_frames_beyond_what_a_gif_can_show_are_left_out_evenly(tmp_path):
    video = play(AlwaysLeft(), Clock(rate=100, steps=10), tmp_path / "fast.gif")
    assert video.frames == 11
    assert durations(video.path) == [20] * 5 + [1000]


def test_an_endless_episode_is_cut_off(tmp_path):
    assert play(AlwaysLeft(), Clock(steps=10**9), tmp_path / "cut.gif", max_steps=7).lengths == (7,)


def test_the_reference_is_recorded_by_its_own_renderer_without_a_screen(tmp_path, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setenv("MUJOCO_GL", "egl")  # put back afterwards
    video = play(AlwaysLeft(), "CartPole-v1", tmp_path / "cart.gif", deterministic=False)
    assert video.returns[0] == video.lengths[0] > 5
    with Image.open(video.path) as image:
        assert image.size == (600, 400 + CAPTION)


class NoScreen(gymnasium.Env):
    """An environment whose renderer finds no screen."""

    observation_space, action_space, render_mode = Box(-1, 1, (1,)), Discrete(2), "rgb_array"

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def render(self):
        raise RuntimeError("an OpenGL platform library has not been loaded into this process")


def test_mujoco_is_told_to_draw_without_a_screen_and_an_error_names_how(tmp_path, monkeypatch):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(video, "find_library", {"EGL": "libEGL.so.1"}.get)
    monkeypatch.setattr(video.sys, "platform", "linux")
    video._allow_headless()
    assert video.os.environ["MUJOCO_GL"] == "egl"
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    video._allow_headless()
    assert video.os.environ["MUJOCO_GL"] == "glfw"  # as it was given
    with pytest.raises(RuntimeError, match="OpenGL") as raised:
        video._rendered(NoScreen())
    assert raised.value.__notes__[0].startswith("(MUJOCO_GL is glfw: without a screen MuJoCo draws with MUJOCO_GL=egl")


def test_an_environment_with_its_own_render_is_recorded(tmp_path):
    video = play(AlwaysLeft(), "Catch", tmp_path / "catch.gif")
    assert video.lengths == (9,) and video.returns[0] in (-1.0, 1.0)
    assert video.frames_per_second == 5


@pytest.mark.parametrize(
    ("output", "episodes", "message"),
    [
        ("video.avi", 1, r"a \.gif or an \.mp4"),
        ("video", 1, r"a \.gif or an \.mp4"),
        ("video.gif", 0, "a whole number of episodes, 1 or more"),
    ],
)
def test_wrong_arguments_are_errors_before_the_first_episode(tmp_path, output, episodes, message):
    env = Clock()
    with pytest.raises(ValueError, match=message):
        play(AlwaysLeft(), env, tmp_path / output, episodes)
    assert not env.seeds


def test_an_environment_that_renders_no_images_is_an_error(tmp_path):
    env = Clock()
    env.render = lambda: None
    with pytest.raises(ValueError, match="Clock renders no images"):
        play(AlwaysLeft(), env, tmp_path / "video.gif")


def test_for_a_kernel_without_a_render_the_error_says_what_to_add(tmp_path):
    with pytest.raises(ValueError, match=r"Collect has none: give it a render\(s, p\)"):
        play(AlwaysLeft(), f"{EXAMPLES}/my_env.py:Collect", tmp_path / "video.gif")


def test_a_missing_library_gives_the_line_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "imageio_ffmpeg" else object())
    with pytest.raises(ImportError, match=r"pip install 'imageio\[ffmpeg\]'"):
        play(AlwaysLeft(), Clock(), tmp_path / "video.mp4")


def test_several_agents_are_recorded_each_with_its_return(tmp_path):
    pytest.importorskip("pettingzoo")
    policy = Trainer("ppo", "Pursuit", num_envs=2, num_steps=4, minibatch_size=8, total_steps=10).policy
    video = play(policy, "Pursuit", tmp_path / "chase.gif", episodes=2, max_steps=6)
    assert video.frames == 14 and video.lengths == (6, 6) and video.returns == pytest.approx((0.0, 0.0), abs=1e-5)
    assert [set(returns) for returns in video.by_agent] == [{"pursuer", "evader"}] * 2
    assert all(returns["pursuer"] == pytest.approx(-returns["evader"], abs=1e-5) for returns in video.by_agent)
    apart = GroupedPolicy({"a": policy, "b": policy}, {"a": ["pursuer"], "b": ["evader"]})
    assert play(apart, "Pursuit", tmp_path / "apart.gif", episodes=2, max_steps=6).by_agent == video.by_agent


def test_an_image_observation_is_the_frame(tmp_path):
    settings = {"num_envs": 2, "num_steps": 4, "minibatch_size": 8, "total_steps": 10, "stagger": False}
    policy = Trainer("ppo", "PixelPendulum", **settings).policy
    video = play(policy, "PixelPendulum", tmp_path / "swing.gif", max_steps=2)
    with Image.open(video.path) as image:
        assert video.frames == 3 and image.size == (42 * 8, 42 * 8 + CAPTION)
        grey = np.asarray(image.convert("L"))[: 42 * 8]
    assert grey.max() > 200 and np.median(grey) < 10
