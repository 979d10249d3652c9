"""The sampler against clocks: shares of Python, of native calls, of sleeps; and its own cost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.diagnose.launch import measure
from headrace.diagnose.profile import Kind, Role

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


def test_shares_are_those_of_the_clock(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(MIXED)
    profile = measure([str(script), str(tmp_path / "spent")], seconds=20, skip=0.0, rate=100.0)
    spent = json.loads((tmp_path / "spent").read_text())
    by_line: dict[str, float] = {}
    for site in profile.driver.sites:
        by_line[site.function] = by_line.get(site.function, 0.0) + site.seconds
    for name, seconds in zip(("python", "native", "locked", "rest"), spent, strict=True):
        # 600 samples: two points are one standard error, and others use this machine
        assert by_line.get(name, 0.0) / sum(spent) == pytest.approx(seconds / sum(spent), abs=0.1), (by_line, spent)
    assert profile.driver.seconds[Role.IDLE] == pytest.approx(by_line["rest"], rel=0.1)
    assert profile.overhead < 0.03


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
    assert profile.driver.share(Role.IDLE) > 0.5


def test_a_loop_as_long_as_the_period_is_seen_all_around(tmp_path: Path) -> None:
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
    halves = [sum(site.seconds for site in profile.driver.sites if site.function == name) for name in ("one", "two")]
    assert halves[0] / sum(halves) == pytest.approx(0.5, abs=0.25)


def test_the_injected_part_is_light() -> None:
    """Standard library alone, and nothing that a script might mind; milliseconds."""
    code = (
        "import sys, time; sys.path.insert(0, 'headrace/diagnose'); before = set(sys.modules); t = time.process_time();"
        "import injected.sampler; print(time.process_time() - t);"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    root = Path(__file__).parents[2]
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True).stdout
    seconds, modules = said.splitlines()
    assert float(seconds) < 0.1  # 10 ms on a quiet machine
    assert set(modules.split()) - {"injected"} <= sys.stdlib_module_names
    assert "random" not in modules.split()
