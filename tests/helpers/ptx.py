"""CUDA kernels compiled for an H100 without a GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from types import SimpleNamespace

import pytest

CAPABILITY = (9, 0)


def to_ptx(monkeypatch, function, signature):
    """The PTX of a kernel's Python function; skips where numba-cuda or NVVM are missing."""
    pytest.importorskip("numba_cuda")
    from numba import cuda
    from numba.cuda import compiler, dispatcher
    from numba.cuda.cudadrv.nvvm import NVVM

    try:
        NVVM()
    except Exception as error:
        pytest.skip(f"no NVVM: {error}")
    for module in (compiler, dispatcher):
        monkeypatch.setattr(module, "get_current_device", lambda: SimpleNamespace(compute_capability=CAPABILITY))
    ptx, _ = cuda.compile(function, signature, device=False, cc=CAPABILITY, abi="numba")
    return ptx


def assert_lean(ptx, tmp_path):
    """No doubles, no calls, no spills; returns what ptxas says of registers and memory, "" without ptxas."""
    assert ".f32" in ptx and ".entry" in ptx
    assert not re.findall(r"\.f64", ptx)
    assert not re.findall(r"\bcall\b", ptx)  # every function is inlined
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        return ""
    file = tmp_path / "kernel.ptx"
    file.write_text(ptx)
    command = [ptxas, "-v", "-arch=sm_90", file, "-o", tmp_path / "cubin"]
    declarations = subprocess.run(command, capture_output=True, text=True)
    if "Unsupported .version" in declarations.stderr:
        pytest.skip("this ptxas is older than NVVM")
    assert declarations.returncode == 0, declarations.stderr
    assert "0 bytes spill stores, 0 bytes spill loads" in declarations.stderr
    return declarations.stderr
