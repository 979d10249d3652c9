"""`headrace export RUN`: writes a trained policy to a file that needs no Headrace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from headrace.agent_groups.group_policy import GroupedPolicy
from headrace.cli import pairs
from headrace.cli.run_policy import Flag, describe, own_policy_of
from headrace.core.terminal import say
from headrace.core.trust import code_of
from headrace.deploy.exporter import export
from headrace.runs.run import BEST, LAST, load_with_folder

DESCRIPTION = "Write a trained policy to one file: headrace export runs/ppo/CartPole-v1_1 --to onnx"


@dataclass(frozen=True)
class ExportPolicy:
    """Export the policy of a run to a file."""

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]  # folder of a run or of a checkpoint in it
    to: Literal["onnx", "numpy", "c"]  # a model, a file of Python that needs NumPy alone, a C99 header
    # the file to write; without it, policy.onnx, policy.py or policy.h, or the first free name of policy_2.onnx ...
    output: Path | None = None
    value: Flag = False  # write the critic's value, too
    load_last: Flag = False  # the policy at the end of training, not the one with the best return
    trust: Flag = False  # run the code of a policy that lies in the run's own folder
    group: str | None = None  # the group of agents to export, if each group has a policy


def main(arguments: list[str]) -> None:
    """Export, and print the interface of the file and how it compares with the policy."""
    options = pairs.cli(ExportPolicy, "export", DESCRIPTION, args=arguments)
    which = [LAST] if options.load_last else [BEST, LAST]
    with code_of(options.run, trust=options.trust):
        policy, folder = load_with_folder(options.run, which, own_policy_of(options.run))
        chosen = policy if options.group is None else _of_group(policy, options.group)
        written = export(chosen, options.to, options.output, options.value)
    say(describe(folder))
    say(f"wrote {written.path}, {written.path.stat().st_size:,} bytes: {written.interface}")
    say(written.comparison)


def _of_group(policy: Any, group: str) -> Any:
    """The policy of a group of agents. Raises ValueError for an unknown group."""
    if not isinstance(policy, GroupedPolicy):
        raise ValueError(f"all agents share one policy, and there is no group {group!r}: leave out --group")
    if group not in policy.groups:
        raise ValueError(f"there is no group {group!r}: the groups are {', '.join(policy.groups)}")
    return policy[group]
