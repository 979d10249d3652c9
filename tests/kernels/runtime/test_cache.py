"""The cache of kernels: compiled once per machine, also when two processes ask at the same time."""

import errno
import functools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from helpers import forked

from headrace.kernels.runtime import cache, cache_folder, native

SCRIPT = """\
import sys
sys.path.insert(0, sys.argv[1])
from walker import Walker
from headrace.envs.compiled.env import CompiledEnv
from headrace.data.rollout import Rollout
from headrace.data.spaces import action_column, env_columns
env = CompiledEnv(Walker, 4, threads=1)
columns = Rollout(3, 4, env_columns(env.observation_space) | {"action": action_column(env.action_space)})
env.reset(columns, 1)
for t in range(3):
    env.step(columns, t)
print(columns.observation.flatten().tolist())
"""

WALKER = """\
from typing import NamedTuple
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import f32, uniform
from headrace.data.spaces import Box, Discrete

class Walker(KernelEnv):
    observation_space = Box(-9.0, 9.0, (1,))
    action_space = Discrete(2)

    class State(NamedTuple):
        x: f32

    def reset(s, p, key):
        return Walker.State(uniform(key, 0, -1.0, 1.0))

    def step(s, p, action, key):
        return Walker.State(s.x + 0.5), 1.0, s.x > 8.0

    def observe(s, p):
        return (s.x,)
"""


def start(folder: Path) -> subprocess.Popen:
    """A process that steps Walker, with its kernels in a folder."""
    environment = os.environ | {"HEADRACE_CACHE": str(folder / "kernels")}
    command = [sys.executable, "-c", SCRIPT, str(folder)]
    return forked.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_at_once_and_a_second_start(tmp_path):
    (tmp_path / "walker.py").write_text(WALKER)
    both = [start(tmp_path), start(tmp_path)]
    outputs = [process.communicate() for process in both]
    outputs.append(start(tmp_path).communicate())
    assert len({out for out, _ in outputs}) == 1 and outputs[0][0].startswith("[")
    announced = [err.count("compiling Walker for the CPU") for _, err in outputs]
    assert sorted(announced[:2]) == [0, 1] and announced[2] == 0, outputs


def test_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file" / "kernels"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder.folders.__wrapped__() == (tmp_path / ".cache" / "headrace" / "kernels",)
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    (found,) = cache_folder.folders.__wrapped__()
    assert found.is_dir() and tmp_path not in found.parents
    found.rmdir()


def test_files_are_written_whole(tmp_path):
    cache_folder.write(tmp_path / "a.py", b"x = 1\n")
    with pytest.raises(TypeError):
        cache_folder.write(tmp_path / "a.py", None)  # type: ignore[arg-type]
    assert (tmp_path / "a.py").read_text() == "x = 1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]


TEXT = """\
import numpy as np
from numba import njit

@njit(no_cpython_wrapper=True)
def double(out, factor):
    out[0] = 2.0 * factor
"""


ANSWER = "define i32 @entry(ptr %slots) {\n  ret i32 42\n}\n"


def object_code(text):
    return native.target_machine().emit_object(llvm.parse_assembly(text))


def double(factor=3.0):
    """Result of TEXT's function, loaded or compiled as a process that has just started would."""
    cache._entries.clear()
    cache._announced.clear()
    for title in [title for title in sys.modules if title.startswith("headrace_double_")]:
        del sys.modules[title]
    out = np.zeros(1)
    cache.entry("double", TEXT, "double", (out, factor), "compiling double")(out, factor)
    return out[0]


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """A folder that HEADRACE_CACHE names, as a process that has just started finds it."""
    place = tmp_path / "kernels"
    monkeypatch.setenv("HEADRACE_CACHE", str(place))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    again(monkeypatch)
    return place


def again(monkeypatch):
    monkeypatch.setattr(cache, "folders", functools.cache(cache_folder.folders.__wrapped__))
    monkeypatch.setattr(cache, "folder", lambda: cache.folders()[-1])


def test_threads_get_a_module_that_is_whole(kernels):
    text = "import time\ntime.sleep(0.2)\nwhole = True\n"
    with ThreadPoolExecutor(4) as threads:
        modules = list(threads.map(lambda _: cache.load("slow", text).whole, range(4)))
    assert modules == [True] * 4


def test_a_module_is_run_from_its_own_text(kernels):
    double()
    (module,), (code,) = kernels.glob("*.py"), kernels.glob("*.bin")
    code.unlink()
    module.write_text("raise SystemExit('run as it was found')")
    assert double() == 6.0 and module.read_text() == TEXT


def test_code_of_another_function_is_taken_as_damaged(kernels, capfd):
    double()
    (code,) = kernels.glob("*.bin")
    machine_code = code.read_bytes()[32:]
    capfd.readouterr()
    code.write_bytes(cache._checksum("another.bin", machine_code) + machine_code)
    assert double() == 6.0 and capfd.readouterr().err.count("compiling double") == 1


def test_code_made_of_a_text_is_made_once(kernels):
    made = []

    def make(text):
        made.append(text)
        return object_code(text)

    assert cache.of_text("answer", ANSWER, make).run(0) == 42
    (code,) = kernels.glob("*.bin")
    assert cache.of_text("answer", ANSWER, make).run(0) == 42 and made == [ANSWER]
    code.write_bytes(bytes(200))  # damaged
    assert cache.of_text("answer", ANSWER, make).run(0) == 42 and made == [ANSWER] * 2
    other = ANSWER.replace("42", "43")
    assert cache.of_text("answer", other, make).run(0) == 43 and made == [ANSWER, ANSWER, other]


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_files_that_others_can_write_are_not_run(kernels, capfd):
    double()
    (code,) = kernels.glob("*.bin")
    code.chmod(0o666)
    assert double() == 6.0 and capfd.readouterr().err.count("compiling double") == 2
    assert code.stat().st_mode & 0o777 == 0o644
    assert double() == 6.0 and "compiling" not in capfd.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_a_folder_that_others_can_write_is_not_used_or_closed(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("HOME", str(tmp_path))
    own, named = tmp_path / ".cache" / "headrace" / "kernels", tmp_path / "named"
    for path in (own, named):
        path.mkdir(parents=True)
        path.chmod(0o777)
    monkeypatch.setenv("HEADRACE_CACHE", str(named))
    assert cache_folder.folders.__wrapped__() == (own,)
    assert own.stat().st_mode & 0o777 == 0o755
    assert f"chmod go-w {named}" in capfd.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_numba_s_own_files_are_closed_to_others(kernels):
    """Numba's own files are unpickled."""
    import numba

    text = TEXT.replace("no_cpython_wrapper=True", "cache=True")
    umask = os.umask(0o002)
    try:
        cache.compile_once(cache.load("double", text), {"double": (numba.float64[::1], numba.float64)}, "compiling")
    finally:
        os.umask(umask)
    files = [kernels / "__pycache__", *(kernels / "__pycache__").iterdir()]
    assert len(files) == 3 and not any(path.stat().st_mode & cache_folder.OTHERS_WRITE for path in files)
    title = files[1].name.partition(".")[0]
    files[1].chmod(0o666)
    with cache_folder.only_trusted(kernels, title):
        assert not files[1].exists() and files[2].exists()


def test_a_shared_folder_serves_readers(kernels, monkeypatch, capfd):
    double()
    monkeypatch.setattr(cache_folder, "_writable", lambda path: path != kernels)
    again(monkeypatch)
    files = sorted(kernels.iterdir())
    assert double() == 6.0 and capfd.readouterr().err.count("compiling double") == 1
    assert double(np.float32(4)) == 8.0  # of another type: compiled, and kept in the reader's own folder
    assert cache.folder() != kernels and list(cache.folder().glob("*.bin")) and sorted(kernels.iterdir()) == files


def test_a_full_disk_costs_the_cache_alone(kernels, monkeypatch, capfd):
    def full(path, content, mode):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_folder, "write", full)
    cache_folder._complain.cache_clear()
    assert double() == 6.0
    assert capfd.readouterr().err.count("cannot be kept") == 1
    assert not list(kernels.glob("*.bin"))


def test_settings_that_change_the_code_have_entries_of_their_own(kernels, monkeypatch):
    def title(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        cache._machine.cache_clear()
        return cache._title("double", TEXT)

    try:
        plain = title(NUMBA_NUM_THREADS="1")
        assert title(NUMBA_NUM_THREADS="2") == title(NUMBA_ENABLE_CUDASIM="1") == plain
        slow = title(NUMBA_OPT="0")
        monkeypatch.setattr(native, "ABI", native.ABI + 1)
        assert len({plain, slow, title()}) == 3
    finally:
        cache._machine.cache_clear()


def test_what_is_long_unused_is_removed(kernels, monkeypatch):
    double()
    old, other = kernels / "headrace_old_0.bin", kernels / "block_sizes.json"
    for path in (old, other):
        path.write_bytes(b"x" * 1000)
        os.utime(path, (0, 0))
    cache_folder.evict(kernels)
    assert not old.exists() and other.exists() and list(kernels.glob("headrace_double_*.bin"))
    monkeypatch.setattr(cache_folder, "MOST_BYTES", 0)
    cache_folder.evict(kernels)
    assert [path.name for path in kernels.rglob("*") if path.is_file()] == ["block_sizes.json"]


def test_a_damaged_table_is_begun_anew(tmp_path):
    path = tmp_path / "table.json"
    path.write_text('{"a": ')
    with cache_folder.json_table(path) as table:
        table["b"] = 1
    with cache_folder.json_table(path) as table:
        assert table == {"b": 1}
