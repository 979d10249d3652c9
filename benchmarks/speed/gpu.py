"""Measurements that need a GPU, in one command of at most 540 seconds, which prints JSON after every part.

    python -m benchmarks.speed.gpu --output results.json
    python -m benchmarks.speed.gpu --dry                    # without a GPU: each part's code, on the CPU, in a moment

Each part is a process with a time limit of its own: one that fails, or is ended, is reported with its error and with
the rows that it had by then, and the others run. Kernels that gpu_carried.py has made are in --carried. Environments
are counted in valid steps, iterations in steps of all environments.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.common import HERE, ROOT, Row, environment, machine
from benchmarks.speed import gpu_carried, gpu_ceilings, gpu_losses, gpu_measures, gpu_tools, gpu_trainings
from benchmarks.speed.gpu_card import ROW, Card

SECONDS = 540.0  # of all parts
LEAST = 8.0  # seconds in which a part may come to something


class Part(NamedTuple):
    """Part of a run, which takes so many seconds at most."""

    call: Callable[[Card], None]
    limit: float


def parts(peers_home: Path = ROOT / ".peers") -> dict[str, Part]:
    """All parts, in the order in which they run: what is found wrong early makes the rest worth less."""
    return {
        "check": Part(gpu_measures.check, 60),
        "ceilings": Part(gpu_ceilings.ceilings, 30),
        "memcheck": Part(partial(gpu_tools.sanitized, check="memcheck"), 60),
        "racecheck": Part(partial(gpu_tools.sanitized, check="racecheck"), 60),
        "profile": Part(gpu_tools.profiled, 70),
        "off_policy": Part(gpu_trainings.off_policy, 90),
        "device_env": Part(gpu_trainings.device_env, 30),
        "crossover": Part(gpu_trainings.crossover, 60),
        "simulator": Part(gpu_trainings.simulator, 40),
        "losses": Part(gpu_losses.losses, 60),
        "iterations": Part(gpu_measures.iterations, 90),
        "own_network": Part(gpu_measures.own_network, 60),
        "rejax": Part(partial(gpu_measures.rejax, home=peers_home), 60),
        "envs": Part(gpu_measures.steps_alone, 40),
        "entities": Part(gpu_measures.entities, 20),
        "gymnax": Part(partial(gpu_measures.gymnax, home=peers_home), 30),
        "solved": Part(gpu_trainings.solved, 60),
        "evaluation": Part(gpu_trainings.evaluation, 40),
        "gradient_actors": Part(gpu_trainings.gradient_actors, 60),
        "learners": Part(gpu_measures.learners, 30),
        "tests": Part(gpu_measures.tests, 180),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("OUT", HERE / "results")) / "gpu.json"
    flags.add_argument("--output", type=Path, default=default, help="a JSON file; by default in $OUT, if that is set")
    flags.add_argument("--seconds", type=float, default=0.3, help="of each measurement")
    flags.add_argument("--limit", type=float, default=SECONDS, help="seconds of all parts together")
    flags.add_argument("--only", nargs="+", default=[], help="parts to run; all where none is named")
    flags.add_argument("--without", nargs="+", default=[], help="parts to leave out: tests, check, envs, ...")
    flags.add_argument("--peers-home", type=Path, default=ROOT / ".peers")
    flags.add_argument("--carried", type=Path, default=gpu_carried.FOLDER, help="folder of gpu_carried.py")
    flags.add_argument("--dry", action="store_true", help="on the CPU, with sizes of a moment")
    flags.add_argument("--part", help=argparse.SUPPRESS)  # this process is that of a part
    options = flags.parse_args(arguments)
    if not options.dry and not torch.cuda.is_available():
        sys.exit(
            "benchmarks/speed/gpu.py needs an NVIDIA GPU that torch can use, and there is none here; --dry needs none"
        )
    known = parts(options.peers_home)
    if unknown := {*options.only, *options.without} - known.keys():
        sys.exit(f"there is no part {', '.join(sorted(unknown))}; parts are {', '.join(known)}")
    if options.part:
        sys.exit(run_here(known[options.part], options))
    chosen = {n: x for n, x in known.items() if n in (options.only or known) and n not in options.without}
    result: Row = {"benchmark": "gpu", "dry": options.dry, "machine": machine()}
    result["when"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    command = [sys.executable, "-m", "benchmarks.speed.gpu", *_flags(options)]
    run_all({name: part.limit for name, part in chosen.items()}, command, result, options)
    print(f"wrote {options.output}")
    sys.exit(any("error" in result[name] for name in chosen))


def _flags(options: argparse.Namespace) -> list[str]:
    """The flags that a part's process needs."""
    found = ["--seconds", str(options.seconds), "--peers-home", str(options.peers_home)]
    return [*found, "--carried", str(options.carried), *["--dry"] * options.dry]


def run_all(limits: dict[str, float], command: Sequence[str], result: Row, options: argparse.Namespace) -> None:
    """Run parts, each by the command with --part NAME, and add what each gives to the result, which is printed and
    written after each part: of a call that is cut short, what was measured stays."""
    options.output.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + options.limit
    for name, limit in limits.items():
        left = end - time.monotonic()
        if left < LEAST:
            result[name] = {"rows": [], "left_out": f"of {options.limit:.0f} seconds {max(left, 0):.0f} were left"}
        else:
            result[name] = run_part([*command, "--part", name], min(limit, left))
        print(json.dumps({"part": name, **result[name]}), flush=True)
        options.output.write_text(json.dumps(result, indent=1))


def run_part(command: Sequence[str], limit: float) -> Row:
    """The rows of a part's process, with its error where it failed; it is ended, with its children, at its limit."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdout=said,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=environment(),
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        said.seek(0)
        lines = said.read().splitlines()
    rows = [json.loads(line.removeprefix(ROW)) for line in lines if line.startswith(ROW)]
    found: Row = {"seconds": round(time.monotonic() - began, 1), "rows": rows}
    others = "\n".join(line for line in lines if not line.startswith(ROW))[-2000:]
    if code is None:
        found["error"] = f"ended at its limit of {limit:.0f} seconds\n{others}"
    elif code:
        found["error"] = others or f"ended with {code}"
    elif any("error" in row for row in rows):
        found["error"] = "see its rows"
    return found


def _end(process: subprocess.Popen[str]) -> None:
    """End what is left of a part's processes: those of its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def run_here(part: Part, options: argparse.Namespace) -> int:
    """A part, in this process. Returns the exit status."""
    card, counts = Card(options.dry, options.seconds), None
    if options.carried.is_dir():
        counts = gpu_carried.install(options.carried)
    try:
        part.call(card)
    except Exception:
        traceback.print_exc()
        return 1
    if counts:
        print(f"kernels: {counts}")
    return 0


if __name__ == "__main__":
    main()
