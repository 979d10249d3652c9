"""`import headrace` must not keep anyone waiting: training can be shorter than a careless import."""

from __future__ import annotations

import statistics
import subprocess
import sys

import pytest

import headrace

BOUND = 0.3  # s over torch, on a loaded machine; alone it is below 0.15
EVERYTHING = "\n".join(f"headrace.{name}" for name in headrace.__all__)


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_importing_and_touching_every_name_costs_little_over_torch_and_loads_nothing_heavy():
    program = (
        f"import time, sys, torch\nstart = time.process_time()\nimport headrace\n{EVERYTHING}\n"
        "print(time.process_time() - start)\n"
        "print([name for name in ('numba', 'matplotlib', 'tensorboardX', 'rich', 'tyro') if name in sys.modules])"
    )
    seconds, heavy = zip(*(run(program).splitlines() for _ in range(3)), strict=True)
    assert set(heavy) == {"[]"}
    assert statistics.median(map(float, seconds)) < BOUND


def test_the_package_alone_does_not_load_torch():
    assert run("import headrace, sys; print('torch' in sys.modules)").strip() == "False"


def test_every_public_name_is_there_and_listed():
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
        assert name in dir(headrace)


def test_an_unknown_name_is_an_error_that_lists_the_known():
    with pytest.raises(AttributeError, match=r"no 'trian'.*train"):
        headrace.trian  # noqa: B018
