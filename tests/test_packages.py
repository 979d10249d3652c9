"""Wheel and sdist: both are built, hold what the program needs, and work without the sources."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# the beginning of a program in which these packages cannot be imported, nor in the processes that it spawns
BLOCKED = """
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ('headrace', 'torch', 'numba', 'numpy', 'rich', 'gymnasium'):
            raise ModuleNotFoundError(f"no {name}", name=name)


sys.meta_path.insert(0, Blocked())
"""
NOT_PYTHON = {  # files of the package that are read while it runs, or by type checkers
    "__init__.pyi",
    "py.typed",
    "diagnose/profile/role_patterns.toml",
    "diagnose/report/report.css",
    "diagnose/verdict/snippets.toml",
    "envs/builtin/settings.toml",
    "kernels/rows/lowered.json.gz",
    "kernels/runtime/ahead.json",
    "training/presets/fasttd3.toml",
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
    """The wheel runs with the dependencies of this Python. docs/release.md says how to test in empty environments."""
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


@pytest.fixture(scope="module")
def diagnosis_wheel(tmp_path_factory) -> Path:
    """The wheel of the diagnosis alone."""
    if not all(map(importlib.util.find_spec, ("build", "hatchling"))):
        pytest.skip("needs build and hatchling: pip install build hatchling")
    folder = tmp_path_factory.mktemp("diagnosis")
    project = folder / "packages" / "headrace-diagnose"
    shutil.copytree(ROOT / "packages" / "headrace-diagnose", project)
    shutil.copytree(ROOT / "headrace", folder / "headrace")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(project)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return next((folder / "dist").glob("*.whl"))


@pytest.mark.slow
def test_the_diagnosis_has_a_package_of_its_own(diagnosis_wheel, tmp_path):
    """The package of the diagnosis holds no file of Headrace's, works without it, and is removed without a trace."""
    wheel = diagnosis_wheel
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert names == {"headrace_diagnose", "headrace_diagnose-0.1.0.dist-info"}

    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--no-deps", str(wheel)], check=True)
    (tmp_path / "run.py").write_text("import sys\nsum(range(30_000_000))\nsys.exit(3)\n")
    program = (
        BLOCKED + "from headrace_diagnose.__main__ import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    )
    (tmp_path / "alone.py").write_text(program)
    words = [python, "alone.py", "--skip", "0", "--output", "report", "run.py"]
    dependencies = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")}  # tyro's, of this Python
    done = subprocess.run(words, cwd=tmp_path, env=dependencies, capture_output=True, text=True)
    assert done.returncode == 3 and "report.html" in done.stdout, done.stdout + done.stderr
    subprocess.run([*pip, "uninstall", "--yes", "headrace-diagnose"], check=True)
    assert subprocess.run([python, "-c", "import headrace_diagnose"], cwd=tmp_path, capture_output=True).returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize("removed", ["headrace", "headrace-diagnose"])
def test_either_package_is_removed_without_the_other(removed, built, diagnosis_wheel, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(built[".whl"]), str(diagnosis_wheel)], check=True)
    subprocess.run([*pip, "uninstall", "--yes", removed], check=True)
    folders = {path.name for path in (tmp_path / "venv").glob("lib/python*/site-packages/headrace*")}
    kept = "headrace_diagnose" if removed == "headrace" else "headrace"
    assert {name.partition("-")[0] for name in folders} == {kept}
    # --version and --help need what the packages depend on, which this Python has
    dependencies = os.environ | {"PYTHONPATH": sysconfig.get_path("purelib")}
    command = str(tmp_path / "venv" / "bin" / kept.replace("_", "-"))
    done = subprocess.run([command, "--help"], cwd=tmp_path, env=dependencies, capture_output=True, text=True)
    assert done.returncode == 0 and "diagnose" in done.stdout, done.stdout + done.stderr
    gone = removed.replace("-", "_")
    assert subprocess.run([python, "-c", f"import {gone}"], cwd=tmp_path, capture_output=True).returncode != 0


def test_the_diagnosis_needs_no_torch_numba_numpy_or_rich(tmp_path):
    (tmp_path / "run.py").write_text("print('ran')\n")
    program = BLOCKED.replace("'headrace', ", "") + (
        "import headrace\nfrom headrace.cli.main import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
    )
    (tmp_path / "alone.py").write_text(program)
    words = [sys.executable, "alone.py", "diagnose", "--skip", "0", "--output", "report", "run.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and "ran" in done.stdout and "report.html" in done.stdout, done.stdout + done.stderr
