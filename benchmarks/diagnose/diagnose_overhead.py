"""Cost of `headrace diagnose` for the script that it samples: steps per second with the sampler on and off.

Within one run the sampler of every process is on and off in alternate windows, so that slow changes of the machine
count for both. Each window with it is compared with the mean of the two around it. Reported is the mean overhead with
its 95 % confidence interval. Ends with exit code 1 where the upper limit is above the bound for any script.

    python -m benchmarks.diagnose.diagnose_overhead    # all three, 16 minutes; each appends a row of its own
    python -m benchmarks.diagnose.diagnose_overhead --only "one environment"
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.common import Neighbours, Row, finish, parser, table
from headrace.core.cores import leave_threads_alone
from headrace.diagnose.record import run_script

BOUND = 0.03  # share of wall time that sampling may cost, at the upper limit
COLUMNS = ("script", "windows", "steps_s_off", "overhead", "overhead_low", "overhead_high", "own_account")
T95 = 2.05  # two-sided 95 % quantile of Student's t for about 29 degrees of freedom
LEARNER = """
import json, sys, threading, time
import gymnasium, numpy, torch

WINDOW = float(sys.argv[1])
sampling = True


def switch(now):
    # the sampler of this process is on in even windows
    global sampling
    window = int(now / WINDOW)
    if (window % 2 == 0) != sampling:
        sampling = not sampling
        sampler = sys.modules["_headrace_injected.sampler"].current
        sampler.start() if sampling else sampler.stop()
    return window


class Switched(gymnasium.Wrapper):
    # in a worker process
    def step(self, action):
        switch(time.monotonic())
        return super().step(action)


torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
optimizer = torch.optim.Adam(net.parameters())


def learn(logits):
    loss = logits.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def measured(step):
    counts, first = {}, int(time.monotonic() / WINDOW) + 2
    last = first + int(sys.argv[2])
    while True:
        window = switch(time.monotonic())
        if window > last:
            break
        step()
        counts[window] = counts.get(window, 0) + 1
    with open(sys.argv[3], "w") as file:
        json.dump([[window % 2 == 0, counts.get(window, 0)] for window in range(first, last + 1)], file)
"""
ONE = """
env = gymnasium.make("CartPole-v1")
observation, _ = env.reset(seed=0)
taken = 0


def step():
    global observation, taken
    taken += 1
    logits = net(torch.as_tensor(observation))
    observation, reward, terminated, truncated, _ = env.step(int(logits.argmax()))
    if terminated or truncated:
        observation, _ = env.reset()
    if taken % 8 == 0:
        learn(logits)
"""
SCRIPTS = {
    "one environment": LEARNER + ONE + "measured(step)\n",
    "eight waiting threads": LEARNER
    + ONE
    + "for _ in range(8):\n    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    + "measured(step)\n",
    "two worker processes": LEARNER
    + """
def step():
    global observations
    logits = net(torch.as_tensor(observations))
    observations, *_ = envs.step(logits.argmax(1).numpy())
    learn(logits)


if __name__ == "__main__":
    envs = gymnasium.vector.AsyncVectorEnv([lambda: Switched(gymnasium.make("CartPole-v1"))] * 2)
    observations, _ = envs.reset(seed=0)
    measured(step)
    envs.close()
""",
}


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--windows", type=int, default=60, help="of each script, with and without the sampler in turns")
    flags.add_argument("--window", type=float, default=5.0, help="seconds of a window")
    flags.add_argument(
        "--only", nargs="+", default=list(SCRIPTS), choices=SCRIPTS, metavar="SCRIPT", help="some of the scripts"
    )
    options = flags.parse_args()
    leave_threads_alone()  # scripts wait as they do without this program
    if options.quick:
        options.windows, options.window = 4, 0.6
    os.environ["PYTHONHASHSEED"] = "0"  # dictionaries lie alike in all runs
    rows = []
    for name in options.only:
        neighbours = Neighbours()
        rows.append(measure(name, options.windows, options.window))
        print(table(rows[-1:], COLUMNS), flush=True)
        finish("diagnose_overhead", rows[-1:], options, neighbours, rate=run_script.RATE, bound=BOUND)
    print(table(rows, COLUMNS))
    print(f"share of wall time at {run_script.RATE:g} samples a second; low and high: a 95 % confidence interval")
    sys.exit(not options.quick and any(row["overhead_high"] > BOUND for row in rows))


def measure(name: str, windows: int, window: float) -> Row:
    """The overhead on one script."""
    with tempfile.TemporaryDirectory() as folder:
        script, counted = Path(folder, "work.py"), Path(folder, "counts.json")
        script.write_text(SCRIPTS[name])
        account = run_script.measure([str(script), str(window), str(windows), str(counted)], seconds=1e6, skip=0.0)
        if not counted.exists():
            raise RuntimeError(f"{name} ended before it had counted its steps: {account.exit}")
        counts: list[tuple[bool, int]] = json.loads(counted.read_text())
    found = overheads(counts)
    mean, error = statistics.mean(found), statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else 0.0
    return {
        "script": name,
        "windows": windows,
        "steps_s_off": statistics.mean(steps for on, steps in counts if not on) / window,
        "overhead": mean,
        "overhead_low": mean - T95 * error,
        "overhead_high": mean + T95 * error,
        "own_account": account.overhead,
        "overheads": found,
    }


def overheads(counts: list[tuple[bool, int]]) -> list[float]:
    """Time per step in each window with the sampler, relative to the two windows without it around, less 1."""
    found = []
    for before, now, after in zip(counts, counts[1:], counts[2:], strict=False):
        if now[0]:
            found.append((before[1] + after[1]) / 2 / max(now[1], 1) - 1)
    return found


if __name__ == "__main__":
    main()
