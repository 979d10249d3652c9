"""NVIDIA's tools around the smallest trainings: compute-sanitizer's checks, and one profile of a gradient by ncu.

python -m benchmarks.speed.gpu_tools --run trainings     # what is checked
python -m benchmarks.speed.gpu_tools --run gradient      # what is profiled
"""

from __future__ import annotations

import argparse
import csv
import glob
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import headrace as hr
from benchmarks.common import ROOT, environment
from benchmarks.speed.gpu_card import Card
from headrace.training.trainer import Trainer

PLACES = ("/usr/local/cuda*/bin", "/usr/local/cuda*/compute-sanitizer", "/opt/nvidia/nsight-compute/*")
WHEELS = "{site}/nvidia/*/bin"
SMALL: dict[str, Any] = {"hidden": (16, 16), "num_envs": 16, "progress": "none", "graphs": False}
TRAININGS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", {"num_steps": 8, "minibatch_size": 64, "epochs": 1}),
    "sac": ("Pendulum-v1", {"num_steps": 1, "gradient_steps": 2, "batch_size": 37, "learning_starts": 32}),
}
SECTIONS = ("SpeedOfLight", "Occupancy", "WarpStateStats", "MemoryWorkloadAnalysis", "LaunchStats")
KERNEL = "phase0"  # of a loss with its gradients
ROWS, WIDTH = 32_768, 64  # of the loss that is profiled


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
    options = [program, "--tool", check, "--error-exitcode", "9", "--print-limit", "20"]
    done = _run([*([] if card.dry else options), *_own(card, "trainings")])
    said = [line for line in done.stdout.splitlines() if line.startswith("=========")]
    card.tell(tool=check, exit_code=done.returncode, said=said[-60:])
    if done.returncode:
        raise RuntimeError(f"{check} ended with {done.returncode}: {done.stderr[-1500:]}")


def profiled(card: Card) -> None:
    """One launch of a gradient's kernel under ncu: what limits it."""
    program = tool("ncu")
    if program is None and not card.dry:
        card.tell(tool="ncu", left_out="ncu is not installed")
        return
    options = [
        program,
        "--kernel-name",
        KERNEL,
        "--launch-skip",
        "2",
        "--launch-count",
        "1",
        "--csv",
        "--page",
        "details",
    ]
    options += [part for section in SECTIONS for part in ("--section", section)]
    done = _run([*([] if card.dry else options), *_own(card, "gradient")])
    metrics = counted(done.stdout.splitlines())
    card.tell(tool="ncu", kernel=KERNEL, exit_code=done.returncode, metrics=metrics)
    if done.returncode or not (metrics or card.dry):
        raise RuntimeError(f"ncu ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")


def counted(lines: Iterable[str]) -> dict[str, str]:
    """The metrics of ncu's table, by section and name, with their units."""
    rows = csv.DictReader(line for line in lines if line.startswith('"'))
    return {
        f"{row['Section Name']}: {row['Metric Name']}": f"{row['Metric Value']} {row['Metric Unit']}".strip()
        for row in rows
        if row.get("Metric Name")
    }


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


def gradient(card: Card) -> None:
    """Four gradients of PPO's loss, by the kernels that are made of it."""
    from benchmarks.speed.gpu_losses import mlp, ppo, ppo_case

    loss, net, batch = ppo_case(lambda i, o: mlp(i, o, WIDTH), 4)(card.of(ROWS, 40))
    assert loss is ppo
    step, net = hr.compile(loss), net.to(card.device)
    batch = {name: x.to(card.device) for name, x in batch.items()}
    with card.kernels():
        if why := step.why_not(net, batch):
            raise RuntimeError(why)
        for _ in range(4):
            step(net, batch)
    card.wait()


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--run", choices=("trainings", "gradient"), required=True)
    flags.add_argument("--dry", action="store_true")
    options = flags.parse_args()
    (trainings if options.run == "trainings" else gradient)(Card(options.dry))


if __name__ == "__main__":
    main()
