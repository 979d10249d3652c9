"""`headrace check --device`: does this machine compute what plain torch on the CPU computes?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from headrace.core.device import resolve
from headrace.core.text import plain_table

HEADINGS = ("check", "agrees", "difference", "allowed", "seconds", "")


def check(name: str) -> dict[str, Any]:
    """The outcome of all checks of a device, in JSON's types. Raises ValueError where the device is missing."""
    try:
        device = resolve(name)
    except ValueError as error:
        raise ValueError(f"{error}: install a CUDA build of torch and a driver, or check --device cpu") from error
    from headrace.checks import parity

    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"there are no kernels for {device}: check cpu or cuda")
    if device.type == "cuda" and find_spec("numba_cuda") is not None:
        import_module("headrace.bindings.rng_returns_cuda")
    checks = parity.check(device)
    rows = [one._asdict() for one in checks]
    passed = all(one.passed for one in checks)
    return {"device": str(device), "machine": parity.facts(device), "passed": passed, "checks": rows}


def report(outcome: dict[str, Any], options: Any) -> None:
    """Print the outcome, and write it where asked. options: output and json of `headrace check`."""
    text = json.dumps(outcome, indent=1)
    if options.output is not None:
        options.output.write_text(text + "\n")
    if options.json:
        print(text)
        return
    print(plain_table([HEADINGS, *(_cells(row) for row in outcome["checks"])]))
    failed = [row["name"] for row in outcome["checks"] if not row["passed"]]
    what = f"on {outcome['machine']['device']}"
    print(f"{what}: " + (f"{', '.join(failed)} differ from plain torch" if failed else "all as plain torch"))


def _cells(row: dict[str, Any]) -> Sequence[str]:
    numbers = ["-" if row[name] is None else f"{row[name]:.2g}" for name in ("worst", "allowed")]
    return (row["name"], "yes" if row["passed"] else "NO", *numbers, f"{row['seconds']:.2f}", row["note"])
