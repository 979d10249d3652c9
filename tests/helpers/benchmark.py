"""Benchmarks as tests run them: quickly, each in a child of the fork server, with results of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from helpers import forked

ROOT = Path(__file__).parents[2]


def ran(program: str, results: Path, *flags: object) -> subprocess.CompletedProcess:
    """Run `python -m benchmarks.PROGRAM --results RESULTS`, such as "speed.workers", which must not fail."""
    command = [sys.executable, "-m", f"benchmarks.{program}", "--results", str(results), *map(str, flags)]
    done = forked.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def last(done: subprocess.CompletedProcess) -> dict:
    """The JSON object of the last line that a program printed."""
    return json.loads(done.stdout.strip().splitlines()[-1])


def run(program: str, results: Path, *flags: object) -> tuple[str, dict]:
    """Run a benchmark with --quick. Returns what it prints, and the JSON object of its last line, which must also be in
    its results."""
    done, name = ran(program, results, "--quick", *flags), program.rpartition(".")[2]
    result = last(done)
    assert (results / f"{name}.jsonl").read_text().endswith(done.stdout.strip().splitlines()[-1] + "\n")
    assert result["benchmark"] == name
    assert {"cpu", "cores", "python", "versions"} <= result["machine"].keys()
    return done.stdout, result


def is_png(path: Path) -> bool:
    """Tell whether a benchmark wrote a figure."""
    return path.read_bytes().startswith(b"\x89PNG")
