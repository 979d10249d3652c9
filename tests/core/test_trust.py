"""Code in a refused folder is not imported, by whatever name and path; all other code is."""

from __future__ import annotations

import importlib
import os
import py_compile
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from headrace.core import trust
from headrace.core.trust import Untrusted, code_of, is_run, refused_folder, refused_folders, run_of
from headrace.core.user_names import import_user_module, member

CODE = "open('RAN', 'a').write(__name__)\nclass Thing: pass\n"


@pytest.fixture
def theirs(tmp_path, monkeypatch) -> Path:
    """A run's folder in the current one, with a module, a package, one without __init__.py, and a compiled module."""
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "theirs"
    for folder in ("last", "pack", "bare", "bare/deep"):
        (run / folder).mkdir(parents=True)
    (run / "last" / "manifest.json").write_text("{}")
    for name in ("evil_code.py", "pack/__init__.py", "pack/sub.py", "bare/sub.py", "bare/deep/sub.py", "old_code.py"):
        (run / name).write_text(CODE)
    py_compile.compile(str(run / "old_code.py"), str(run / "old_code.pyc"))
    (run / "old_code.py").unlink()
    return run


def ran() -> bool:
    return Path("RAN").exists()


NAMES = [
    *("evil_code", "pack", "pack.sub", "bare.sub", "bare.deep.sub", "old_code", "theirs.evil_code", "theirs.pack.sub"),
    *("evil_code.-x", "evil_code.no", "theirs/evil_code.py", "theirs/last/../evil_code.py", "./theirs//evil_code.py"),
    *("theirs/bare/../../theirs/evil_code.py", "/proc/self/cwd/theirs/evil_code.py"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("here", [".", "theirs"])
def test_no_name_leads_to_code_of_a_refused_folder(name, here, theirs, monkeypatch):
    if name.startswith("/proc") and not Path("/proc/self/cwd").exists():
        pytest.skip("this system has no /proc")
    sys.path += ["", str(theirs.parent), str(theirs)]
    if here == "theirs":
        (theirs.parent / "link").symlink_to(theirs)  # the same folder by another path
    with code_of("link/last" if here == "theirs" else "theirs"):
        with pytest.raises(Untrusted, match="--trust"):
            import_user_module(name)
        with pytest.raises(Untrusted):
            importlib.import_module(name) if "/" not in name else member(f"{name}:Thing", "environment")
    assert not ran()


def test_where_it_is_trusted_it_is_imported_and_afterwards_refused_again(theirs):
    with code_of("theirs", trust=True), code_of("theirs/last"):  # of the library, within the command's
        assert trust.is_trusted("theirs") and not refused_folders()
        assert member("theirs/evil_code.py:Thing", "environment").__name__ == "Thing"
    assert ran()
    with code_of("theirs"), pytest.raises(Untrusted):  # although it is loaded already
        import_user_module("theirs/evil_code.py")
    assert not refused_folders() and not any(isinstance(finder, trust._Guard) for finder in sys.meta_path)


def test_files_that_are_links_as_in_the_hubs_cache(theirs):
    snapshot = Path("hub/models--them--pole/snapshots/1a2b")
    (snapshot / "ppo" / "last").mkdir(parents=True)
    blobs = snapshot.parents[1] / "blobs"
    blobs.mkdir()
    (blobs / "abcd").write_text(CODE)
    (snapshot / "linked.py").symlink_to("../../blobs/abcd")
    sys.path.append(str(snapshot.absolute()))
    for run in (snapshot, snapshot / "ppo"):  # what was downloaded with a run is of the same people
        for name in ("linked", str(snapshot / "linked.py")):
            with code_of(run), pytest.raises(Untrusted):
                import_user_module(name)
    assert is_run(snapshot) and not ran()


def test_a_link_elsewhere_that_leads_through_the_folder(theirs):
    Path("outside").mkdir()
    Path("outside/real.py").write_text(CODE)
    (theirs / "jump").symlink_to("../outside")
    Path("mine").symlink_to("theirs/jump")
    with code_of("theirs"):
        assert refused_folder("mine/real.py") and not refused_folder("outside/real.py")
        assert import_user_module("outside/real.py").Thing


def test_code_of_ones_own_goes_on(theirs):
    Path("mine.py").write_text("import helper_of_mine\n" + CODE)
    Path("helper_of_mine.py").write_text("")
    Path("bare_of_mine").mkdir()
    Path("bare_of_mine/env.py").write_text(CODE)
    with code_of("theirs"):
        assert member("mine.py:Thing", "environment") and member("bare_of_mine.env:Thing", "environment")
        import wave  # of the standard library

        assert wave and refused_folders() == (str(theirs),)


def test_what_ones_own_code_imports_from_the_folder_is_refused(theirs):
    Path("mine_too.py").write_text("try:\n    import evil_code\nexcept ImportError:\n    pass\nclass Thing: pass\n")
    sys.path.append(str(theirs))
    with code_of("theirs"), pytest.raises(Untrusted):
        member("mine_too.py:Thing", "environment")
    assert not ran()


def test_packages_that_are_installed_in_the_folder_are_not_the_runs(theirs, monkeypatch):
    site = theirs / ".venv" / "lib" / "site-packages"
    site.mkdir(parents=True)
    (site / "installed_here.py").write_text("")
    sys.path.append(str(site))
    real = sysconfig.get_path
    monkeypatch.setattr(trust, "_installed", trust._installed.__wrapped__)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(site) if name == "purelib" else real(name))
    with code_of("theirs"):
        assert import_user_module("installed_here")
        assert refused_folder(site.parent / "evil_code.py")


def test_settings_of_numba_in_a_strangers_folder(theirs, monkeypatch):
    (theirs / ".numba_config.yaml").write_text("cache_dir: pickles\n")
    with code_of("theirs"):
        pass
    monkeypatch.chdir(theirs)
    with pytest.raises(Untrusted, match="numba_config"):
        code_of(".").__enter__()
    with code_of(".", trust=True):
        pass
    assert not refused_folders()


def test_a_file_of_settings_is_a_runs_or_ones_own(theirs):
    Path("config.toml").write_text("")
    assert run_of("theirs/config.toml") == theirs.relative_to(theirs.parent)
    assert run_of("config.toml") is None and run_of(None) is None


SHADOWED = ("numpy", "torch", "gymnasium", "opt_einsum", "jax", "multiprocessing", "random", "tyro")


def test_modules_in_the_current_folder_do_not_stand_for_others(theirs):
    """Neither in `python -m headrace` nor in the processes that it starts."""
    for name in SHADOWED:
        (theirs / f"{name}.py").write_text(CODE)
    script = (
        "import multiprocessing as m, headrace.core.trust as t\n"
        "with t.code_of('.'):\n"
        "    p = m.get_context('spawn').Process(target=print); p.start(); p.join()\n"
    )
    environment = {**os.environ, "PYTHONPATH": ""}
    environment.pop("PYTHONPATH")
    for words in (["-m", "headrace", "runs", "."], ["-m", "headrace", "envs"], ["-P", "-c", script]):
        done = subprocess.run([sys.executable, *words], cwd=theirs, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert not (theirs / "RAN").exists()


@pytest.mark.parametrize("name", ["gymnasium.envs.classic_control.cartpol:CartPoleEnv", "gymnasium.envs.toy_text.taxy"])
def test_a_wrong_module_is_told_those_of_its_package(name):
    import headrace as hr

    with pytest.raises((ImportError, ValueError), match=r"did you mean 'gymnasium\.envs\..*(cartpole|taxi)'"):
        hr.make(name, 1)
