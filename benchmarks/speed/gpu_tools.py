"""NVIDIA's tools: compute-sanitizer's checks of the smallest trainings, and profiles of kernels by ncu.

python -m benchmarks.speed.gpu_tools --run trainings     # what is checked
python -m benchmarks.speed.gpu_tools --run profiled      # what is profiled
"""

from __future__ import annotations

import argparse
import csv
import glob
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

import headrace as hr
from benchmarks.common import ROOT, environment
from benchmarks.speed import gpu_ceilings
from benchmarks.speed.gpu_card import Card
from benchmarks.speed.gpu_losses import CASES
from headrace import envs
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
from headrace.training.trainer import Trainer

PLACES = ("/usr/local/cuda*/bin", "/usr/local/cuda*/compute-sanitizer", "/opt/nvidia/nsight-compute/*")
WHEELS = "{site}/nvidia/*/bin"
SMALL: dict[str, Any] = {"hidden": (16, 16), "num_envs": 16, "progress": "none", "graphs": False}
TRAININGS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", {"num_steps": 8, "minibatch_size": 64, "epochs": 1}),
    "sac": ("Pendulum-v1", {"num_steps": 1, "gradient_steps": 2, "batch_size": 37, "learning_starts": 32}),
}
SECTIONS = ("SpeedOfLight", "Occupancy", "WarpStateStats", "MemoryWorkloadAnalysis", "LaunchStats")
# name -> a loss of gpu_losses.py and rows; of environments their number
PROFILED: dict[str, tuple[str, int]] = {
    "PPO, minibatch of 16,384 environments": ("PPO 2 x 64", 131_072),
    "PPO, minibatch of 256 environments": ("PPO 2 x 64", 2048),
    "own network": ("PPO residual 64", 131_072),
    "critics, batch 256": ("critics 2 x 256", 256),
    "critics, batch 32,768": ("critics 2 x 256", 32_768),
    "CartPole-v1 alone": ("", 131_072),
}
MARK = "fma"  # the kernel of gpu_ceilings.py that is launched before each of them


def tool(name: str) -> str | None:
    """Path of one of NVIDIA's tools: in the path, in CUDA's toolkit, or in a wheel."""
    site = Path(torch.__file__).parents[1]
    folders = [folder for place in (*PLACES, WHEELS.format(site=site)) for folder in sorted(glob.glob(place))]
    return shutil.which(name) or next((f"{x}/{name}" for x in folders if Path(x, name).is_file()), None)


def sanitized(card: Card, check: str) -> None:
    """The trainings under compute-sanitizer: memcheck, or racecheck, which looks at the shared memory."""
    program = tool("compute-sanitizer")
    if program is None and not card.dry:
        card.tell(tool=check, left_out="compute-sanitizer is not installed")
        return
    done = _run([*([] if card.dry else [program, *sanitizer_options(check)]), *_own(card, "trainings")])
    said = [line for line in done.stdout.splitlines() if line.startswith("=========")]
    card.tell(tool=check, exit_code=done.returncode, said=said[-60:])
    if done.returncode:
        raise RuntimeError(f"{check} ended with {done.returncode}: {done.stderr[-1500:]}")


def sanitizer_options(check: str) -> list[str]:
    """Options of compute-sanitizer. Left out are calls of CUDA that fail, which raise, and of races those in
    torch's own kernels: to look for them takes too long."""
    own = ["--report-api-errors", "no"] if check == "memcheck" else []
    return [
        "--tool",
        check,
        *own,
        "--error-exitcode",
        "9",
        "--print-limit",
        "20",
        "--kernel-name-exclude",
        "kns=at6native",
    ]


def profiler_options() -> list[str]:
    """Options of ncu."""
    sections = [part for section in SECTIONS for part in ("--section", section)]
    return ["--profile-from-start", "off", "--csv", "--page", "details", *sections]


def profiled(card: Card) -> None:
    """The kernels of each of PROFILED under ncu, once: what limits them."""
    program = tool("ncu")
    if program is None and not card.dry:
        card.tell(tool="ncu", left_out="ncu is not installed")
        return
    done = _run([*([] if card.dry else [program, *profiler_options()]), *_own(card, "profiled")])
    found = dict(zip(PROFILED, counted(done.stdout.splitlines()), strict=False))
    for name, kernels in found.items():
        card.tell(tool="ncu", what=name, kernels=kernels)
    if card.dry:
        card.tell(tool="ncu", exit_code=done.returncode)
    if done.returncode or (len(found) < len(PROFILED) and not card.dry):
        raise RuntimeError(f"ncu ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")


def counted(lines: Iterable[str]) -> list[dict[str, dict[str, str]]]:
    """Read ncu's table: for each of what was profiled the metrics of its kernels, by section and name, with units."""
    found: list[dict[str, dict[str, str]]] = []
    for row in csv.DictReader(line for line in lines if line.startswith('"')):
        kernel = row["Kernel Name"].split("(")[0]
        if kernel == MARK:
            if not found or found[-1]:
                found.append({})
        elif found and row.get("Metric Name"):
            metrics = found[-1].setdefault(f"{row['ID']} {kernel}", {})
            name = f"{row['Section Name']}: {row['Metric Name']}"
            metrics[name] = f"{row['Metric Value']} {row['Metric Unit']}".strip()
    return found


def _own(card: Card, what: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.speed.gpu_tools", "--run", what, *["--dry"] * card.dry]


def _run(command: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment())


def trainings(card: Card) -> None:
    """Two iterations of each."""
    for name, (env, settings) in TRAININGS.items():
        backend = {"device": str(card.device), "backend": card.backend}
        with card.kernels() if name == "ppo" else nullcontext():  # the CPU's loop of replay takes its own programs
            trainer = Trainer(name, env, **SMALL, **backend, **settings)
            try:
                for _ in range(4):
                    trainer.iterate()
            finally:
                trainer.close()


def launches(card: Card) -> None:
    """Each of PROFILED, with the profiler on, after calls in which everything is compiled."""
    mark = gpu_ceilings.launches(card, "fma", gpu_ceilings.fma_text())
    for name, (loss, size) in PROFILED.items():
        call = _gradient(card, loss, card.of(size, 40)) if loss else _steps(card, card.of(size, 8))
        for _ in range(3):
            call()
        card.wait()
        print(f"profiling {name}", flush=True)
        with nullcontext() if card.dry else torch.cuda.profiler.profile():
            mark()
            call()
            card.wait()


def _gradient(card: Card, name: str, rows: int) -> Callable[[], object]:
    """A gradient of a loss, by the kernels that are made of it."""
    loss, net, batch = CASES[name](rows)
    step, net = hr.compile(loss), net.to(card.device)
    batch = {key: x.to(card.device) for key, x in batch.items()}

    def call() -> None:
        with card.kernels():
            step(net, batch)

    with card.kernels():
        if why := step.why_not(net, batch):
            raise RuntimeError(why)
    return call


def _steps(card: Card, num_envs: int) -> Callable[[], object]:
    """Steps of CartPole, in one launch where there is a kernel for it."""
    env: Any = envs.make("CartPole-v1", num_envs, backend=card.backend, device=card.device)
    columns = env_columns(env.observation_space) | {"action": action_column(env.action_space)}
    rollout = Rollout(32, num_envs, columns, card.device)
    env.reset(rollout, 0)
    rollout.action.zero_()
    return partial(env.run, rollout) if card.backend == "cuda" else partial(env.step, rollout, 0)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--run", choices=("trainings", "profiled"), required=True)
    flags.add_argument("--dry", action="store_true")
    options = flags.parse_args()
    (trainings if options.run == "trainings" else launches)(Card(options.dry))


if __name__ == "__main__":
    main()
