"""Record videos of a policy, as GIF or MP4."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from ctypes.util import find_library
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch

from headrace import envs
from headrace.agent_groups.group_policy import GroupedPolicy
from headrace.core.packages import require
from headrace.core.processes.state import same_folder
from headrace.core.stopping import closed
from headrace.core.types import Json, Settings
from headrace.core.writing import free, replacing
from headrace.data.spaces import Space
from headrace.envs.construct import Wrappers, named
from headrace.envs.gym.columns import as_number, outcome_of
from headrace.envs.gym.learned import carried, learned_of, tell_learned
from headrace.envs.registry import Source
from headrace.envs.wrappers.conditioning import seen_in
from headrace.policies.base import Policy, check_policy

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv
    from PIL.Image import Image

MAX_STEPS = 5000  # of an episode in a video: some environments never end
MIN_SIZE = 320  # pixels: smaller images are enlarged, so that they and the caption are readable
DEFAULT_RATE = 30  # frames per second, if the environment has no render_fps
MAX_GIF_RATE = 50  # frames per second: viewers slow down faster GIFs
LAST_FRAME = 1.0  # s, duration of an episode's last frame
CAPTION = 22  # pixels, height of the caption
MAX_NAMED = 2  # agents up to which the caption has the return of each; with more, their mean
BACKGROUND, FOREGROUND = (32, 33, 38), (235, 235, 235)  # colours of the caption


@dataclass(frozen=True)
class Video:
    """A recorded video."""

    path: Path
    returns: tuple[float, ...]  # of each episode
    lengths: tuple[int, ...]  # steps of each episode
    frames: int
    frames_per_second: float
    by_agent: tuple[dict[str, float], ...] = ()  # returns in each episode, with several agents


@same_folder()
def play(
    policy: Policy,
    env: Source | gymnasium.Env | ParallelEnv,
    output: str | Path | None = None,
    episodes: int = 1,
    seed: int = 0,
    deterministic: bool = True,
    max_steps: int = MAX_STEPS,
    frame_stack: int = 1,
    time_limit: int | None = None,
    params: Settings | None = None,
    env_kwargs: Settings | None = None,
    wrapper: Wrappers = (),
    ignore: Sequence[str] = (),
    info_mask: bool = False,
    agent_info: Any = None,
) -> Video:
    """Record episodes of a policy, with step and return below each frame.

    env: as for make(), recorded in the reference environment by its own renderer; or a Gymnasium environment or
    pettingzoo.ParallelEnv made with render_mode="rgb_array". output: a .gif or .mp4 file;
    None stands for play.gif, or the first free name of play_2.gif ... Episodes are cut off after
    max_steps. frame_stack, time_limit, params, ignore, info_mask: as in training, see make(); env_kwargs, wrapper:
    make()'s kwargs and wrappers. agent_info: as for evaluate(); of a Discrete space each value in turn. Compiled code
    steps KernelEnvs; the reference of a port with params draws the images. With several agents, the return is their
    mean. Raises ValueError for another format or an environment that renders no images; ImportError for a missing
    library.
    """
    target = (free("play.gif") if output is None else Path(output)).absolute()
    if target.suffix not in WRITERS:
        raise ValueError(f"a video is a .gif or an .mp4 file, got {str(output)!r}")
    if not hasattr(policy, "predict"):
        check_policy(policy, "play")
    if not (isinstance(episodes, Integral) and episodes >= 1):
        raise ValueError(f"a video needs a whole number of episodes, 1 or more, got {episodes!r}")
    require("PIL", "videos need Pillow: pip install 'headrace[video]'")
    if target.suffix == ".mp4":
        require("imageio_ffmpeg", "an .mp4 needs ffmpeg: pip install 'imageio[ffmpeg]' (or record a .gif)")
    if isinstance(env, str | list | tuple) or callable(env):
        _allow_headless()
        options: Json = {"frame_stack": frame_stack, "time_limit": time_limit, "params": params, "ignore": ignore}
        options |= {"wrappers": (*named(wrapper), *carried(policy)), "info_mask": info_mask}
        own = {**(env_kwargs or {}), "render_mode": "rgb_array"}
        factory = envs.factory(env, compiled=True, env_kwargs=own, **options)
        with closed(_drawable(env, factory), f"the environment of {target}") as made:
            tell_learned(envs.spec(env).name, learned_of(made), carried=bool(carried(policy)))
            return play(policy, made, target, episodes, seed, deterministic, max_steps, agent_info=agent_info)
    frames: list[Frame] = []
    for number in range(seed, seed + episodes):
        if isinstance(env, gymnasium.Env):
            seen = seen_in(policy, agent_info, number - seed)
            frames += _record_episode(policy, env, number, deterministic, max_steps, seen)
        else:
            frames += _record_agents(policy, env, number, deterministic, max_steps)
    rate = float(env.metadata.get("render_fps", DEFAULT_RATE))
    with replacing(target, "the video") as fresh:
        WRITERS[target.suffix](fresh, frames, rate)
    ends = [frame for frame in frames if frame.last]
    returns, lengths = tuple(end.total for end in ends), tuple(end.step for end in ends)
    return Video(target, returns, lengths, len(frames), rate, tuple(end.totals for end in ends if end.totals))


def _drawable(env: Any, factory: Callable[[], Any]) -> Any:
    """Make an environment. Raises ValueError if it takes no render_mode."""
    known = envs.spec(env)
    if envs.comes_as_vector(env) and not hasattr(envs.entry_of(env), "entry_point"):
        raise ValueError(
            f"{known.name} comes as a vector of environments, of which there is no video: a MujocoTask is drawn by "
            "mujoco.Renderer, as docs/robots.md shows; others need a Gymnasium environment that steps one alone"
        )
    try:
        return factory()
    except TypeError as error:
        if envs.can_render(env):
            raise
        raise ValueError(
            f"{known.name} cannot be drawn: it takes no render_mode='rgb_array' ({error}). Give its class "
            'metadata = {"render_modes": ["rgb_array"]}, and a constructor that takes render_mode'
        ) from error


@dataclass(frozen=True)
class Frame:
    """One image, with the step and return of the episode so far."""

    image: Image  # in a palette of 256 colours, because all frames are held in memory
    step: int
    total: float  # return so far
    last: bool  # whether this is the episode's last frame
    totals: dict[str, float]  # of each agent, if there are several


def _record_episode(
    policy: Policy,
    env: gymnasium.Env,
    seed: int,
    deterministic: bool,
    max_steps: int,
    seen: Callable[[Any], Any],
) -> Iterator[Frame]:
    generator = torch.Generator().manual_seed(seed)
    observation, _ = env.reset(seed=seed)
    step, total, done, rnn_state = 0, 0.0, False, None
    yield _frame(env, step, total, done, {})
    while not done:
        action, rnn_state = policy.predict(
            seen(observation), rnn_state, deterministic=deterministic, generator=generator
        )
        observation, reward, terminated, truncated, _ = outcome_of(env.step(_in_dtype(env.action_space, action)))
        step, total = step + 1, total + reward
        done = terminated or truncated or step >= max_steps
        yield _frame(env, step, total, done, {})


def _record_agents(policy: Policy, env: ParallelEnv, seed: int, deterministic: bool, max_steps: int) -> Iterator[Frame]:
    """Play an episode of a pettingzoo.ParallelEnv. Each agent acts with the policy of its group, or all with one."""
    how: Json = {"deterministic": deterministic, "generator": torch.Generator().manual_seed(seed)}
    observations, _ = env.reset(seed=seed)
    step, done, rnn_states = 0, False, dict.fromkeys(env.possible_agents)
    totals = dict.fromkeys(env.possible_agents, 0.0)
    yield _frame(env, step, 0.0, done, totals)
    while not done:
        actions = {}
        for agent in env.agents:
            own = policy[agent] if isinstance(policy, GroupedPolicy) else policy
            predicted = own.predict(observations[agent], rnn_states[agent], **how)
            actions[agent], rnn_states[agent] = _in_dtype(env.action_space(agent), predicted[0]), predicted[1]
        observations, rewards, *_ = env.step(actions)
        step += 1
        totals = {
            agent: total + as_number(rewards.get(agent, 0.0), f"reward of {agent}") for agent, total in totals.items()
        }
        done = not env.agents or step >= max_steps
        yield _frame(env, step, sum(totals.values()) / len(totals), done, totals)


def _in_dtype(space: Space, action: Any) -> Any:
    """Convert an action to the environment's dtype, which may differ from that of the saved policy."""
    return action if isinstance(action, dict | tuple) else np.asarray(action).astype(space.dtype)[()]


def _frame(env: gymnasium.Env | ParallelEnv, step: int, total: float, last: bool, totals: dict[str, float]) -> Frame:
    from PIL import Image, ImageDraw, ImageFont

    pixels = _rendered(env)
    if not isinstance(pixels, np.ndarray):
        spec = env.spec if isinstance(env, gymnasium.Env) else None
        name = spec.id if spec else type(env.unwrapped).__name__
        raise ValueError(f"{name} renders no images: its render() returned {type(pixels).__name__}, not an RGB array")
    image = Image.fromarray(pixels)
    scale = max(1, -(-MIN_SIZE // image.width))
    if scale > 1:
        image = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    # even sizes, because video formats require them
    canvas = Image.new("RGB", (image.width + image.width % 2, image.height + image.height % 2 + CAPTION), BACKGROUND)
    canvas.paste(image)
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(size=13)
    draw.text((8, canvas.height - CAPTION + 3), f"step {step}", FOREGROUND, font)
    caption = f"return {total:.1f}"
    if 0 < len(totals) <= MAX_NAMED:
        caption = "   ".join(f"{agent} {own:.1f}" for agent, own in totals.items())
    draw.text((canvas.width - 8, canvas.height - CAPTION + 3), caption, FOREGROUND, font, anchor="ra")
    return Frame(canvas.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE), step, total, last, totals)


def _write_gif(path: Path, frames: Sequence[Frame], rate: float) -> None:
    stride = -(-int(rate) // MAX_GIF_RATE) if rate > MAX_GIF_RATE else 1
    chosen = [frame for frame in frames if frame.last or frame.step % stride == 0]
    durations = [1000 * (LAST_FRAME if frame.last else stride / rate) for frame in chosen]
    first, *rest = [frame.image for frame in chosen]
    first.save(path, save_all=True, append_images=rest, duration=durations, loop=0)


def _write_mp4(path: Path, frames: Sequence[Frame], rate: float) -> None:
    from imageio_ffmpeg import write_frames

    writer = write_frames(str(path), frames[0].image.size, fps=rate, macro_block_size=2)
    writer.send(None)
    for frame in frames:
        for _ in range(max(1, round(LAST_FRAME * rate)) if frame.last else 1):
            writer.send(frame.image.convert("RGB").tobytes())
    writer.close()


WRITERS: dict[str, Callable[[Path, Sequence[Frame], float], None]] = {".gif": _write_gif, ".mp4": _write_mp4}


def _allow_headless() -> None:
    """Let renderers that use SDL (pygame), and MuJoCo's, work on a machine without a screen."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        if find_library("EGL"):
            os.environ.setdefault("MUJOCO_GL", "egl")


def _rendered(env: gymnasium.Env | ParallelEnv) -> Any:
    """Call render(). An error of OpenGL gets a note on what draws without a screen."""
    try:
        return env.render()
    except Exception as error:
        if any(word in str(error) for word in ("OpenGL", "EGL", "GLFW", "glGetError")):
            given = os.environ.get("MUJOCO_GL", "not set")
            error.add_note(
                f"(MUJOCO_GL is {given}: without a screen MuJoCo draws with MUJOCO_GL=egl, which needs the package "
                "libegl1, or with MUJOCO_GL=osmesa, which needs libosmesa6)"
            )
        raise
