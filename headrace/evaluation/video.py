"""A trained policy at work, as a GIF or an MP4."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch

from headrace import envs
from headrace.policies.base import Policy
from headrace.policies.group_policy import GroupedPolicy

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_STEPS = 5000  # of an episode in a film: some environments never end
LEAST_SIZE = 320  # pixels: smaller pictures are enlarged, so that they and their caption can be read
DEFAULT_RATE = 30  # frames a second, of an environment that does not say
FASTEST_GIF = 50  # frames a second: viewers slow down what is faster
LAST_FRAME = 1.0  # s an episode's last frame stays
CAPTION = 22  # pixels, height of the strip below the picture
MOST_NAMED = 2  # agents whose returns stand there one by one; of more, the mean does
NIGHT, CHALK = (32, 33, 38), (235, 235, 235)  # its colours


@dataclass(frozen=True)
class Film:
    """What was filmed, and where it lies."""

    path: Path
    returns: tuple[float, ...]  # of each episode
    lengths: tuple[int, ...]  # steps of each episode
    frames: int
    frames_per_second: float
    by_agent: tuple[dict[str, float], ...] = ()  # of each episode, where several agents share a world


def play(
    policy: Policy,
    env: Any,
    output: str | Path = "play.gif",
    episodes: int = 1,
    seed: int = 0,
    deterministic: bool = True,
    max_steps: int = MOST_STEPS,
    frame_stack: int = 1,
    time_limit: int | None = None,
) -> Film:
    """Film episodes of a policy, each with its step and return below the picture.

    env: as for make(), filmed in the original environment by its own renderer; or a Gymnasium environment or
    pettingzoo.ParallelEnv made with render_mode="rgb_array". output: its ending chooses the format, .gif or .mp4. An
    episode is cut off after max_steps. frame_stack, time_limit: as the policy was trained with, see make(). Where
    several agents share a world, its return is the mean of theirs.
    Raises ValueError for another format or an environment that draws no pictures; ImportError for a missing library.
    """
    target = Path(output)
    if target.suffix not in WRITERS:
        raise ValueError(f"a film is a .gif or an .mp4, and {str(target)!r} ends in neither")
    if episodes < 1:
        raise ValueError(f"a film needs at least one episode, got {episodes}")
    write = WRITERS[target.suffix]()
    if not isinstance(env, gymnasium.Env) and not hasattr(env, "possible_agents"):
        _without_screen()
        made: dict[str, Any] = {"frame_stack": frame_stack, "time_limit": time_limit, "render_mode": "rgb_array"}
        world = envs.factory(env, **made)()
        try:
            return play(policy, world, target, episodes, seed, deterministic, max_steps)
        finally:
            world.close()
    film = _film_agents if hasattr(env, "possible_agents") else _film_episode
    shots: list[Shot] = []
    for episode in range(episodes):
        shots += film(policy, env, seed + episode, deterministic, max_steps)
    target.parent.mkdir(parents=True, exist_ok=True)
    rate = float(env.metadata.get("render_fps", DEFAULT_RATE))
    write(target, shots, rate)
    ends = [shot for shot in shots if shot.last]
    returns, lengths = tuple(end.total for end in ends), tuple(end.step for end in ends)
    return Film(target, returns, lengths, len(shots), rate, tuple(end.totals for end in ends if end.totals))


@dataclass(frozen=True)
class Shot:
    """One frame and what is known when it is taken."""

    picture: Image  # in a palette of 256 colours, because a film is held in memory whole
    step: int
    total: float  # return so far
    last: bool  # of its episode
    totals: dict[str, float]  # of each agent, where there are several


def _film_episode(policy: Policy, env: gymnasium.Env, seed: int, deterministic: bool, max_steps: int) -> Iterator[Shot]:
    generator = torch.Generator().manual_seed(seed)
    observation, _ = env.reset(seed=seed)
    step, total, done, rnn_state = 0, 0.0, False, None
    yield _shot(env, step, total, done, {})
    while not done:
        action, rnn_state = policy.predict(observation, rnn_state, deterministic, generator)
        observation, reward, terminated, truncated, _ = env.step(action)
        step, total = step + 1, total + float(reward)
        done = terminated or truncated or step >= max_steps
        yield _shot(env, step, total, done, {})


def _film_agents(policy: Policy, world: Any, seed: int, deterministic: bool, max_steps: int) -> Iterator[Shot]:
    """An episode of a pettingzoo.ParallelEnv: each agent acts by its group's policy, or all by one."""
    generator = torch.Generator().manual_seed(seed)
    seen, _ = world.reset(seed=seed)
    step, done, rnn_state = 0, False, dict[str, Any]()
    totals = dict.fromkeys(world.possible_agents, 0.0)
    yield _shot(world, step, 0.0, done, totals)
    while not done:
        actions = {}
        for agent in world.agents:
            its = policy[agent] if isinstance(policy, GroupedPolicy) else policy
            actions[agent], rnn_state[agent] = its.predict(seen[agent], rnn_state.get(agent), deterministic, generator)
        seen, rewards, *_ = world.step(actions)
        step, totals = step + 1, {agent: total + float(rewards.get(agent, 0.0)) for agent, total in totals.items()}
        done = not world.agents or step >= max_steps
        yield _shot(world, step, sum(totals.values()) / len(totals), done, totals)


def _shot(env: Any, step: int, total: float, last: bool, totals: dict[str, float]) -> Shot:
    from PIL import Image, ImageDraw, ImageFont

    picture: Any = env.render()
    if not isinstance(picture, np.ndarray):
        spec = getattr(env, "spec", None)
        name = spec.id if spec else type(env.unwrapped).__name__
        raise ValueError(f"{name} draws no pictures: its render() gave {type(picture).__name__}, not an RGB array")
    image = Image.fromarray(picture)
    scale = max(1, -(-LEAST_SIZE // image.width))
    if scale > 1:
        image = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    # even sizes, because video formats want them
    canvas = Image.new("RGB", (image.width + image.width % 2, image.height + image.height % 2 + CAPTION), NIGHT)
    canvas.paste(image)
    pen, font = ImageDraw.Draw(canvas), ImageFont.load_default(size=13)
    pen.text((8, canvas.height - CAPTION + 3), f"step {step}", CHALK, font)
    told = f"return {total:.1f}"
    if 0 < len(totals) <= MOST_NAMED:
        told = "   ".join(f"{agent} {own:.1f}" for agent, own in totals.items())
    pen.text((canvas.width - 8, canvas.height - CAPTION + 3), told, CHALK, font, anchor="ra")
    return Shot(canvas.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE), step, total, last, totals)


def _gif_writer() -> Callable[[Path, Sequence[Shot], float], None]:
    _need("PIL", "films need Pillow: pip install 'headrace[video]'")

    def write(path: Path, shots: Sequence[Shot], rate: float) -> None:
        stride = -(-int(rate) // FASTEST_GIF) if rate > FASTEST_GIF else 1
        chosen = [shot for shot in shots if shot.last or shot.step % stride == 0]
        durations = [1000 * (LAST_FRAME if shot.last else stride / rate) for shot in chosen]
        first, *rest = [shot.picture for shot in chosen]
        first.save(path, save_all=True, append_images=rest, duration=durations, loop=0)

    return write


def _mp4_writer() -> Callable[[Path, Sequence[Shot], float], None]:
    _need("PIL", "films need Pillow: pip install 'headrace[video]'")
    _need("imageio_ffmpeg", "an .mp4 needs ffmpeg: pip install 'imageio[ffmpeg]' (or ask for a .gif)")

    def write(path: Path, shots: Sequence[Shot], rate: float) -> None:
        from imageio_ffmpeg import write_frames

        frames = write_frames(str(path), shots[0].picture.size, fps=rate, macro_block_size=2)
        frames.send(None)
        for shot in shots:
            for _ in range(max(1, round(LAST_FRAME * rate)) if shot.last else 1):
                frames.send(shot.picture.convert("RGB").tobytes())
        frames.close()

    return write


WRITERS = {".gif": _gif_writer, ".mp4": _mp4_writer}


def _without_screen() -> None:
    """Let renderers that use SDL (pygame) work on a machine without a screen."""
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")


def _need(module: str, message: str) -> None:
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise ImportError(message)
