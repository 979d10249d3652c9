"""Scripts do the same whether they are diagnosed or not: each of these hazards once made a difference."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.profiles import SEEN

from headrace.diagnose.injected import variables
from headrace.diagnose.injected.stacks import local_names
from headrace.diagnose.profile.profile import Ending, Profile
from headrace.diagnose.record import processes
from headrace.diagnose.record.processes import ProcessMonitor
from headrace.diagnose.record.run_script import measure

PAUSE = 0.2  # s that a call has to last: ten ticks
SCRIPT = (
    SEEN
    + f"""
import cProfile, ctypes, faulthandler, json, os, pstats, select, signal, sys, tempfile, threading, time, weakref
PAUSE, said, library = {PAUSE}, {{}}, ctypes.CDLL(None)
"""
    + '''
def spin(seconds=PAUSE):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        sum(range(100))

def lasted(function):
    began = time.monotonic()
    function()
    return time.monotonic() - began

def pause():
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, PAUSE, PAUSE)  # again, for where the first comes before the pause
    signal.pause()
    signal.setitimer(signal.ITIMER_REAL, 0)

class Learner:
    def learn(self):
        """The sampler reads self of functions of this name."""
        tensor, held = Tensor(), locals()
        alive = weakref.ref(tensor)
        spin(0.8)
        said["locals"] = sorted(held)
        held.clear()
        del tensor
        spin(0.05)
        return alive() is None

class Tensor: pass

def ending(function, *words):
    """How a forked child ends that calls a function."""
    child = os.fork()
    if child == 0:
        try:
            function(*words)
        finally:
            os._exit(7)
    return os.waitpid(child, 0)[1]

def reset_signals():
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    spin()

def fork_in_thread():
    endings = []
    thread = threading.Thread(target=lambda: endings.append(ending(spin)))
    thread.start(), thread.join()
    return endings

def trace_back():
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback_later(PAUSE / 4, file=file)
        spin()
        file.seek(0)
        return "in spin" in file.read()

def traced():
    calls = []
    sys.settrace(lambda frame, *_: calls.append(frame.f_code.co_filename))
    for _ in range(60):
        spin(0.01)
    sys.settrace(None)
    return sum(name.endswith("sampler.py") for name in calls)

if "watched" in sys.argv:
    while not seen():
        spin()
said["pause"] = lasted(pause)
said["usleep"] = lasted(lambda: library.usleep(int(1e6 * PAUSE)))
said["poll"] = lasted(lambda: library.poll(None, 0, int(1e3 * PAUSE)))
said["select"] = lasted(lambda: select.select([], [], [], PAUSE))
said["freed"] = Learner().learn()
said["signals"] = ending(reset_signals)
said["program"] = ending(os.execv, "/bin/sleep", ["sleep", str(PAUSE)])
said["thread"] = fork_in_thread()
said["faulthandler"] = trace_back()
said["traced"] = traced()
json.dump(said, open(sys.argv[1], "w"))
'''
)
LASTING = ("pause", "usleep", "poll", "select")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Observations that the script has written down."""
    folder = tmp_path_factory.mktemp("hazards")
    (folder / "run.py").write_text(SCRIPT)
    profile = measure([str(folder / "run.py"), str(folder / "said"), "watched"], seconds=60.0, skip=0.0)
    assert (folder / "said").exists(), (profile.exit, profile.seconds)
    return json.loads((folder / "said").read_text())


@pytest.mark.parametrize("call", LASTING)
def test_a_system_call_lasts_as_long(call: str, said: dict) -> None:
    assert said[call] > 0.95 * PAUSE


def test_variables_are_freed_and_locals_stay(said: dict) -> None:
    assert said["freed"] and said["locals"] == ["self"]


def test_children_end_by_themselves(said: dict) -> None:
    """Children end with all handlers reset, as another program, and forked in a thread."""
    assert said["signals"] == 7 << 8
    assert said["program"] == 0
    assert said["thread"] == [7 << 8]


def test_tracers_see_the_script_alone(said: dict) -> None:
    assert said["faulthandler"]
    assert said["traced"] < 60  # two functions in each tick until there are no more


def test_a_variable_is_read_without_f_locals() -> None:
    def function(self: int, *args: int) -> object:
        frame = sys._getframe()
        read = [variables.read(frame, name) for name in ("self", "args", "later", "absent")]
        later = lambda: self  # noqa: E731, F841  # self is in a cell
        return read

    expected = [4, (5, 6), None, None]
    assert function(4, 5, 6) == expected


def test_c_functions_are_known_under_names_of_the_function_and_of_those_around_it() -> None:
    nap, missing = time.sleep, 3

    def function(wait: object = time.monotonic) -> dict[str, str]:
        found = local_names(sys._getframe())
        return found if nap and missing else {}

    assert function() == {"nap": "sleep", "wait": "monotonic"}


def test_c_functions_are_known_under_names_of_attributes_and_no_code_of_the_class_runs() -> None:
    class Limiter:
        def __init__(self) -> None:
            self.nap, self.rate = time.sleep, 30

        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} was looked up")

        def wait(self) -> dict[str, str]:
            return local_names(sys._getframe()) if self.nap and self.rate else {}

    assert Limiter().wait() == {"nap": "sleep"}


SAVING = """
import time
print("started", flush=True)
try:
    while True: time.sleep(0.01)
except KeyboardInterrupt:
    time.sleep(1.0)
    open(__file__ + ".saved", "w").close()
"""


def saving(folder: Path, grace: float) -> tuple[Profile, bool]:
    (folder / "run.py").write_text(SAVING)
    seconds = 5.0 if grace > 1.0 else 1.0  # time enough for Python to start on a slow machine
    profile = measure([str(folder / "run.py")], seconds=seconds, skip=0.0, grace=grace)
    return profile, (folder / "run.py.saved").exists()


@pytest.mark.parametrize("grace", [0.2, 30.0])
def test_a_script_has_time_to_save(grace: float, tmp_path: Path) -> None:
    profile, saved = saving(tmp_path, grace)
    assert profile.exit.ending is Ending.TIME_LIMIT and saved == (grace > 1.0)


def test_a_script_has_time_to_save_where_the_shell_ignores_ctrl_c(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert saving(tmp_path, 10.0)[1] and signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_process_with_the_number_of_an_ended_one_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def enter(pid: int, parent: int, born: int) -> None:
        (tmp_path / str(pid)).mkdir(exist_ok=True)
        fields = ["S", str(parent), *["0"] * 17, str(born)]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (python) {' '.join(fields)}")

    monkeypatch.setattr(processes, "PROC", tmp_path)
    signalled: list[int] = []
    monkeypatch.setattr(processes, "os", SimpleNamespace(**vars(os) | {"kill": lambda pid, _: signalled.append(pid)}))
    enter(10, 1, 100), enter(11, 10, 110)
    monitor = ProcessMonitor(10)
    assert monitor.alive() == [10, 11]
    enter(11, 1, 990)  # somebody else's
    monitor.signal(signal.SIGTERM)
    assert signalled == [10]


@pytest.mark.slow
def test_unwatched_it_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(SCRIPT)
    subprocess.run([sys.executable, str(tmp_path / "run.py"), str(tmp_path / "said")], check=True)
    said = json.loads((tmp_path / "said").read_text())
    assert said["traced"] == 0
    assert all(said[call] > 0.95 * PAUSE for call in LASTING) and said["freed"] and said["faulthandler"]
