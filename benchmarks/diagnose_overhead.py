"""What `headrace diagnose` costs the script that it looks at: wall time with the diagnosis against without.

Each pair runs the same fixed work twice, once under a whole diagnosis at the default rate (sampler, watching of /proc),
in an order that alternates; a script measures its own loop, so that imports do not count. Reported is the median of the
pairs' ratios. Ends with exit code 1 where it is above the bound for any script.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from common import Neighbours, Row, finish, parser, table

from headrace.diagnose.record import run_script

BOUND = 0.03  # share of wall time that a diagnosis may cost
COLUMNS = ("script", "pairs", "without_s", "overhead", "overhead_low", "overhead_high", "own_account")
LEARNER = """
import sys, threading, time
import gymnasium, numpy, torch

torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
optimizer = torch.optim.Adam(net.parameters())


def learn(logits):
    loss = logits.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def measured(work, steps):
    work(steps // 8)
    began = time.perf_counter()
    work(steps)
    with open(sys.argv[2], "w") as file:
        file.write(str(time.perf_counter() - began))
"""
ONE = """
env = gymnasium.make("CartPole-v1")


def work(steps):
    observation, _ = env.reset(seed=0)
    for step in range(steps):
        logits = net(torch.as_tensor(observation))
        observation, reward, terminated, truncated, _ = env.step(int(logits.argmax()))
        if terminated or truncated:
            observation, _ = env.reset()
        if step % 8 == 0:
            learn(logits)
"""
SCRIPTS = {  # name -> (code, turns that take about two seconds)
    "one environment": (LEARNER + ONE + "measured(work, int(sys.argv[1]))\n", 30_000),
    "eight waiting threads": (
        LEARNER
        + ONE
        + "for _ in range(8):\n    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        + "measured(work, int(sys.argv[1]))\n",
        30_000,
    ),
    "two worker processes": (
        LEARNER
        + """
def work(steps):
    observations, _ = envs.reset(seed=0)
    for step in range(steps):
        logits = net(torch.as_tensor(observations))
        observations, *_ = envs.step(logits.argmax(1).numpy())
        if step % 8 == 0:
            learn(logits)


if __name__ == "__main__":
    envs = gymnasium.vector.AsyncVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 2)
    measured(work, int(sys.argv[1]))
    envs.close()
""",
        6_000,
    ),
}


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--pairs", type=int, default=20, help="runs with and without, of each script")
    flags.add_argument("--scripts", nargs="+", default=list(SCRIPTS), choices=SCRIPTS)
    options = flags.parse_args()
    options.pairs = 1 if options.quick else options.pairs
    os.environ["PYTHONHASHSEED"] = "0"  # dictionaries lie alike in all runs
    neighbours, rows = Neighbours(), []
    for name in options.scripts:
        rows.append(measure(name, options.pairs, 0.05 if options.quick else 1.0))
    print(table(rows, COLUMNS))
    print(
        f"share of wall time at {run_script.RATE:g} samples a second; low and high: two standard errors, bootstrapped"
    )
    finish("diagnose_overhead", rows, options, neighbours, rate=run_script.RATE, bound=BOUND)
    sys.exit(not options.quick and any(row["overhead"] > BOUND for row in rows))


def measure(name: str, pairs: int, scale: float) -> Row:
    """The overhead on one script."""
    text, turns = SCRIPTS[name]
    overheads, without, own = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "work.py")
        script.write_text(text)
        words = [str(script), str(int(turns * scale)), str(Path(folder, "seconds.txt"))]
        for pair in range(pairs):
            taken = {}
            for diagnosed in (False, True) if pair % 2 == 0 else (True, False):
                taken[diagnosed], account = seconds(words, diagnosed)
                own += [account] if account is not None else []
            overheads.append(taken[True] / taken[False] - 1)
            without.append(taken[False])
            print(f"{name}, pair {pair + 1}: {taken[False]:.3f} s without, {taken[True]:.3f} s with", flush=True)
    low, high = spread(overheads)
    return {
        "script": name,
        "pairs": pairs,
        "without_s": statistics.median(without),
        "overhead": statistics.median(overheads),
        "overhead_low": low,
        "overhead_high": high,
        "own_account": statistics.median(own),
        "overheads": overheads,
    }


def seconds(words: list[str], diagnosed: bool) -> tuple[float, float | None]:
    """Seconds that a script's loop took, and the share that the sampler believes to have cost."""
    if diagnosed:
        account = run_script.measure(words, seconds=1e6, skip=0.0).overhead
    else:
        account = None
        subprocess.run([sys.executable, *words], check=True)
    return float(Path(words[-1]).read_text()), account


def spread(values: list[float]) -> tuple[float, float]:
    """The median less and plus two standard errors, from resampled pairs."""
    draws = random.Random(0)
    medians = [statistics.median(draws.choices(values, k=len(values))) for _ in range(1000)]
    error = 2 * statistics.pstdev(medians)
    return statistics.median(values) - error, statistics.median(values) + error


if __name__ == "__main__":
    main()
