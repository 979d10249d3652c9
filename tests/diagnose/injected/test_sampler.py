"""The sampler: its spool file, with a clock set by the test; and its shares against real clocks."""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace

import pytest

from headrace.diagnose.injected import sampler, stacks, ticker
from headrace.diagnose.profile import spool
from headrace.diagnose.profile.profile import Kind, Role
from headrace.diagnose.record.run_script import measure

PERIOD = 1 / 64  # s; sums of it are exact
MIXED = """
import hashlib, json, sys, time
DATA = bytes(400_000)
spent = [0.0, 0.0, 0.0, 0.0]

def python():
    total = 0
    for i in range(5_000):
        total += i * i

def native():
    hashlib.sha256(DATA).digest()  # lets go of the interpreter's lock

def locked():
    sorted(range(20_000, 0, -1), key=abs)  # does not

def rest():
    time.sleep(0.0005)

history, end, last = [], time.perf_counter() + 6.0, time.perf_counter()
while last < end:
    for index, part in enumerate((python, native, locked, rest)):
        part()
        now = time.perf_counter()
        spent[index] += now - last
        last = now
json.dump(spent, open(sys.argv[1], "w"))
"""


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        return 0.0


class StillTicker:
    """A ticker that never ticks: the test calls the handler."""

    clock: Clock

    def __init__(self, handler: object, period: float) -> None:
        pass

    armed = 0

    def arm(self, every: int) -> None:
        self.armed += 1

    def due(self, every: int) -> float:
        return self.clock.now % PERIOD

    def stop(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sampler, "time", made)
    monkeypatch.setattr(StillTicker, "clock", made, raising=False)
    monkeypatch.setattr(sampler, "Ticker", StillTicker)
    monkeypatch.setattr(sampler, "_random", lambda: 0.0)
    monkeypatch.setattr(sampler.Sampler, "_run", lambda self: None)
    return made


@pytest.fixture
def started(clock: Clock, tmp_path: Path) -> sampler.Sampler:
    """A sampler of this process that neither ticks nor writes by itself."""
    made = sampler.Sampler(str(tmp_path), PERIOD, 1e9)
    made.start()
    made._background = None  # it has ended, and the next thread may have its number
    return made


def here() -> FrameType | None:
    return sys._getframe()


def there() -> FrameType | None:
    return sys._getframe()


def spooled(folder: Path) -> spool.Process:
    (process,) = spool.read(folder)
    return process


def seconds_in(process: spool.Process, thread: int | None = None) -> dict[str, float]:
    """Innermost function -> seconds."""
    found: dict[str, float] = {}
    for sample in process.samples.get(thread or process.pid, ()):
        name = sample.stack[0].code.method
        found[name] = found.get(name, 0.0) + sample.seconds
    return found


def test_each_tick_stands_for_the_time_since_the_last(started: sampler.Sampler, clock: Clock, tmp_path: Path) -> None:
    for ticks, where in ((3, here), (1, there), (5, here)):
        clock.now += ticks * PERIOD  # those that fell into one native call are one note
        started._tick(1, where())
    started._write()
    process = spooled(tmp_path)
    assert len(process.samples[process.pid]) == 3
    assert seconds_in(process) == pytest.approx({"here": 8 * PERIOD, "there": PERIOD})


def test_ticks_of_another_phase_add_up_all_the_same(started: sampler.Sampler, clock: Clock, tmp_path: Path) -> None:
    began = clock.now
    for tick in range(50):
        clock.now += PERIOD * (1.4 if tick % 3 else 0.7)
        started._tick(1, (here if tick % 2 else there)())
    started._write()
    assert sum(seconds_in(spooled(tmp_path)).values()) == pytest.approx(clock.now - began, abs=2 * PERIOD)


def test_a_tick_without_a_python_frame_is_covered_by_the_next(
    started: sampler.Sampler, clock: Clock, tmp_path: Path
) -> None:
    """Ticks without a frame occur in one run of fifty, while the interpreter reads the script's file."""
    clock.now += PERIOD
    started._tick(1, None)
    clock.now += PERIOD
    started._tick(1, here())
    started._write()
    process = spooled(tmp_path)
    assert process.limitations == []
    assert seconds_in(process) == pytest.approx({"here": 2 * PERIOD})


@pytest.mark.parametrize("looked_at", [False, True], ids=["no Python code runs", "the other thread is in a tick"])
def test_a_tick_that_records_nothing_is_followed_by_another(
    looked_at: bool, started: sampler.Sampler, clock: Clock
) -> None:
    clock.now += PERIOD
    started._in_tick = looked_at
    started._tick(1, here() if looked_at else None)
    assert started._ticker.armed == 1 and started._in_tick is looked_at and not started._samples


def test_a_failing_sample_is_reported_once_and_covered_by_the_next(
    started: sampler.Sampler, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(started._stacks, "number", lambda frame: 1 // 0)
        for _ in range(3):
            clock.now += PERIOD
            started._tick(1, here())
    clock.now += PERIOD
    started._tick(1, here())
    started._write()
    process = spooled(tmp_path)
    assert len(process.limitations) == 1 and "ZeroDivisionError" in process.limitations[0]
    assert seconds_in(process)["here"] >= PERIOD


def disk(**changed: Callable) -> SimpleNamespace:
    """The module os, in parts another."""
    return SimpleNamespace(**vars(os) | changed)


def fill(clock: Clock, made: sampler.Sampler, ticks: int) -> None:
    for _ in range(ticks):
        clock.now += PERIOD
        made._tick(1, here())


@pytest.mark.parametrize("fails", ["open", "write"])
def test_what_cannot_be_written_is_written_the_next_time(
    fails: str, started: sampler.Sampler, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*words: object) -> int:
        raise OSError(24, "Too many open files")

    fill(clock, started, 5)
    with monkeypatch.context() as full:
        full.setattr(sampler, "os", disk(**{fails: refuse}))
        started._write()
    fill(clock, started, 5)
    started._write()
    assert seconds_in(spooled(tmp_path)) == pytest.approx({"here": 10 * PERIOD})


def test_what_is_written_in_pieces_is_whole(
    started: sampler.Sampler, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = itertools.count()

    def a_little(file: int, text: bytes) -> int:
        if next(calls) == 2:
            raise OSError(28, "No space left on device")
        return os.write(file, text[:100])

    monkeypatch.setattr(sampler, "os", disk(write=a_little))
    fill(clock, started, 5)
    started._write()  # ends within a line
    fill(clock, started, 5)
    started._write()
    assert seconds_in(spooled(tmp_path)) == pytest.approx({"here": 10 * PERIOD})


def test_it_stops_once_the_folder_is_removed(started: sampler.Sampler, clock: Clock, tmp_path: Path) -> None:
    Path(started._path).unlink()
    tmp_path.rmdir()
    started._write()
    assert not started._working and not tmp_path.exists()


def test_a_broken_line_loses_only_its_own_samples(started: sampler.Sampler, clock: Clock, tmp_path: Path) -> None:
    for where in (here, there, here):
        clock.now += PERIOD
        started._tick(1, where())
        started._write()
    path = Path(started._path)
    lines = path.read_text().splitlines()
    lost = next(number for number, line in enumerate(lines) if line.startswith('["stack"'))
    path.write_text("\n".join([*lines[:lost], lines[lost][:-3], *lines[lost + 1 :]]))
    assert seconds_in(spooled(tmp_path)) == {"there": PERIOD}  # what rests on the line is lost, what follows is not


def test_other_threads_are_sampled_with_their_names(started: sampler.Sampler, clock: Clock, tmp_path: Path) -> None:
    empty: queue.Queue[int] = queue.Queue()
    thread = threading.Thread(target=empty.get, name="collector")
    thread.start()
    try:
        clock.now += PERIOD
        started._sample_threads()
        started._write()
    finally:
        empty.put(0)
        thread.join()
    process = spooled(tmp_path)
    assert thread.native_id is not None and process.names[thread.native_id] == "collector"
    assert sum(seconds_in(process, thread.native_id).values()) == pytest.approx(PERIOD)


def test_a_tick_samples_the_other_threads_and_writes_what_is_due(
    started: sampler.Sampler, clock: Clock, tmp_path: Path
) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        fill(clock, started, round(sampler.WRITE_EVERY / PERIOD))
        process = spooled(tmp_path)
        assert thread.native_id is not None
        # noted at every third tick of 1/64 s, of which the last one is not due yet
        assert sum(seconds_in(process, thread.native_id).values()) == pytest.approx(30 * PERIOD)
        assert seconds_in(process)["here"] == pytest.approx(32 * PERIOD)
    finally:
        done.set()
        thread.join()


def test_ticks_come_once_a_period_at_any_place_of_it() -> None:
    now, dues = 500.0, []
    while len(dues) < 200:
        due = ticker.next_due(now, PERIOD)
        assert now < due <= now + 2 * PERIOD and ticker.last_due(due, PERIOD) == due
        assert ticker.last_due(due - 1e-9, PERIOD) < due
        dues.append(due)
        now = due + 1e-9
    assert dues[-1] - dues[0] == pytest.approx(199 * PERIOD, abs=PERIOD)
    places = [due / PERIOD % 1 for due in dues]
    assert all(abs(sum(place < share for place in places) - 200 * share) < 4 for share in (0.25, 0.5, 0.75))
    assert {ticker.last_due(due, PERIOD, 4) for due in dues[4:]} <= set(dues)


def test_stacks_that_several_threads_describe_have_numbers_of_their_own() -> None:
    """Each is described before it is known to others, and no number is given twice."""
    made = stacks.Stacks()
    frames = [(lambda: sys._getframe())() for _ in range(20)]
    begin = threading.Barrier(4)

    def describe() -> None:
        begin.wait()
        for frame in frames:
            made.number(frame)

    threads = [threading.Thread(target=describe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = [number for kind, number, *_ in made.new]
    assert len(set(numbers)) == len(numbers)
    known: set[int] = set()
    for kind, number, *values in made.new:
        assert set({"place": values[:1], "stack": values[0]}.get(kind, ())) <= known
        known.add(number)


@pytest.mark.slow
def test_shares_are_those_of_the_clock(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(MIXED)
    profile = measure([str(script), str(tmp_path / "spent")], seconds=20, skip=0.0, rate=100.0)
    spent = json.loads((tmp_path / "spent").read_text())
    by_line: dict[str, float] = {}
    for site in profile.training_thread.sites:
        by_line[site.function] = by_line.get(site.function, 0.0) + site.seconds
    for name, seconds in zip(("python", "native", "locked", "rest"), spent, strict=True):
        # 600 samples: two points are one standard error, and others use this machine
        assert by_line.get(name, 0.0) / sum(spent) == pytest.approx(seconds / sum(spent), abs=0.1), (by_line, spent)
    assert profile.training_thread.seconds[Role.IDLE] == pytest.approx(by_line["rest"], rel=0.1)
    assert profile.overhead < 0.03


@pytest.mark.slow
def test_other_threads_have_lanes_with_their_names(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        "import queue, threading, time\n"
        "q = queue.Queue()\n"
        "t = threading.Thread(target=q.get, name='collector')\n"
        "t.start()\n"
        "time.sleep(1.0)\n"
        "q.put(1)\n"
        "t.join()\n"
    )
    profile = measure([str(script)], seconds=20, skip=0.0, rate=100.0)
    lane = next(lane for lane in profile.lanes if lane.kind is Kind.THREAD)
    assert lane.name == "collector" and lane.share(Role.WAIT) > 0.8
    assert profile.training_thread.share(Role.IDLE) > 0.5


@pytest.mark.slow
def test_a_loop_as_long_as_the_period_is_sampled_everywhere(tmp_path: Path) -> None:
    """Ticks at the same place of each turn would see one of its halves alone."""
    script = tmp_path / "run.py"
    script.write_text(
        "import time\n"
        "def one(end):\n"
        "    while time.monotonic() < end: pass\n"
        "def two(end):\n"
        "    while time.monotonic() < end: pass\n"
        "start = time.monotonic()\n"
        "for turn in range(400):\n"
        "    one(start + 0.005 * turn + 0.0025)\n"
        "    two(start + 0.005 * turn + 0.005)\n"
    )
    profile = measure([str(script)], seconds=20, skip=0.0, rate=100.0)
    halves = [
        sum(site.seconds for site in profile.training_thread.sites if site.function == name) for name in ("one", "two")
    ]
    assert halves[0] / sum(halves) == pytest.approx(0.5, abs=0.25)


def test_the_injected_part_is_light() -> None:
    """The injected part imports the standard library alone, and no heavy modules of it."""
    code = (
        "import sys; sys.path.insert(0, 'headrace/diagnose'); before = set(sys.modules); import injected.sampler;"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    root = Path(__file__).parents[3]
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True).stdout
    modules = set(said.split())
    assert modules - {"injected"} <= sys.stdlib_module_names
    assert not modules & {"random", "asyncio", "multiprocessing", "subprocess", "typing_extensions"}
