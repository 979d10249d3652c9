"""Signals and lost terminals: a training in a shell's pseudo-terminal, with and without worker processes or actors,
gets each signal that ends programs, alone and with its whole process group, or its terminal is closed. It must save,
leave no process behind, and can be resumed.

    python -m benchmarks.faults.send_signals      # two minutes
"""

from __future__ import annotations

import os
import pty
import select
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import common
from benchmarks.faults import reliability
from benchmarks.processes import alive, descendants

TRAIN = (
    "train ppo CartPole-v1 --num-envs 4 --num-steps 16 --total-steps 100000000 --final-episodes 0 --target-return None"
)
ENVS = {
    "inline": "--backend inline",
    "two workers": "--backend workers --workers 2",
    "two actors": "--backend inline --actors 2 --collection overlapped",
}


def send(number: signal.Signals, group: bool) -> Callable[[int, int], None]:
    """Send a signal to a training, or to its process group."""

    def act(pid: int, terminal: int) -> None:
        if group:
            os.killpg(os.getpgid(pid), number)
        else:
            os.kill(pid, number)

    return act


ACTIONS: dict[str, Callable[[int, int], None]] = {
    **{
        f"{number.name} to the {'group' if group else 'process'}": send(number, group)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        for group in (False, True)
    },
    "Ctrl-C in the terminal": lambda pid, terminal: os.write(terminal, b"\x03") and None,
    "the terminal is closed": lambda pid, terminal: os.close(terminal),
}


def attempt(folder: Path, flags: str, act: Callable[[int, int], None]) -> str:
    """Describe what is wrong after a training in a shell got a signal; empty for nothing."""
    words = f"{shlex.quote(sys.executable)} -m headrace {TRAIN} {flags} --log-folder {shlex.quote(str(folder))}"
    shell, terminal = pty.fork()
    if shell == 0:  # the child, whose terminal this is
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)  # under nohup SIGHUP would be ignored
        os.execvp("bash", ["bash", "--norc", "-i"])
    os.write(terminal, f" {words}; echo ended=$?\n".encode())
    run = wait_for(lambda: next(iter(folder.glob("*/*_1/metrics.jsonl")), None), terminal)
    family = descendants(shell)
    training = next((pid for pid in family if is_training(pid)), None)
    if run is None or training is None:
        finish(shell, family)
        return "it did not start"
    act(training, terminal)
    wait_for(lambda: not alive(training), terminal)
    ended = not alive(training)
    time.sleep(0.5)
    left = [pid for pid in family if pid != shell and alive(pid)]
    finish(shell, family)
    if not ended:
        return "it did not end within a minute"
    if left and not wait_gone(left):
        return f"{len(left)} processes were left behind"
    return resumed(run.parent)


def is_training(pid: int) -> bool:
    """Tell whether a process is the training itself: the first of its program."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"headrace" in words and b"train" in words


def wait_for(condition: Callable[[], object], terminal: int, seconds: float = 60) -> object:
    """Wait until a condition holds, and return its result. Reads what the terminal shows meanwhile."""
    until = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < until:
        try:
            if select.select([terminal], [], [], 0.05)[0]:
                os.read(terminal, 65536)
        except OSError:  # it is closed
            time.sleep(0.05)
    return found


def wait_gone(pids: list[int]) -> bool:
    """Wait ten seconds at most for these processes to end. True if all have."""
    until = time.monotonic() + 10
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(alive, pids))


def finish(shell: int, family: list[int]) -> None:
    """End what is still there."""
    for pid in (*family, shell):
        if alive(pid):
            os.kill(pid, signal.SIGKILL)
    os.waitpid(shell, 0)


def resumed(run: Path) -> str:
    """Describe what is wrong with a checkpoint; empty where it is whole and was made after some steps."""
    from headrace.runs import checkpoint

    try:
        folder, manifest, state = checkpoint.read(run, "last", state="training")
    except Exception as error:
        return f"nothing was saved: {error}"
    return "" if manifest["counters"]["steps"] > 0 and state and folder.name == "last" else "it was saved before"


def main() -> None:
    """Each action on each kind of training."""
    options = common.parser(__doc__ or "").parse_args()
    rows: list[common.Row] = []
    for kind, flags in list(ENVS.items())[: 1 if options.quick else None]:
        row = reliability.empty(f"signals and closed terminals, {kind}")
        for name, act in list(ACTIONS.items())[: 1 if options.quick else None]:
            with tempfile.TemporaryDirectory() as folder:
                wrong = attempt(Path(folder), flags, act)
            reliability.count(row, f"{kind}, {name}", wrong)
            print(f"{kind}, {name}: {wrong or 'as it should be'}", flush=True)
        rows.append(row)
    reliability.finish("send_signals", rows, options.results)


if __name__ == "__main__":
    main()
