"""A profile comes of every script, however it ends, and of every process that it starts.

Scripts run until they were seen, and not for a time: what depends on clocks is slow.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.profiles import SEEN

from headrace.diagnose.profile.profile import Ending, Kind, Profile, Role
from headrace.diagnose.record import guardian, run_script
from headrace.diagnose.record.run_script import Late, measure

ROOT = Path(__file__).parents[3]
WORK = (
    SEEN
    + """
import multiprocessing, os, signal, sys, time

def spin(seconds):
    end = time.thread_time() + seconds  # on a core, however busy the machine is
    while time.thread_time() < end:
        sum(range(100))

def until_seen(pid=None):
    while not seen(pid):
        spin(0.02)

def fail_as_a_test():  # a test runner shows the exception and goes on
    def run():
        try:
            raise ValueError("no such thing")
        except ValueError as error:
            sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    run()

def serve():
    until_seen()
    os._exit(3)

if __name__ == "__main__":
"""
)
ENDINGS = {  # what the script does at last -> how it ended
    "pass": (Ending.EXIT, 0),
    "sys.exit(3)": (Ending.EXIT, 3),
    "os._exit(4)": (Ending.EXIT, 4),
    "raise ValueError('no such thing')": (Ending.EXCEPTION, 1),
    "fail_as_a_test()\nsys.exit(1)": (Ending.EXIT, 1),
    "os.kill(os.getpid(), signal.SIGKILL)": (Ending.SIGNAL, signal.SIGKILL),
    "os.abort()": (Ending.SIGNAL, signal.SIGABRT),
}


def profile_of(text: str, folder: Path, seconds: float = 60.0, **options: float) -> Profile:
    (folder / "run.py").write_text(WORK + "".join(f"    {line}\n" for line in text.splitlines()))
    return measure([str(folder / "run.py")], seconds=seconds, **{"skip": 0.0, "grace": 0.5} | options)


@pytest.mark.parametrize("last", ENDINGS)
def test_every_ending_leaves_a_profile(last: str, tmp_path: Path) -> None:
    profile = profile_of(f"until_seen()\n{last}", tmp_path)
    assert (profile.exit.ending, profile.exit.code) == ENDINGS[last]
    assert profile.exit.detail == ("ValueError: no such thing" if "raise" in last else "")
    assert profile.training_thread.kind is Kind.MAIN and profile.training_thread.total > 0


@pytest.mark.slow
@pytest.mark.parametrize("last", ENDINGS)
def test_little_is_lost_at_the_end(last: str, tmp_path: Path) -> None:
    profile = profile_of(f"spin(1.3)\n{last}", tmp_path)
    # half a second is what a process that is killed takes with it
    assert profile.training_thread.total > 0.6
    assert 0.8 < profile.training_thread.cpu_seconds < profile.training_thread.total + 0.7


def test_the_time_limit_stops_the_script_and_its_children(tmp_path: Path) -> None:
    lines = "multiprocessing.Process(target=spin, args=(60,)).start()\nspin(60)"
    profile = profile_of(lines, tmp_path, seconds=1.5, skip=0.5)
    assert profile.exit.ending is Ending.TIME_LIMIT
    assert profile.seconds > 1.49 and profile.skipped == pytest.approx(0.5)
    for lane in profile.lanes:
        assert ends(lane.pid)


def ends(pid: int) -> bool:
    """Tell whether a process ends within 30 s; a zombie (Z) has ended."""
    for _ in range(300):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_the_time_limit_is_kept(tmp_path: Path) -> None:
    began = time.monotonic()
    profile = profile_of("spin(60)", tmp_path, seconds=1.5, skip=0.5)
    assert time.monotonic() - began < 50  # the script takes 60
    assert profile.seconds == pytest.approx(1.5, abs=0.3)


def test_a_training_that_begins_late_is_measured_for_as_long(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(
        "import time\nclass Env:\n    def reset(self): pass\n    def step(self, action): sum(range(20_000))\n"
        "end = time.monotonic() + 1.5\nwhile time.monotonic() < end:\n    sum(range(20_000))\n"
        "env = Env()\nwhile True:\n    env.step(1)\n"
    )
    profile = measure([str(script)], seconds=1.0, skip=0.0, start_up=60.0)
    assert profile.skipped >= 1.4 and profile.seconds >= 0.95 and profile.counters["training_began"]
    assert profile.training_thread.share(Role.ENVIRONMENT) > 0.9


def test_a_script_that_refuses_to_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guardian, "FORCED", {number: 0.5 for number in guardian.FORCED})
    lines = "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nspin(60)"
    assert profile_of(lines, tmp_path, seconds=1.2).exit.ending is Ending.TIME_LIMIT


DEAF = "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="processes are found in Linux's /proc")
def test_a_script_ends_where_its_diagnosis_is_killed(tmp_path: Path) -> None:
    """A script that ignores signals ends, too, and so do its children."""
    lines = f"{DEAF}child = multiprocessing.Process(target=spin, args=(99,))\nchild.start()\n"
    lines += f"open({str(tmp_path / 'pids')!r}, 'w').write(f'{{os.getpid()}} {{child.pid}} ')\nspin(99)"
    (tmp_path / "run.py").write_text(WORK + "".join(f"    {line}\n" for line in lines.splitlines()))
    program = f"from headrace.diagnose.record.run_script import measure\nmeasure([{str(tmp_path / 'run.py')!r}])"
    diagnosis = subprocess.Popen([sys.executable, "-c", program])
    while not (tmp_path / "pids").exists() or not (tmp_path / "pids").read_text().endswith(" "):
        assert diagnosis.poll() is None
        time.sleep(0.05)
    while len(Path(f"/proc/{diagnosis.pid}/task/{diagnosis.pid}/children").read_text().split()) < 2:
        time.sleep(0.05)  # until the guardian runs
    diagnosis.kill()
    diagnosis.wait()
    assert all(ends(int(pid)) for pid in (tmp_path / "pids").read_text().split())


def test_a_script_ends_where_its_measurement_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = []

    def poll(monitor: run_script.ProcessMonitor) -> None:
        pids.append(monitor.root)
        raise RuntimeError("no such thing")

    monkeypatch.setattr(run_script.ProcessMonitor, "poll", poll)
    with pytest.raises(RuntimeError, match="no such thing"):
        profile_of("spin(99)", tmp_path)
    assert ends(pids[0])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_have_lanes_also_when_they_are_killed(method: str, tmp_path: Path) -> None:
    lines = f"""context = multiprocessing.get_context({method!r})
killed = context.Process(target=spin, args=(60,))
ended = context.Process(target=serve)
killed.start(), ended.start()
ended.join()
until_seen(killed.pid)
os.kill(killed.pid, signal.SIGKILL)
killed.join()"""
    profile = profile_of(lines, tmp_path)
    assert profile.exit.ending is Ending.EXIT
    assert len(profile.workers) == 2
    for lane in profile.workers:
        assert lane.parent != 0 and lane.total > 0


@pytest.mark.slow
def test_a_parent_waits_for_its_children(tmp_path: Path) -> None:
    lines = "child = multiprocessing.Process(target=spin, args=(1.0,))\nchild.start()\nchild.join()"
    assert profile_of(lines, tmp_path).training_thread.seconds[Role.WAIT] > 0.5


def test_ctrl_c_ends_it_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wait").touch()
    poll = run_script.ProcessMonitor.poll

    def poll_or_interrupt(monitor: run_script.ProcessMonitor) -> None:
        poll(monitor)
        if not (tmp_path / "wait").exists():
            raise KeyboardInterrupt

    monkeypatch.setattr(run_script.ProcessMonitor, "poll", poll_or_interrupt)
    lines = f"until_seen()\nos.unlink({str(tmp_path / 'wait')!r})\nspin(60)"
    profile = profile_of(lines, tmp_path)
    assert profile.exit.ending is Ending.INTERRUPT
    assert profile.training_thread.total > 0 and ends(profile.training_thread.pid)


def test_the_script_is_left_as_it_is(tmp_path: Path) -> None:
    """Arguments, folder, module path, random numbers, threads and handlers are those of a run without a diagnosis."""
    script = tmp_path / "run.py"
    script.write_text(
        "import os, random, signal, sys, threading\n"
        "random.seed(1)\n"
        "print(sys.argv, sys.path, __name__, __file__, os.getcwd(), random.random(),\n"
        "      threading.active_count(), signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL),\n"
        "      sys.excepthook is sys.__excepthook__, sys.getswitchinterval(), sorted(os.environ.get('HOME', '')),\n"
        "      file=open(sys.argv[1], 'w'))\n"
    )
    words = [str(script), str(tmp_path / "said"), "--flag"]
    subprocess.run([sys.executable, *words], check=True)
    plain = (tmp_path / "said").read_text()
    measure(words, seconds=5)
    assert (tmp_path / "said").read_text().replace(str(ROOT), "") == plain.replace(str(ROOT), "")


def test_sitecustomize_of_the_user_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    profile_of("spin(0.1)", tmp_path)
    assert (tmp_path / "ran").exists()


def test_modules_are_run_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_module.py").write_text(WORK + "    until_seen()\n")
    monkeypatch.chdir(tmp_path)
    profile = measure(["-m", "some_module"], seconds=60, skip=0.0)
    assert profile.exit.ending is Ending.EXIT and profile.training_thread.total > 0


def test_what_cannot_be_run_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no script 'no\.py'"):
        measure(["no.py"])
    with pytest.raises(FileNotFoundError, match="no Python interpreter 'no-python'"):
        measure([__file__], python="no-python")
    with pytest.raises(ValueError, match="must be above 0"):
        measure([__file__], seconds=0)
    hints = tmp_path / "hints.toml"
    hints.write_text("[roles]\nnonsense = []")
    with pytest.raises(ValueError, match="nonsense"):
        measure([__file__], hints=hints)


def test_a_profile_survives_its_file(tmp_path: Path) -> None:
    profile = profile_of("until_seen()", tmp_path)
    profile.save(tmp_path)
    assert Profile.load(tmp_path) == profile


def test_a_script_that_waits_for_a_core_runs_longer_by_that_time_up_to_the_limit() -> None:
    def end(queued: float) -> float:
        return Late(10.0, 60.0, lambda: 100.0, lambda since: queued).end(110.0, 170.0)

    assert [end(queued) for queued in (0.0, 4.0, 400.0)] == [110.0, 114.0, 170.0]
