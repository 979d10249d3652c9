"""One checkout learns the same bits twice, and with one kernel thread and two."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers.benchmark import ROOT


@pytest.mark.slow
def test_a_checkout_against_itself_with_one_thread_and_two():
    command = [sys.executable, "-m", "benchmarks.bits.same_bits", ".", ".", "--threads", "1", "2", "--only", "kernel"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "11 of 11 cases have the same bits"
