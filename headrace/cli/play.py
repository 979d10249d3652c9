"""`headrace play RUN`: records a video of a trained policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from headrace.cli import pairs
from headrace.cli.run_policy import Choice, load_chosen, skills_of
from headrace.core.processes.state import shown
from headrace.core.terminal import say
from headrace.core.trust import code_of
from headrace.evaluation.video import MAX_STEPS, Video, play

DESCRIPTION = "Record a video of a trained policy: headrace play runs/ppo/CartPole-v1_1 --output play.gif"


@dataclass(frozen=True)
class Play:
    """The run, and settings of the recording."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]  # folder of a run or of a checkpoint in it
    choice: Annotated[tyro.conf.OmitArgPrefixes[Choice], tyro.conf.arg(name="policy")]
    # the file to write: a .gif or an .mp4; without it, play.gif, or the first free name of play_2.gif ...
    output: Path | None = None
    episodes: int = 1  # number of episodes, one after the other
    seed: int = 0  # of the first episode; each later episode has the next seed
    max_steps: int = MAX_STEPS  # steps after which an episode is cut off


def main(arguments: list[str]) -> None:
    """Record, and print the returns and the path of the video."""
    options = pairs.cli(Play, "play", DESCRIPTION, args=arguments)
    with code_of(options.run, trust=options.choice.trust):
        policy, _, described, env, deterministic, kwargs = load_chosen(options.run, options.choice)
        settings = (options.output, options.episodes, options.seed, deterministic, options.max_steps)
        kwargs = {**kwargs, **skills_of(options.run)}
        video = play(policy, env, *settings, **kwargs)
    say(f"{env}, {described}")
    say(_report(video))


def _report(video: Video) -> str:
    episodes = zip(video.returns, video.lengths, strict=True)
    lines = [f"episode {i}: return {total:.2f}, {steps} steps" for i, (total, steps) in enumerate(episodes, 1)]
    for i, returns in enumerate(video.by_agent):
        lines[i] += f" ({', '.join(f'{agent} {own:.2f}' for agent, own in returns.items())})"
    size = video.path.stat().st_size // 1000
    lines.append(
        f"wrote {shown(video.path)}: {video.frames} frames, {video.frames_per_second:g} per second, {size:,} kB"
    )
    return "\n".join(lines)
