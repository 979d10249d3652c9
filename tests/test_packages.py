"""Wheel and sdist: both are built, hold what the program needs, and work without the sources."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOT_PYTHON = {  # files of the package that are read while it runs, or by type checkers
    "__init__.pyi",
    "py.typed",
    "diagnose/profile/role_patterns.toml",
    "diagnose/report/report.css",
    "diagnose/verdict/snippets.toml",
    "envs/builtin/settings.toml",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """The wheel and the sdist, by suffix. The wheel is built from the sdist, as `python -m build` does."""
    if not all(map(importlib.util.find_spec, ("build", "hatchling"))):
        pytest.skip("needs build and hatchling: pip install build hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {suffix: next(folder.glob(f"*{suffix}")) for suffix in (".whl", ".tar.gz")}


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(built):
    names = set(zipfile.ZipFile(built[".whl"]).namelist())
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "headrace").rglob("*.py")}
    package = {name for name in names if name.startswith("headrace/")}
    assert package == sources | {f"headrace/{name}" for name in NOT_PYTHON}
    assert {name.partition("/")[0].rpartition(".")[2] for name in names - package} == {"dist-info"}


@pytest.mark.slow
def test_the_sdist_holds_what_its_tests_need(built):
    with tarfile.open(built[".tar.gz"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"LICENSE", "CITATION.cff", "README.md", "Makefile", "constraints.txt", "tests/conftest.py"}
    assert needed <= names
    assert not {name for name in names if name.startswith((".venv", "dist/", "runs/")) or name.endswith(".pyc")}


@pytest.mark.slow
def test_an_installed_wheel_trains_and_exports(built, tmp_path):
    """With the dependencies of this Python; docs/release.md says how to test in empty environments."""
    target = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path / "site")]
    subprocess.run([*target, str(built[".whl"])], check=True)
    program = tmp_path / "smoke.py"
    program.write_text((ROOT / "tests" / "helpers" / "smoke.py").read_text())
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "largest differences from the policy on 1,000 observations" in done.stdout


def test_the_citation_names_the_version_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {project['version']}\n" in citation
    assert f"\nlicense: {project['license']}\n" in citation
