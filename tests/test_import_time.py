"""`import headrace` must not keep anyone waiting: training can be shorter than a careless import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headrace

BOUND = 418  # modules besides torch's: about 0.15 s on a machine that does nothing else
EVERYTHING = "\n".join(f"headrace.{name}" for name in headrace.__all__)


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_importing_and_touching_every_name_loads_few_modules_besides_torch_and_nothing_heavy():
    program = (
        f"import sys, torch\nbefore = set(sys.modules)\nimport headrace\n{EVERYTHING}\n"
        "loaded = set(sys.modules) - before\nprint(len(loaded))\n"
        "print([name for name in ('numba', 'matplotlib', 'tensorboardX', 'rich', 'tyro') if name in loaded])"
    )
    number, heavy = run(program).splitlines()
    assert heavy == "[]"
    assert int(number) <= BOUND


def test_the_package_alone_does_not_load_torch():
    assert run("import headrace, sys; print('torch' in sys.modules)").strip() == "False"


def test_every_public_name_is_there_and_listed():
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
        assert name in dir(headrace)


def test_an_unknown_name_is_an_error_that_lists_the_known():
    with pytest.raises(AttributeError, match=r"no 'trian'.*train"):
        headrace.trian  # noqa: B018
