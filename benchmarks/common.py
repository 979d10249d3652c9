"""Common parts of the benchmarks: a machine's description, honest timing, a table for users and a JSON line for
programs.

Imports nothing but the standard library, because peers run these programs in interpreters of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
PACKAGES = ("headrace", "torch", "numpy", "numba", "gymnasium", "envpool", "gymnax", "jax", "stable-baselines3")
PACKAGES += ("sbx-rl", "rejax", "flax", "optax", "torchrl", "rltools", "mkl", "ray", "rlox")
Row = dict[str, Any]


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the flags that all benchmarks share."""
    flags = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    flags.add_argument("--quick", action="store_true", help="seconds instead of minutes; figures only roughly right")
    flags.add_argument("--results", type=Path, default=HERE / "results", help="folder of the JSON lines files")
    flags.add_argument(
        "--peers-home",
        type=Path,
        default=ROOT / ".peers",
        help="folder of virtual environments in which to look for libraries that this Python lacks",
    )
    return flags


def machine() -> Row:
    """Processor, usable cores, system, Python, GPU if there is one, versions of what is installed."""
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "gpu": _gpu_model(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Versions of the packages that matter, as far as this Python has them."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cpu_model() -> str:
    """Same as headrace.core.cores.processor(), which the interpreters of peers do not have: this file imports nothing
    but the standard library."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "model name" not in facts:
        return platform.machine()
    which = f" (family {facts['cpu family']}, model {facts['model']})" if "cpu family" in facts else ""
    return facts["model name"] + which


def _gpu_model() -> str | None:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


class Neighbours:
    """Cores that other processes keep busy while this one measures: above 0.1, distrust the figures."""

    def __init__(self) -> None:
        self.began = self._reading()

    def busy(self) -> float | None:
        """Mean since this object was made; None where the system does not tell."""
        now = self._reading()
        if now is None or self.began is None:
            return None
        wall, everyone, mine = (b - a for a, b in zip(self.began, now, strict=True))
        return round(max(0.0, everyone - mine) / wall, 2) if wall > 0 else 0.0

    @staticmethod
    def _reading() -> tuple[float, float, float] | None:
        """Wall, the machine's and this process's (and its ended children's) busy seconds."""
        try:
            fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        except OSError:
            return None
        user, nice, system, _idle, _waiting, *rest = map(int, fields)
        ticks = os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), (user + nice + system + sum(rest)) / ticks, sum(os.times()[:4])


def throughput(call: Callable[[], object], steps_per_call: float, seconds: float, windows: int = 3) -> Row:
    """Steps per second of repeated calls: the median of some windows, with their minimum and maximum."""
    warm = time.perf_counter() + seconds / 2
    call()
    while time.perf_counter() < warm:
        call()
    rates = []
    for _ in range(windows):
        calls, began, elapsed = 0, time.perf_counter(), 0.0
        while elapsed < seconds:
            call()
            calls += 1
            elapsed = time.perf_counter() - began
        rates.append(calls * steps_per_call / elapsed)
    return {"sps": statistics.median(rates), "sps_min": min(rates), "sps_max": max(rates)}


def interpreter_with(module: str, peers_home: Path, preferred: str = "") -> str | None:
    """A Python that can import `module`: this one, or that of a virtual environment in `peers_home`, the one called
    `preferred` first; None for none."""
    others = sorted(peers_home.glob("*/bin/python"), key=lambda python: (python.parts[-3] != preferred, python))
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    for python in (sys.executable, *map(str, others)):
        if subprocess.run([python, "-c", probe], capture_output=True).returncode == 0:
            return python
    return None


def site_packages(peers_home: Path) -> str | None:
    """The folder that has Stable-Baselines3; None, with a line, where there is none."""
    python = interpreter_with("stable_baselines3", peers_home, "torch")
    if python is None:
        print(f"sb3 left out: no Python with stable_baselines3 here or in {peers_home}", file=sys.stderr)
        return None
    find = "import pathlib, stable_baselines3 as s; print(pathlib.Path(s.__file__).parents[1])"
    return subprocess.run([python, "-c", find], capture_output=True, text=True, check=True).stdout.strip()


def run_program(
    python: str, program: str, *arguments: object, timeout: float, env: dict[str, str] | None = None
) -> Row:
    """Run a program, such as "speed/ppo_one.py", in a fresh process, and give the JSON object it prints last.

    It finds the moment of its start in HEADRACE_BENCHMARK_START. Raises RuntimeError, with what it wrote to stderr,
    where it fails or does not end in time.
    """
    command = [python, str(HERE / program), *map(str, arguments)]
    settings = environment(JAX_PLATFORMS="cpu", HEADRACE_BENCHMARK_START=repr(time.time())) | (env or {})
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=settings)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{' '.join(command)} did not end within {timeout:.0f} s") from None
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr.strip()[-2000:]}")
    result: Row = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def environment(**variables: str) -> dict[str, str]:
    """Variables for a child process that imports `benchmarks` and `headrace` of this checkout.

    Modules run from bytecode, as those of an installed package do: without, Headrace compiles its own at each start.
    """
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join(filter(None, (str(ROOT), settings.get("PYTHONPATH"))))
    return settings | {"PYTHONPATH": path, **variables}


def core_latency() -> float | None:
    """Nanoseconds until what one core wrote has come to another, see core_latency.py; None where there is one core."""
    found: float | None = run_program(sys.executable, "speed/core_latency.py", timeout=120)["core_ns"]
    return found


def process_start() -> float:
    """time.time() when run_program() started this process; or that of this call."""
    return float(os.environ.get("HEADRACE_BENCHMARK_START", time.time()))


def table(rows: Iterable[Row], columns: Sequence[str]) -> str:
    """The rows as aligned text; a missing value is a dash."""
    cells = [list(columns), *([_cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float() if abs(value) >= 1000:
            return f"{value:,.0f}"
        case float():
            return f"{value:.3g}"
        case int():
            return f"{value:,}"
    return str(value)


def read_rows(file: Path) -> list[Row]:
    """The objects of a JSON lines file, such as finish() writes; none where there is no file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def last_rows(file: Path, key: str) -> dict[Any, Row]:
    """Last row of each `key` that finish() wrote, of runs that were not quick."""
    return {row[key]: row for run in read_rows(file) if not run["quick"] for row in run["rows"]}


def finish(benchmark: str, rows: list[Row], options: argparse.Namespace, neighbours: Neighbours, **more: Any) -> None:
    """Print the result as one JSON object, the last line, and append it to results/BENCHMARK.jsonl."""
    result = {
        "benchmark": benchmark,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "quick": options.quick,
        "machine": machine(),
        "others_cpu": neighbours.busy(),
        **more,
        "rows": rows,
    }
    line = json.dumps(result)
    options.results.mkdir(parents=True, exist_ok=True)
    with open(options.results / f"{benchmark}.jsonl", "a") as file:
        file.write(line + "\n")
    print(line)
