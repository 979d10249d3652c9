"""`headrace eval RUN`: evaluates a trained policy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from headrace.cli import pairs
from headrace.cli.run_policy import Choice, eval_counts, load_chosen, skills_of
from headrace.core.terminal import say
from headrace.core.trust import code_of
from headrace.evaluation.evaluator import evaluate
from headrace.evaluation.playing import Evaluation
from headrace.runs.progress import EvaluationLines

DESCRIPTION = "Evaluate a trained policy in the reference environment: headrace eval runs/ppo/CartPole-v1_1"


@dataclass(frozen=True)
class Eval:
    """Evaluate the policy of a run."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]  # folder of a run or of a checkpoint in it
    choice: Annotated[tyro.conf.OmitArgPrefixes[Choice], tyro.conf.arg(name="policy")]
    episodes: int = 100  # number of whole episodes
    seed: int = 0  # of the environments and of sampled actions; the same seed gives the same episodes
    workers: int | None = None  # processes that step the environments; the returns do not depend on it
    # largest number of environments that are not compiled; without it, the number in training
    eval_envs: int | None = None
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False  # print one JSON object instead of a table


def main(arguments: list[str]) -> None:
    """Evaluate, and print a table or JSON."""
    options = pairs.cli(Eval, "eval", DESCRIPTION, args=arguments)
    with code_of(options.run, trust=options.choice.trust):
        policy, folder, described, env, deterministic, kwargs = load_chosen(options.run, options.choice)
        counts = {} if options.choice.env else dict(eval_counts(options.run))
        if options.eval_envs is not None:
            counts["eval_envs"] = options.eval_envs
        kwargs = {"workers": options.workers, "watch": EvaluationLines(options.episodes), **counts, **kwargs}
        kwargs |= skills_of(options.run)
        result = evaluate(policy, env, options.episodes, options.seed, deterministic, **kwargs)
    if options.json:
        facts = {"run": str(options.run), "policy": folder.name, "env": env, "episodes": options.episodes}
        facts |= {"seed": options.seed, "deterministic": deterministic, "seconds": result.seconds, "cut": result.cut}
        facts |= {"return": _statistics(result.returns), "length": _statistics(result.lengths)}
        if result.means():
            facts["info"] = {name: _statistics(result.infos[name]) for name in result.means()}
        if result.by_agent:
            facts["return_by_agent"] = {agent: _statistics(returns) for agent, returns in result.by_agent.items()}
        say(json.dumps(facts))
        return
    actions = "deterministic" if deterministic else "stochastic"
    say(f"{env}: {options.episodes} episodes, {actions}, {described}")
    if result.cut:
        say(f"{result.cut} of them cut off after {max(result.lengths):,} steps")
    say(_table(result))


def _statistics(values: tuple[float, ...] | tuple[int, ...]) -> dict[str, float]:
    array = np.array(values, float)
    array = array[~np.isnan(array)]  # an info may lack a number
    return {name: float(getattr(np, name)(array)) for name in ("mean", "std", "min", "median", "max")}


def _table(result: Evaluation) -> str:
    rows = {"return": _statistics(result.returns), "length": _statistics(result.lengths)}
    rows |= {name: _statistics(result.infos[name]) for name in result.means()}
    rows |= {f"return of {agent}": _statistics(returns) for agent, returns in result.by_agent.items()}
    width = max(8, *(len(row) for row in rows))
    lines = [" " * width + "".join(f"{name:>12}" for name in rows["return"])]
    lines += [f"{row:<{width}}" + "".join(f"{x:12.2f}" for x in values.values()) for row, values in rows.items()]
    return "\n".join(lines)
