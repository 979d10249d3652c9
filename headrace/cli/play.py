"""`headrace play RUN`: a film of a trained policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from headrace.cli.run_policy import Choice, env_of, eval_env_kwargs, load_chosen
from headrace.evaluation.video import MOST_STEPS, Film, play

DESCRIPTION = "A film of a trained policy: headrace play runs/ppo/CartPole-v1_1 --output play.gif"


@dataclass(frozen=True)
class Play:
    """What to film, and how."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]  # a run's folder, or a checkpoint in it
    choice: Annotated[tyro.conf.OmitArgPrefixes[Choice], tyro.conf.arg(name="policy")]
    output: Path = Path("play.gif")  # where to film: a .gif or an .mp4
    episodes: int = 1  # how many, filmed one after the other
    seed: int = 0  # of the first episode; each next one has the next
    max_steps: int = MOST_STEPS  # of an episode, which is cut off there


def main(arguments: list[str]) -> None:
    """Film and say where the film lies."""
    options = tyro.cli(Play, prog="headrace play", description=DESCRIPTION, args=arguments)
    policy, folder = load_chosen(options.run, options.choice)
    name = options.choice.env or env_of(options.run)
    deterministic = not options.choice.stochastic
    asked = (options.output, options.episodes, options.seed, deterministic, options.max_steps)
    film = play(policy, name, *asked, **eval_env_kwargs(options.run))
    print(f"{name}, {folder}")
    print(_report(film))


def _report(film: Film) -> str:
    episodes = zip(film.returns, film.lengths, strict=True)
    lines = [f"episode {i}: return {total:.2f}, {steps} steps" for i, (total, steps) in enumerate(episodes, 1)]
    for i, returns in enumerate(film.by_agent):
        lines[i] += f" ({', '.join(f'{agent} {own:.2f}' for agent, own in returns.items())})"
    size = film.path.stat().st_size // 1000
    lines.append(f"wrote {film.path}: {film.frames} frames, {film.frames_per_second:g} a second, {size:,} kB")
    return "\n".join(lines)
