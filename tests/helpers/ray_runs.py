"""Runs functions of files in this folder in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def allowed() -> bool:
    """Tell whether this user may make network namespaces."""
    return subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode == 0


needs_namespace = pytest.mark.skipif(not allowed(), reason="this user may not make network namespaces")


def run(name: str, *arguments: object, file: str = "cluster_runs.py") -> dict:
    """Run a function of a file in a process of its own, and return its result."""
    path = os.pathsep.join([str(HERE.parent), str(HERE.parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, str(HERE / file), name, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
