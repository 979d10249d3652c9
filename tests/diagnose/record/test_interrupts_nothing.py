"""No call of signal(7)'s list that a signal ends early, or a handler without SA_RESTART, ends so under diagnosis."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.profiles import SEEN

from headrace.diagnose.injected.sampler import NO_TIMER
from headrace.diagnose.record.run_script import measure

TIMES, PAUSE = 25, 0.012  # of each call, and s that it lasts: several looks
SCRIPT = (
    SEEN
    + f"""
import ctypes, errno, json, os, select, socket, struct, sys, time
TIMES, PAUSE = {TIMES}, {PAUSE}
"""
    + """
library = ctypes.CDLL(None, use_errno=True)
class Time(ctypes.Structure): _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]
whole, part = int(PAUSE), int(PAUSE % 1 * 1e9)
there, here = socket.socketpair()
inbox = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); inbox.bind(("127.0.0.1", 0))
limit = struct.pack("ll", whole, part // 1000)
for each in (there, here, inbox): each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
listening = socket.socket(); listening.bind(("127.0.0.1", 0)); listening.listen(1)
listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
events, semaphore, buffer = select.epoll(), ctypes.create_string_buffer(32), ctypes.create_string_buffer(64)
library.sem_init(semaphore, 0, 0)
group = library.semget(0, 1, 0o1600)

def later():
    moment = time.clock_gettime(time.CLOCK_REALTIME) + PAUSE
    return ctypes.byref(Time(int(moment), int(moment % 1 * 1e9)))

pause = ctypes.byref(Time(whole, part))
class Operation(ctypes.Structure): _fields_ = [(name, ctypes.c_short) for name in ("number", "operation", "flags")]
CALLS = {
    "usleep": lambda: library.usleep(int(1e6 * PAUSE)),
    "nanosleep": lambda: library.nanosleep(pause, None),
    "clock_nanosleep": lambda: library.clock_nanosleep(1, 0, pause, None),
    "poll": lambda: library.poll(None, 0, int(1e3 * PAUSE)),
    "ppoll": lambda: library.ppoll(None, 0, pause, None),
    "select": lambda: library.select(0, None, None, None, ctypes.byref(Time(whole, part // 1000))),
    "pselect": lambda: library.pselect(0, None, None, None, pause, None),
    "epoll_wait": lambda: library.epoll_wait(events.fileno(), buffer, 1, int(1e3 * PAUSE)),
    "epoll_pwait": lambda: library.epoll_pwait(events.fileno(), buffer, 1, int(1e3 * PAUSE), None),
    "sem_timedwait": lambda: library.sem_timedwait(semaphore, later()),
    "semtimedop": lambda: library.semtimedop(group, ctypes.byref(Operation(0, -1, 0)), ctypes.c_size_t(1), pause),
    "read with a time-out": lambda: library.read(here.fileno(), buffer, 8),
    "recv with a time-out": lambda: library.recv(there.fileno(), buffer, 8, 0),
    "recvfrom with a time-out": lambda: library.recvfrom(inbox.fileno(), buffer, 8, 0, None, None),
    "accept with a time-out": lambda: library.accept(listening.fileno(), None, None),
    "sigtimedwait": lambda: library.sigtimedwait(ctypes.create_string_buffer(128), None, pause),
}

def compute(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end: sum(range(100))

def tries(function):
    early = 0
    for _ in range(TIMES):
        compute(0.001)  # a tick may come at any moment, just before the call too
        ctypes.set_errno(0)
        code = function()
        early += ctypes.get_errno() == errno.EINTR or code == errno.EINTR
    return early

while not seen(): compute(0.01)
json.dump({name: tries(function) for name, function in CALLS.items()}, open(sys.argv[1], "w"))
library.semctl(group, 0, 0)
"""
)


def test_no_call_ends_early(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(SCRIPT)
    profile = measure([str(tmp_path / "run.py"), str(tmp_path / "early")], seconds=60.0, skip=0.0)
    assert (tmp_path / "early").exists(), (profile.exit, profile.seconds)
    early = json.loads((tmp_path / "early").read_text())
    assert len(early) == 16 and not any(early.values()), early
    if refused := [line for line in profile.limitations if line.startswith(NO_TIMER)]:
        pytest.skip(refused[0])  # waits are not looked at
    # looks came while the calls lasted, or the test would show nothing
    assert sum(profile.training_thread.waits.values()) > 0.5 * len(early) * TIMES * PAUSE
    assert profile.training_thread.waits.keys() >= {"a timer", "a lock", "a socket"}


@pytest.mark.slow
def test_no_call_of_a_thousand_ends_early(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(SCRIPT.replace(f"TIMES, PAUSE = {TIMES}", "TIMES, PAUSE = 1000"))
    measure([str(tmp_path / "run.py"), str(tmp_path / "early")], seconds=600.0, skip=0.0)
    assert not any(json.loads((tmp_path / "early").read_text()).values())
