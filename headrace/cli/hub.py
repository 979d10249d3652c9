"""`headrace hub push RUN user/name` and `headrace hub pull user/name FOLDER`: policies at the Hugging Face hub."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import FlagCreatePairsOff, Positional, subcommand

from headrace.cli import pairs
from headrace.cli.run_policy import Choice, load_chosen
from headrace.core.terminal import say
from headrace.core.trust import code_of
from headrace.evaluation.evaluator import evaluate
from headrace.evaluation.playing import Evaluation
from headrace.runs.hub import pull_from_hub, push_to_hub

DESCRIPTION = (
    "Push a run's policy to the Hugging Face hub, or pull one: headrace hub push runs/ppo/CartPole-v1_1 me/pole"
)


@dataclass(frozen=True)
class Push:
    """Push the best policy of a run, its settings and its learning curve."""

    run: Positional[Path]  # the run's folder
    repo: Positional[str]  # user/name
    private: Annotated[bool, FlagCreatePairsOff] = False  # make a repository that only you see
    episodes: int = 100  # episodes of an evaluation for the model card; 0: none
    trust: Annotated[bool, FlagCreatePairsOff] = False  # run code that lies in the run's own folder


@dataclass(frozen=True)
class Pull:
    """Download a policy, for `headrace eval` and `headrace play`."""

    repo: Positional[str]  # user/name
    folder: Positional[Path]  # where to
    revision: str | None = None  # a branch, a tag or a commit


def main(arguments: list[str]) -> None:
    """Push or pull, and print where."""
    kinds: Any = Annotated[Push, subcommand("push")] | Annotated[Pull, subcommand("pull")]
    command = pairs.cli(kinds, "hub", DESCRIPTION, args=arguments)
    if isinstance(command, Push):
        evaluation = _evaluated(command) if command.episodes else None
        say(push_to_hub(command.run, command.repo, private=command.private, evaluation=evaluation))
    else:
        say(pull_from_hub(command.repo, command.folder, command.revision))


def _evaluated(command: Push) -> Evaluation:
    """Evaluate the policy to push, as `headrace eval` does, and print the result."""
    with code_of(command.run, trust=command.trust):
        policy, _, described, env, deterministic, kwargs = load_chosen(command.run, Choice())
        result = evaluate(policy, env, command.episodes, 0, deterministic, **kwargs)
    say(f"{described}: {result}")
    return result
