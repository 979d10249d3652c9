"""`headrace check`: is an environment what it says it is, and does this machine compute what plain torch computes?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

DESCRIPTION = """headrace check ENV: spaces, rewards, endings and seeds of an environment, what Gymnasium's own checker
says, how long a step takes, and what each backend would make of it.
headrace check MyKernel.py:Mine --against LunarLander-v3: a rewrite beside its original.
headrace check --device cuda: kernels, fused code and graphs of a device beside plain torch on the CPU.
Exit code 0 where all is well, 1 where something is wrong, 2 where something is missing."""


@dataclass(frozen=True)
class Check:
    """What to check, and where the outcome goes."""

    # a name, a Gymnasium id or path/to/file.py:Class; without, this machine is checked
    env: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[ENV]")] = None
    against: str | None = None  # the original of which ENV, a KernelEnv, is a rewrite: single steps are compared
    steps: int = 1000  # of the walk through ENV, or to compare with the original
    seconds: float = 2.0  # that the walk may take
    measure: float = 0.5  # seconds to measure each backend; 0 for none
    allowed: float = 1e-5  # difference from the original, in parts of max(1, |x|)
    seed: int = 0  # of the walk
    device: str = "cpu"  # cpu, cuda, cuda:1: of the machine's check
    output: Path | None = None  # a JSON file to write
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False  # print JSON instead of a table


def main(arguments: list[str]) -> None:
    """Check an environment or a device, print, and end with exit code 1 where something is wrong."""
    options = tyro.cli(Check, prog="headrace check", description=DESCRIPTION, args=arguments)
    if options.against is not None and options.env is None:
        raise ValueError(f"--against {options.against} needs the kernel to compare: headrace check file.py:Class ...")
    if not _checked(options):
        raise SystemExit(1)


def _checked(options: Check) -> bool:
    """Whether all is well."""
    if options.env is None:
        from headrace.checks import machine

        outcome = machine.check(options.device)
        machine.report(outcome, options)
        return bool(outcome["passed"])
    from headrace.checks import output

    found = _report(options)
    output.show(found, options)
    return output.passed(found)


def _report(options: Check) -> Any:
    from headrace import envs
    from headrace.checks import environment
    from headrace.checks.against import against
    from headrace.evaluation.evaluator import kernel_class

    env: Any = options.env
    if options.against is None:
        return environment.check(env, options.steps, options.seconds, options.seed, options.measure)
    kernel = kernel_class(env)
    if kernel is None:
        raise TypeError(f"{env} is no KernelEnv: --against compares a kernel with the environment it is a rewrite of")
    findings = against(kernel, envs.factory(options.against), options.steps, options.seed, options.allowed)
    return environment.Report(f"{env} against {options.against}", findings, None, [])
