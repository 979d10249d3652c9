"""Time in which a signal or the machine stopped a script is not counted as the script's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from headrace.diagnose.profile.spool import Sample
from headrace.diagnose.record import blocking
from headrace.diagnose.record.processes import ProcessMonitor, ThreadClock


def poll(monitor: ProcessMonitor, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        monitor.poll()
        time.sleep(0.05)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs Linux's /proc")
def test_a_process_that_a_signal_stops_stands_still() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as script:
        monitor = ProcessMonitor(script.pid)
        poll(monitor, 0.7)
        assert monitor.still(script.pid) == []
        script.send_signal(signal.SIGSTOP)
        poll(monitor, 2.2)
        script.send_signal(signal.SIGCONT)
        poll(monitor, 1.2)
        ((begin, end),) = monitor.still(script.pid)
        script.kill()
    assert 1.0 <= end - begin <= 2.3


@pytest.mark.parametrize(("cpu", "number"), [(0.5, 1), (4.0, 0)])
def test_without_readings_a_script_stood_still_unless_it_computed_meanwhile(cpu: float, number: int) -> None:
    monitor = ProcessMonitor(1)
    monitor.clocks[1, 1] = ThreadClock("main", [0.0, 1.0, 7.0, 8.0], [0.0, 0.5, 0.5 + cpu, 1.0 + cpu], [0.0] * 4)
    assert monitor.still(1) == [(1.0, 7.0)][:number]
    assert monitor.still(1, looks=[2.5, 4.0, 5.5]) == []  # the machine was busy, and not paused


def test_samples_lose_the_time_in_which_the_script_stood_still() -> None:
    samples = [Sample(2.0, 1.0, ()), Sample(8.0, 6.0, ()), Sample(9.0, 1.0, ())]
    kept = blocking.without(samples, [(3.0, 7.5)])
    assert [sample.seconds for sample in kept] == [1.0, 1.5, 1.0]
    assert [sample.end for sample in blocking.without(samples, [(1.0, 8.0)])] == [9.0]
    assert blocking.without(samples, []) == samples
