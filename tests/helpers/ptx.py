"""CUDA kernels compiled for an H100 without a GPU."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest

import headrace
from headrace.kernels.runtime.cache import bytes_of_text

CAPABILITY = (9, 0)


def to_ptx(monkeypatch, function, signature):
    """The PTX of a kernel's Python function; skips where numba-cuda or NVVM are missing.

    It is kept with compiled kernels, until a file of the package is another: to make it takes ten seconds."""
    pytest.importorskip("numba_cuda")
    from numba.cuda.cudadrv import nvvm

    try:
        nvvm.NVVM()
    except Exception as error:
        pytest.skip(f"no NVVM: {error}")
    text = Path(function.__code__.co_filename).read_text()
    key = "\0".join([version("numba-cuda"), version("numba"), function.__name__, repr(signature), _package(), text])
    return bytes_of_text("ptx_in_tests", key, lambda _: _compiled(monkeypatch, function, signature).encode())[
        0
    ].decode()


@cache
def _package():
    """A digest of the sources of the package."""
    digest = hashlib.sha256()
    for file in sorted(Path(headrace.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _compiled(monkeypatch, function, signature):
    from numba import cuda
    from numba.cuda import compiler, dispatcher
    from numba.cuda.cudadrv import nvvm

    for module in (compiler, dispatcher):
        monkeypatch.setattr(module, "get_current_device", lambda: SimpleNamespace(compute_capability=CAPABILITY))
    texts, compile_ir = [], nvvm.compile_ir
    monkeypatch.setattr(
        nvvm, "compile_ir", lambda text, **options: (texts.append(str(text)), compile_ir(text, **options))[1]
    )
    ptx, _ = cuda.compile(function, signature, device=False, cc=CAPABILITY, abi="numba")
    # they give the number where one operand is NaN, and Python's min and max the first operand; none is ours
    assert texts and not re.findall(r"call[^\n]*(?:__nv_f(?:max|min)|llvm\.(?:max|min)num)\w*", "".join(texts))
    return ptx


def assert_lean(ptx, tmp_path, of_python=False):
    """No doubles, no calls, no spills, no instruction that rounds or treats NaN otherwise than the simulator's Python.

    of_python: of functions that Python runs as well, whose min(1.0, nan) is 1.0.
    Returns what ptxas says of registers and memory, "" without ptxas."""
    assert ".entry" in ptx
    assert not re.findall(r"\.f64", ptx)
    assert not re.findall(r"\bcall\b", ptx)  # every function is inlined
    assert not re.findall(r"\b(?:div|sqrt|rcp)\.(?:approx|full)\S*", ptx)
    constant = "" if of_python else "|0f[0-9A-F]+"
    dropping = rf"\b(?:min|max)\.(?:ftz\.)?f32\s+%f\d+, %f\d+, (?:%f\d+{constant})"
    assert not re.findall(dropping, ptx)  # their forms with .NaN keep it
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
