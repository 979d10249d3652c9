"""`headrace check`: check an environment's interface, or compare this machine's kernels with plain torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from headrace.cli import pairs
from headrace.core.processes.state import same_folder
from headrace.core.types import Settings

DESCRIPTION = """headrace check ENV: check the spaces, rewards, endings and seeding of an environment, run Gymnasium's
checker on it, and measure the time of a step and the throughput of each backend.

headrace check my_kernel.py:MyEnv --against LunarLander-v3: compare a port with its reference.

headrace check --device cuda: compare the kernels, fused code and graphs of a device with plain torch on the CPU.

Exit code: 0 if nothing is wrong, 1 if something is wrong, 2 for a usage error or a missing package."""


@dataclass(frozen=True)
class Check:
    """Check an environment, or the kernels of this machine."""

    # a name, a Gymnasium id or path/to/file.py:Class; without it, this machine is checked
    env: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="[ENV]")] = None
    against: str | None = None  # the reference that ENV, a KernelEnv, was ported from: compares single steps
    # as for `headrace train`: the environment is checked as a training makes it
    env_kwargs: dict[str, Any] = field(default_factory=dict)  # arguments of its constructor, such as continuous=true
    wrapper: tuple[str, ...] = ()  # the innermost first: file.py:Class or package.module:function
    ignore: tuple[str, ...] = ()  # members of a Dict observation that are left out, such as text
    frame_stack: int | None = None  # successive observations stacked into one
    time_limit: int | None = None  # steps after which an episode is truncated
    steps: int = 1000  # steps of random actions in ENV, or steps to compare with the reference
    seconds: float = 2.0  # time limit of the random actions, s
    measure: float = 0.5  # time to measure each backend, s; 0: do not measure
    allowed: float = 1e-5  # largest difference from the reference, relative to max(1, |x|)
    seed: int = 0  # of the environment and the random actions
    device: str = "cpu"  # for a check of this machine: cpu, cuda, cuda:1
    output: Path | None = None  # write the results to this JSON file
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False  # print JSON instead of a table

    def of_making(self) -> Settings:
        """The given options that determine how an environment is made."""
        names = ("env_kwargs", "wrapper", "ignore", "frame_stack", "time_limit")
        return {name: value for name in names if (value := getattr(self, name))}


def main(arguments: list[str]) -> None:
    """Check an environment or a device and print the results. The exit code is 1 if something is wrong."""
    options = pairs.cli(Check, "check", DESCRIPTION, args=arguments)
    if options.against is not None and options.env is None:
        raise ValueError(f"--against {options.against} needs the kernel to compare: headrace check file.py:Class ...")
    with same_folder():
        to = options.output and options.output.absolute()
        passed = _check_machine(options, to) if options.env is None else _check_env(options.env, options, to)
    if not passed:
        raise SystemExit(1)


def _check_machine(options: Check, to: Path | None) -> bool:
    """Check the kernels of a device against plain torch. True if they agree."""
    from headrace.checks import machine

    report = machine.check_device(options.device)
    machine.show(report, to, options.json)
    return report.passed


def _check_env(env: str, options: Check, to: Path | None) -> bool:
    """Check an environment. True if nothing is wrong."""
    from headrace import envs
    from headrace.checks import environment, output
    from headrace.checks.against import against
    from headrace.evaluation.recipe import kernel_class
    from headrace.training.plan import absolute_source

    env = absolute_source(env)
    if options.against is None:
        report = environment.check(
            env, options.steps, options.seconds, options.seed, options.measure, options.of_making()
        )
    else:
        kernel = kernel_class(env)
        if kernel is None:
            raise TypeError(f"{env} is no KernelEnv: --against compares a KernelEnv with the reference it is a port of")
        findings = against(kernel, envs.factory(options.against), options.steps, options.seed, options.allowed)
        report = environment.Report(f"{env} against {options.against}", findings, None, [])
    output.show(report, to, options.json)
    return output.passed(report)
