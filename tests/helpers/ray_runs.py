"""Runs functions of cluster_runs.py in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUNS = Path(__file__).with_name("cluster_runs.py")


def allowed() -> bool:
    """Whether this user may make network namespaces."""
    return subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode == 0


needs_namespace = pytest.mark.skipif(not allowed(), reason="this user may not make network namespaces")


def run(name: str, *arguments: object) -> dict:
    """What a function of helpers/cluster_runs.py returns, in a process of its own."""
    path = os.pathsep.join([str(RUNS.parents[1]), str(RUNS.parents[2]), *sys.path])
    done = subprocess.run(
        [sys.executable, str(RUNS), name, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
