"""Stable-Baselines3's own tests, with headrace.sb3 in the place of its classes.

Only its source distribution has them: pip download --no-deps --no-binary :all: stable-baselines3==2.9.2, unpack it, and
name the folder by SB3_SOURCES. upstream/exclusions.toml lists the tests that do not apply, with reasons; 95 % of the
others have to pass. Those that do not are named in docs/from_sb3.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = os.environ.get("SB3_SOURCES")
HOME = Path(os.environ.get("PEERS_HOME", ROOT / ".peers"))
NAME = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"


@pytest.mark.slow
@pytest.mark.skipif(not SOURCES, reason="needs the sources of Stable-Baselines3, named by SB3_SOURCES")
@pytest.mark.parametrize(("replace", "files", "least"), [("models", (), 200), ("vec_env", ("test_vec_envs.py",), 13)])
def test_their_own_tests_pass(replace, files, least, tmp_path):
    plugin = str(Path(__file__).with_name("upstream"))
    settings = {
        **os.environ,
        "REPLACE": replace,
        "SITE_PACKAGES": os.pathsep.join(str(home / NAME) for home in (Path(sys.prefix), HOME / "torch")),
        "PYTHONPATH": os.pathsep.join((str(ROOT), plugin)),
        "OMP_NUM_THREADS": "1",
    }
    options = ["-p", "facade", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".", "--timeout", "120", "-q"]
    report = tmp_path / "report.xml"
    command = [sys.executable, "-W", "ignore", "-m", "pytest", *options, f"--junitxml={report}", "--tb=line", *files]
    done = subprocess.run(command, cwd=Path(str(SOURCES)) / "tests", env=settings, capture_output=True, text=True)
    print(done.stdout)
    counted = ElementTree.parse(report).getroot()[0].attrib
    failed = int(counted["failures"]) + int(counted["errors"])
    ran = int(counted["tests"]) - int(counted["skipped"])
    assert ran >= least and failed <= 0.05 * ran, done.stdout
