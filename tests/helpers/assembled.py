"""Result of NVIDIA's assembler for PTX: registers, memory and instructions of each kernel. Needs no GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks.speed.gpu_carried import assembler

ARCHITECTURE = "sm_90"
_ENTRY = re.compile(r"Compiling entry function '(\w+)'(.*?)(?=Compiling entry function|\Z)", re.DOTALL)


class Kernel(NamedTuple):
    """A kernel's registers of a thread, and bytes of a thread's memory: what it keeps there, and spilled registers."""

    name: str
    registers: int
    stack: int
    spilled: int


def assembled(ptx: str) -> list[Kernel]:
    """Each kernel of PTX; skips where there is no assembler."""
    program = assembler()
    if program is None:
        pytest.skip("no ptxas: it is in CUDA's toolkit, and in the wheel nvidia-cuda-nvcc")
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "code.ptx", Path(folder) / "code.cubin"
        source.write_text(ptx)
        command = [program, f"-arch={ARCHITECTURE}", "-v", "-o", str(target), str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [_kernel(name, said) for name, said in _ENTRY.findall(done.stderr)]


def _kernel(name: str, said: str) -> Kernel:
    found = [re.search(pattern, said) for pattern in (r"Used (\d+) registers", r"(\d+) bytes stack frame")]
    spilled = re.findall(r"(\d+) bytes spill (?:stores|loads)", said)
    registers, stack = (int(one[1]) for one in found if one is not None)
    return Kernel(name, registers, stack, max(map(int, spilled)))
