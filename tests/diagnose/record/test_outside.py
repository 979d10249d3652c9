"""Processes that the sampler cannot enter are recorded from outside, or the report says what to do."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.diagnose.profile.profile import Ending, Kind, Role
from headrace.diagnose.profile.role_patterns import Hints
from headrace.diagnose.profile.roles import Classifier
from headrace.diagnose.profile.spool import Process
from headrace.diagnose.record import attach, outside, py_spy
from headrace.diagnose.record.outside import FORBIDDEN, MISSING, OutsideRecorder
from headrace.diagnose.record.processes import ProcessMonitor
from headrace.diagnose.record.run_script import measure

TRACE = Path(__file__).with_name("py_spy_trace.json")  # what py-spy 0.4.3 recorded of SCRIPT, SCRIPT for its path
SCRIPT = """
import threading, time

class World:
    def reset(self):
        return 0

    def step(self, action):
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            sum(range(100))

def fetch():
    time.sleep(60)

threading.Thread(target=fetch, name="prefetch", daemon=True).start()
world = World()
end = time.monotonic() + 20
while time.monotonic() < end:
    world.step(1)
    time.sleep(0.05)
"""
PARENT = """
import subprocess, sys, time

child = subprocess.Popen([sys.executable, "-S", sys.argv[1]])
time.sleep(3)
child.kill()
"""
ALONE = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "alone.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def recorded(script: Path) -> Process:
    """Process that the recorded trace describes."""
    events = json.loads(TRACE.read_text().replace('"SCRIPT"', json.dumps(str(script))))
    main = next(int(event["name"].split("(")[1].split(")")[0]) for event in events if "MainThread" in event["name"])
    return py_spy.process(events, pid=main, parent=1, began=100.0, python="3.11")


def test_a_recording_has_the_threads_and_all_of_their_time(recorded: Process) -> None:
    assert sorted(recorded.names.values()) == ["MainThread", "prefetch"]
    assert recorded.names[recorded.pid] == "MainThread"
    for samples in recorded.samples.values():
        assert samples[0].end > 100.0
        assert sum(sample.seconds for sample in samples) == pytest.approx(1.0, abs=0.2)
        for before, after in pairwise(samples):
            assert after.end - after.seconds == pytest.approx(before.end, abs=1e-6)
            assert after.seconds < 2 * py_spy.PERIOD


def test_a_recording_has_roles_from_names_and_source(recorded: Process) -> None:
    classifier = Classifier(Hints(), cuda=False)
    spent: dict[tuple[int, Role], float] = {}
    for thread, samples in recorded.samples.items():
        for sample in samples:
            key = thread, classifier.classify(sample.stack)[0]
            spent[key] = spent.get(key, 0.0) + sample.seconds
    total = sum(sample.seconds for sample in recorded.samples[recorded.pid])
    assert spent[recorded.pid, Role.ENVIRONMENT] / total == pytest.approx(0.77, abs=0.02)
    assert spent[recorded.pid, Role.IDLE] / total == pytest.approx(0.23, abs=0.02)
    (other,) = set(recorded.samples) - {recorded.pid}
    assert {role for thread, role in spent if thread == other} == {Role.IDLE}


def test_a_recording_has_functions_as_the_sampler_describes_them(recorded: Process) -> None:
    codes = {place.code for sample in recorded.samples[recorded.pid] for place in sample.stack}
    step = next(code for code in codes if code.method == "step")
    assert (step.name, step.module, step.line) == ("World.step", "alone", 8)
    waiting = {place.code for samples in recorded.samples.values() for sample in samples for place in sample.stack}
    assert "threading.Thread.run" in {f"{code.module}.{code.name}" for code in waiting}


def poll(found: OutsideRecorder, monitor: ProcessMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll until the process has had no spool file for long enough, by a clock that advances 1 s per call."""
    with monkeypatch.context() as patch:
        patch.setattr(outside, "time", SimpleNamespace(monotonic=itertools.count().__next__))
        for _ in range(5):
            monitor.poll()
            found.poll()
    for recorder in found._recorders:
        recorder._process.wait(60)
    found.finish()


@pytest.mark.parametrize("reason", [MISSING, FORBIDDEN, "py-spy failed: Failed to find python version"])
def test_the_reason_for_a_missing_recording_is_reported(
    reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {FORBIDDEN: "Permission Denied: Try running again", MISSING: ""}.get(
        reason, "Error: Failed to find python version"
    )
    refusing = tmp_path / "py-spy"
    refusing.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setattr(outside, "find", lambda: None if reason is MISSING else str(refusing))
    alone = subprocess.Popen(ALONE)
    try:
        found = OutsideRecorder(monitor := ProcessMonitor(alone.pid), tmp_path)
        poll(found, monitor, monkeypatch)
    finally:
        alone.kill()
        alone.wait()
    assert found.missed.keys() == {alone.pid} and found.with_recorded([]) == []
    assert len(found.limitations) == 1 and found.limitations[0].startswith("1 of the processes ran Python without site")
    assert found.limitations[0].endswith(f"{reason}.")


def test_processes_that_are_sampled_or_are_not_python_are_not_reported(tmp_path: Path, monkeypatch) -> None:
    for command in (ALONE, ["sleep", "60"]):
        process = subprocess.Popen(command)
        try:
            if command is ALONE:
                (tmp_path / f"{process.pid}-0.jsonl").touch()
            found = OutsideRecorder(monitor := ProcessMonitor(process.pid), tmp_path)
            poll(found, monitor, monkeypatch)
        finally:
            process.kill()
            process.wait()
        assert found.limitations == [] and found.missed == {}


@pytest.mark.slow
@pytest.mark.skipif(outside.find() is None, reason="py-spy is not installed")
def test_py_spy_sees_a_child_without_site(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "AFTER", 0.2)
    (tmp_path / "parent.py").write_text(PARENT)
    profile = measure([str(tmp_path / "parent.py"), str(script)], seconds=30, skip=0.0)
    if any(FORBIDDEN in line for line in profile.limitations):
        pytest.skip("py-spy may not read other processes here")
    (worker,) = profile.workers
    assert worker.parent == profile.training_thread.pid and worker.samples > 20
    assert worker.share(Role.ENVIRONMENT) + worker.share(Role.IDLE) > 0.9
    assert worker.share(Role.ENVIRONMENT) > 0.5
    steps = {(site.file, site.function) for site in worker.sites if site.role is Role.ENVIRONMENT}
    assert steps == {(str(script), "World.step")}
    assert [lane.name for lane in profile.lanes if lane.kind is Kind.THREAD] == ["prefetch"]
    assert any("recorded from outside by py-spy" in line for line in profile.limitations)


@pytest.mark.slow
@pytest.mark.skipif(outside.find() is None, reason="py-spy is not installed")
def test_a_running_process_is_measured_and_goes_on(script: Path) -> None:
    running = subprocess.Popen([sys.executable, str(script)])
    try:
        profile = attach.measure(running.pid, seconds=3.0)
        assert running.poll() is None
    except PermissionError as error:
        pytest.skip(str(error))
    finally:
        running.kill()
        running.wait()
    assert profile.exit.ending is Ending.RUNNING and str(script) in profile.command
    assert profile.training_thread.share(Role.ENVIRONMENT) > 0.3


def test_a_process_that_cannot_be_measured_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "find", lambda: "py-spy")
    with pytest.raises(ProcessLookupError, match="--pid 99999999: there is no such process"):
        attach.measure(99999999, seconds=1.0)
    monkeypatch.setattr(attach, "find", lambda: None)
    with pytest.raises(ModuleNotFoundError, match="--pid requires py-spy: `pip install py-spy`"):
        attach.measure(1, seconds=1.0)
