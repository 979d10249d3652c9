"""`%%headrace diagnose` in IPython's shell."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("IPython")

EARLIER = """
import math, time
class World:
    def reset(self):
        return 0
    def step(self, action):
        end = time.perf_counter() + 0.004
        while time.perf_counter() < end:
            math.sqrt(2.0)
        return 0, 1.0, False, False, {}
"""
CELL = """
world, seen = World(), []
until = time.perf_counter() + 1.0
while time.perf_counter() < until:
    seen.append(world.step(0))
    time.sleep(0.001)
"""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from IPython.core.interactiveshell import InteractiveShell

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGURG, signal.SIGRTMIN + 8)}
    made = InteractiveShell()
    made.run_cell("%load_ext headrace").raise_error()
    yield made
    made.history_manager.end_session()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_a_cell_is_diagnosed_in_the_kernels_process_and_leaves_its_variables(shell, tmp_path, capsys):
    before = dict(os.environ)
    shell.run_cell(EARLIER).raise_error()
    shell.run_cell_magic("headrace", "diagnose --seconds 20", CELL)
    assert shell.user_ns["seen"] and dict(os.environ) == before
    folder = tmp_path / "diagnosis" / "notebook_1"
    found = json.loads((folder / "verdict.json").read_text())
    assert found["shares"]["environment"] > 0.4, found["headline"]  # of a class that an earlier cell defined
    assert (folder / "report.html").is_file() and "report.html" in capsys.readouterr().out
    with pytest.raises(ZeroDivisionError):
        shell.run_cell_magic("headrace", "diagnose", "1 / 0\n")
    assert "ZeroDivisionError" in (tmp_path / "diagnosis" / "notebook_2" / "report.html").read_text()


@pytest.mark.slow
def test_a_cell_that_takes_longer_is_interrupted_without_an_error(shell, tmp_path):
    shell.run_cell(EARLIER).raise_error()
    shell.run_cell_magic("headrace", "diagnose --seconds 1.5", "world = World()\nwhile True:\n    world.step(0)\n")
    assert "time limit" in (tmp_path / "diagnosis" / "notebook_1" / "profile.json").read_text()


def test_a_line_that_is_not_understood_is_refused_before_the_cell_runs(shell):
    from IPython.core.error import UsageError

    for line, said in (("train", "use %%headrace diagnose"), ("diagnose --seconds -1", "above 0"), ("", "diagnose")):
        with pytest.raises(UsageError, match=said):
            shell.run_cell_magic("headrace", line, "ran = True\n")
    assert "ran" not in shell.user_ns
