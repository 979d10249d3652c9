"""Machine code of the kernels that gpu.py launches, made where there is no GPU and carried to where there is one.

    python -m benchmarks.speed.gpu_carried --folder carried      # needs NVIDIA's assembler, ptxas

A kernel's file is named by its text, so what is not there is made on the GPU's machine, as without this program. Not
carried are kernels that numba-cuda makes: those of compiled environments, and the actor-critic's.
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import torch

import headrace as hr
from benchmarks.common import HERE
from headrace.bindings.compiled import loss_conditions, loss_program
from headrace.kernels.rows.gpu import gpu_code, gpu_program
from headrace.kernels.rows.gpu.gpu_adam import adam_text
from headrace.kernels.rows.gpu.gpu_kernels import emitted
from headrace.kernels.rows.gpu.gpu_tensor_cores import PARTS
from headrace.kernels.rows.reasons import NotRows
from headrace.kernels.rows.row_plan import Plan
from headrace.training.trainer import Trainer

ARCHITECTURE = "sm_90"  # of an H100 and an H200
FOLDER = HERE / "carried"
_WHEELS = "{site}/nvidia/{part}/bin"
STEPS = 32  # of the rollouts of `iterations`


def assembler() -> str | None:
    """Path of ptxas: in the path, in CUDA's toolkit, or in NVIDIA's wheels."""
    site = Path(torch.__file__).parents[1]
    places = [_WHEELS.format(site=site, part=part) for part in ("cuda_nvcc", "cu*")] + ["/usr/local/cuda*/bin"]
    folders = [folder for place in places for folder in sorted(glob.glob(place))]
    return shutil.which("ptxas") or next((f"{x}/ptxas" for x in folders if Path(x, "ptxas").is_file()), None)


def cubin(ptx: bytes, program: str, architecture: str = ARCHITECTURE) -> bytes:
    """Machine code of PTX. program: the assembler."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "code.ptx", Path(folder) / "code.cubin"
        source.write_bytes(ptx)
        command = [program, f"-arch={architecture}", "-o", str(target), str(source)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        return target.read_bytes()


def file_of(text: str) -> str:
    """The file of the kernels of a text, whose first line is the architecture."""
    return f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.cubin"


def install(folder: Path) -> dict[str, int]:
    """Let kernels be loaded from this folder where it has them. Returns counts, of those that were found and made."""
    made, counts = gpu_code.ptx, {"carried": 0, "made here": 0}

    def ptx(text: str) -> bytes:
        file = folder / file_of(text)
        counts["carried" if file.is_file() else "made here"] += 1
        return file.read_bytes() if file.is_file() else made(text)

    gpu_code.ptx = ptx
    return counts


def build(folder: Path, program: str, requests: Sequence[Any]) -> int:
    """Make the kernels that functions ask for. Returns the number of files."""
    folder.mkdir(parents=True, exist_ok=True)

    def keep(text: str) -> None:
        file = folder / file_of(text)
        if not file.is_file():
            file.write_bytes(cubin(gpu_code.ptx(text), program))

    def compiled(plan: Plan, dtypes: Sequence[str], rows: int, device: Any, lanes: int = 0) -> NoReturn:
        kinds, lanes = [*PARTS], lanes or gpu_program._lanes(plan, rows)
        with suppress(NotRows):
            gpu_program.refuse_wide(plan, rows)
            kinds.append("")
        for kind in kinds:
            made = emitted(plan, list(dtypes), lanes, gpu=True, tensor_cores=kind)
            keep(f"{ARCHITECTURE}\n{made.text}")
        raise NotRows("its kernels are made, and there is no GPU here to run them", passing=True)

    keep(f"{ARCHITECTURE}\n{adam_text(gpu=True)}")
    with _replaced(compiled):
        for ask in requests:
            ask()
    return len([*folder.glob("*.cubin")])


@contextmanager
def _replaced(compiled: Any) -> Iterator[None]:
    """Compile losses as for a GPU within this block, by this function, and keep nothing of it."""
    before = loss_conditions.on_gpu, gpu_program.compiled, loss_program.recorded
    loss_conditions.on_gpu, gpu_program.compiled = lambda device: True, compiled
    loss_program.recorded = lambda key, places, read, make, again: make()
    try:
        yield
    finally:
        loss_conditions.on_gpu, gpu_program.compiled, loss_program.recorded = before


def of_loss(name: str, rows: int) -> None:
    """Ask for the kernels of a loss of gpu_losses.py."""
    from benchmarks.speed.gpu_losses import CASES

    loss, net, batch = CASES[name](rows)
    hr.compile(loss).why_not(net, batch)


def of_training(algorithm: str, env: str, rows: int, steps: int, **settings: Any) -> None:
    """Ask for the kernels of a training: it learns from `rows` rows once, in plain PyTorch."""
    settings = {"num_envs": rows // steps, "num_steps": steps, "device": "cpu", "backend": "torch"} | settings
    trainer = Trainer(algorithm, env, progress="none", **settings)
    try:
        trainer.iterate()
    finally:
        trainer.close()


def requests() -> list[Any]:
    """Programs that gpu.py asks for, as far as they are known before."""
    from functools import partial

    from benchmarks.speed.gpu_losses import CASES
    from benchmarks.speed.gpu_measures import ITERATIONS, LARGE

    found: list[Any] = []
    for name in CASES:
        found += [partial(of_loss, name, rows) for rows in ((256, 8192) if "critics" in name else (2048, 131_072))]
    for num_envs, minibatch in ITERATIONS:
        own = {"hidden": LARGE["hidden"], "epochs": 1, "minibatch_size": minibatch}
        found.append(partial(of_training, "ppo", "CartPole-v1", minibatch, STEPS, **own))
        found.append(partial(of_training, "ppo", "CartPole-v1", num_envs, 1, **own | {"minibatch_size": num_envs}))
    return found


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--folder", type=Path, default=FOLDER)
    options = flags.parse_args()
    if (program := assembler()) is None:
        raise SystemExit("no ptxas: it is in CUDA's toolkit, and in the wheel nvidia-cuda-nvcc")
    number = build(options.folder, program, requests())
    size = sum(file.stat().st_size for file in options.folder.glob("*.cubin"))
    print(f"{number} files, {size / 2**20:.1f} MiB, in {options.folder}")


if __name__ == "__main__":
    main()
