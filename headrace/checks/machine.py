"""`headrace check --device`: compare the kernels of this machine with plain torch on the CPU."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

from headrace.checks.output import write_json
from headrace.checks.parity import Check, check, facts
from headrace.core.device import resolve
from headrace.core.terminal import say
from headrace.core.text import plain_table

HEADINGS = ("check", "agrees", "difference", "allowed", "seconds", "")


class DeviceReport(NamedTuple):
    """The results of all checks of a device."""

    device: torch.device
    machine: dict[str, str]  # device name, driver, versions
    checks: list[Check]

    @property
    def passed(self) -> bool:
        """True if all checks agree."""
        return all(one.passed for one in self.checks)


def check_device(name: str) -> DeviceReport:
    """Run all checks of a device. Raises ValueError if it is missing or has no kernels."""
    try:
        device = resolve(name)
    except ValueError as error:
        raise ValueError(f"{error}: install a CUDA build of torch and a driver, or check --device cpu") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"there are no kernels for {device}: check cpu or cuda")
    if device.type == "cuda" and find_spec("numba_cuda") is not None:
        import_module("headrace.bindings.rng_returns_cuda")
    return DeviceReport(device, facts(device), check(device))


def show(report: DeviceReport, file: Path | None, as_json: bool) -> None:
    """Print the results, and write them to a JSON file unless that is None."""
    results = {"device": str(report.device), "machine": report.machine, "passed": report.passed}
    if write_json({**results, "checks": [one._asdict() for one in report.checks]}, file, as_json):
        return
    say(plain_table([HEADINGS, *map(_cells, report.checks)]))
    failed = [one.name for one in report.checks if not one.passed]
    outcome = f"{', '.join(failed)} differ from plain torch" if failed else "all agree with plain torch"
    say(f"on {report.machine['device']}: {outcome}")


def _cells(check: Check) -> tuple[str, ...]:
    numbers = ["-" if number is None else f"{number:.2g}" for number in (check.worst, check.allowed)]
    return (check.name, "yes" if check.passed else "NO", *numbers, f"{check.seconds:.2f}", check.note)
