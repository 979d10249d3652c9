"""Processes have the state of the moment in which they are ordered, and may have children; their parents may fork."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from helpers import forked
from helpers.telling import TELL, Telling, state

from headrace.core.processes.state import SETTINGS, ProcessState, held, same_folder, shown
from headrace.data.shared_memory import Memory
from headrace.envs.workers import process, start
from headrace.envs.workers.process import WorkerError, Workers
from headrace.envs.workers.protocol import Task
from headrace.envs.workers.transport import Transport

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="looks at processes as Linux does")


def told(workers, children=False):
    """Report of a role about its process, and the Transport."""
    made = Transport(workers.acquire(1), timeout=60.0)
    made.assign([Task(partial(Telling, children), "telling", 0, 1)])
    return made.facts[0], made


def same(facts):
    return {name: facts[name] for name in state()}


@pytest.fixture
def kept():
    """Restore what a test changes of this process."""
    files, umask = resource.getrlimit(resource.RLIMIT_NOFILE), os.umask(0)
    os.umask(umask)
    settings = [get() for get, _ in SETTINGS]
    with warnings.catch_warnings():
        yield
    for (_, put), value in zip(SETTINGS[:-1], settings, strict=False):
        put(value)
    os.umask(umask)
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])


def change(tmp_path, monkeypatch, level):
    """Change all that a process takes over."""
    folder = tmp_path / str(level)
    folder.mkdir()
    monkeypatch.setenv("LEVEL", str(level))
    (monkeypatch.delenv if level == 2 else partial(monkeypatch.setenv, value="there"))("GONE")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*(path for path in sys.path if "added" not in path), f"added_{level}"])
    monkeypatch.setattr(sys, "argv", ["script.py", str(level)])
    os.umask(0o020 + level)
    resource.setrlimit(resource.RLIMIT_NOFILE, (500 + level, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    signal.pthread_sigmask(signal.SIG_BLOCK if level == 1 else signal.SIG_UNBLOCK, [signal.SIGUSR1])
    sys.setrecursionlimit(2000 + level)
    sys.set_int_max_str_digits(5000 + level)
    socket.setdefaulttimeout(60.0 + level)
    np.seterr(divide="raise" if level == 1 else "ignore")
    warnings.filterwarnings("error" if level == 1 else "ignore", "of this", UserWarning)
    return state() | {"added": [str(folder / f"added_{level}")]}


def test_a_process_has_the_state_in_which_it_was_ordered_also_one_in_the_place_of_another(tmp_path, monkeypatch, kept):
    with Workers(1) as workers:
        expected = change(tmp_path, monkeypatch, 1)
        facts, made = told(workers)
        assert same(facts) == expected and expected["raised"] and expected["blocked"]
        later = change(tmp_path, monkeypatch, 2)
        os.kill(facts["pid"], signal.SIGKILL)
        made.replace(0)
        assert same(made.facts[0]) == expected  # that of the training's beginning
        made.dismiss()
        workers.release(made.workers)
        again, other = told(workers)
        assert same(again) == later and again["pid"] != made.facts[0]["pid"]  # modules may have read variables
        other.dismiss()
        workers.release(other.workers)
        monkeypatch.chdir(tmp_path)
        third, other = told(workers)
        assert same(third) == later | {"folder": str(tmp_path), "added": [str(tmp_path / "added_2")]}
        assert third["pid"] == again["pid"] and third["server"] == facts["server"]
        other.dismiss()


def test_variables_that_libraries_read_as_they_are_loaded_are_those_of_the_order(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with Workers(1) as workers:
        facts, made = told(workers)
        assert b"OMP_NUM_THREADS=3" in facts["born"]
        made.dismiss()


def test_what_is_made_within_held_has_the_state_of_its_beginning(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    with held(), Workers(1) as workers:
        os.chdir("other")
        os.environ["LEVEL"] = "changed"
        try:
            facts, made = told(workers)
        finally:
            del os.environ["LEVEL"]
        assert facts["folder"] == str(tmp_path) and facts["level"] is None
        assert shown(tmp_path / "runs" / "x") == Path("runs/x")
        made.dismiss()
    with same_folder():
        os.chdir("/")
    assert Path.cwd() == tmp_path / "other" and shown(tmp_path / "runs") == tmp_path / "runs"


def test_a_state_whose_folder_is_gone_can_be_taken_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = ProcessState.now()
    gone = before._replace(folder=str(tmp_path / "gone"), limits={**before.limits, resource.RLIMIT_NOFILE: (400, -1)})
    pid = os.fork()
    if pid == 0:
        gone.sent().enter()
        os._exit(0 if resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 400 else 1)
    assert os.waitpid(pid, 0)[1] == 0


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


SCRIPT = """
import sys, time
sys.path[:0] = {path}
from test_state import Workers, told
workers = Workers(1)
facts, made = told(workers, children=True)
print(facts["pid"], facts["server"], *facts["children"], flush=True)
time.sleep(1000)
"""


def test_children_of_workers_end_with_a_parent_that_is_killed():
    """A worker may start processes by multiprocessing, as it could not if it were a daemon."""
    script = SCRIPT.format(path=[str(Path(__file__).parent), *sys.path])
    parent = forked.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pids = parent.stdout.readline().split()
    assert len(pids) == 4 and all(map(alive, pids))
    parent.kill()
    parent.wait()
    while any(map(alive, pids)):
        time.sleep(0.01)
    parent.stdout.close()


def test_children_that_an_environment_leaves_behind_end_with_a_worker_that_is_closed():
    with Workers(1) as workers:
        facts, made = told(workers, children=True)
        made.dismiss()
        workers.release(made.workers)
        assert all(map(alive, facts["children"]))  # the process may have further tasks
    while any(map(alive, (facts["pid"], *facts["children"]))):
        time.sleep(0.01)


def test_a_forked_child_has_workers_of_its_own_and_leaves_those_of_its_parent_alone():
    with Workers(1) as workers:
        facts, made = told(workers)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with Workers(1) as own:
                    theirs, other = told(own)
                    other.start(0, TELL, 5)
                    assert other.get(60) == ([0], {}) and theirs["server"] != facts["server"]
                    other.dismiss()
                workers.close()
                process._end(process.RUNNING)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        made.start(0, TELL, 6)
        assert made.get(60) == ([0], {}) and made.answers == [6]
        made.dismiss()


def test_workers_go_on_where_their_fork_server_is_killed_and_others_are_started():
    with Workers(1) as workers, Workers(1) as more:
        facts, made = told(workers)
        os.kill(facts["server"], signal.SIGKILL)
        others, other = told(more)
        assert others["server"] != facts["server"]
        made.start(0, TELL, 6)
        assert made.get(60) == ([0], {}) and not made.workers[0].has_spoken
        os.kill(facts["pid"], signal.SIGKILL)
        made.start(0, TELL, 7)
        assert list(made.get(60)[1]) == [0] and "so did the fork server" in str(made.failure(0))
        for each in (made, other):
            each.dismiss()


def refuse(number):
    def refusing(*_):
        raise OSError(number, os.strerror(number))

    return refusing


def test_what_the_system_refuses_is_said_with_what_to_do(monkeypatch):
    with monkeypatch.context() as patched, Workers(1) as workers:
        patched.setattr(start.forkserver, "read_signed", lambda _: (_ for _ in ()).throw(EOFError))
        patched.setattr(start, "MOMENT", 0.0)
        with pytest.raises(
            WorkerError, match=r"cannot be started for worker 0 \(telling\): the fork server was killed"
        ):
            told(workers)
    with monkeypatch.context() as patched, Workers(1) as workers:
        patched.setattr(process, "Pipe", refuse(errno.EMFILE))
        with pytest.raises(
            OSError, match=r"cannot be started for worker 0.*: Too many open files; .*ulimit -n"
        ) as raised:
            told(workers)
        assert raised.value.errno == errno.EMFILE
    monkeypatch.setattr(os, "posix_fallocate", refuse(errno.ENOSPC))
    with pytest.raises(OSError, match=r"3 MB of shared memory cannot be allocated in .*No space left.*--shm-size"):
        Memory(3_000_000)
