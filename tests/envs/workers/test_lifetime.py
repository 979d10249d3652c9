"""End of worker processes: not by signals that their parent decides about, and with all their children."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from helpers.faulty import Counter

from headrace.envs.workers.env import WorkerEnv

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").is_file(), reason="looks at processes as Linux shows them"
)


class Starting(Counter):
    """Starts a program, whose number it shows as its mark."""

    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        self.program = subprocess.Popen(["sleep", "1000"])
        self.mark = observation[1] = self.program.pid
        return observation, info

    def close(self):
        self.program.terminate()
        self.program.wait()


def status(pid, what):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(what))


def runs(pid):
    try:
        return status(pid, "State") != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition):
    while not condition():
        time.sleep(0.01)


def test_signals_are_the_parents_and_children_end_with_their_worker():
    env = WorkerEnv(Starting, 2, "test", 2, on_error="restart")
    rollout = env.rollout(4, env.columns())
    env.reset(rollout, 0)
    pids = [worker.process.pid for worker in env._transport.workers]
    programs = rollout.observation[0, :, 1].int().tolist()
    server = int(status(pids[0], "PPid"))
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        for pid in (server, *pids):
            os.kill(pid, number)
    env.step(rollout, 0)
    assert env.restarts == 0 and all(map(runs, (server, *pids, *programs)))

    os.kill(pids[0], signal.SIGKILL)
    env.step(rollout, 1)
    env.step(rollout, 2)
    assert env.restarts == 1 and rollout.valid[3].all()
    until(lambda: not runs(programs[0]))
    programs[0] = int(rollout.observation[3, 0, 1])
    assert all(map(runs, programs))
    env.close()  # by SIGTERM to these programs
    until(lambda: not any(map(runs, programs)))
    assert runs(server)
