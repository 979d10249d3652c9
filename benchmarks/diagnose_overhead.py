"""What `headrace diagnose` costs the script that it looks at: wall time with the sampler against without.

    python benchmarks/diagnose_overhead.py

Each pair runs the same fixed work twice, once sampled at the default rate, in an order that alternates; the script
measures its own loop, so that imports do not count. Prints the ratio of each pair, their median, and a verdict.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from headrace.diagnose.launch import RATE, sampled_environment

BOUND = 0.03  # share of wall time that sampling may cost
WORK = """
import time
import gymnasium, torch

torch.set_num_threads(1)
env = gymnasium.make("CartPole-v1")
net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
optimizer = torch.optim.Adam(net.parameters())


def work(steps):
    observation, _ = env.reset(seed=0)
    for step in range(steps):
        logits = net(torch.as_tensor(observation))
        action = int(logits.argmax())
        observation, reward, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            observation, _ = env.reset()
        if step % 8 == 0:
            loss = logits.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


work(3000)
began = time.perf_counter()
work(STEPS)
print(time.perf_counter() - began)
"""


def seconds(script: Path, sampled: bool) -> float:
    """Seconds that the script's loop took."""
    with tempfile.TemporaryDirectory() as folder:
        environment = sampled_environment(Path(folder), 1 / RATE) if sampled else None
        done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Measure, print, and fail beyond the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10, help="runs with and without (default 10)")
    parser.add_argument("--steps", type=int, default=20_000, help="turns of the script's loop (default 20000)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "work.py"
        script.write_text(WORK.replace("STEPS", str(options.steps)))
        costs = []
        for pair in range(options.pairs):
            order = (False, True) if pair % 2 == 0 else (True, False)
            taken = {sampled: seconds(script, sampled) for sampled in order}
            costs.append(taken[True] / taken[False] - 1)
            print(f"pair {pair + 1:2d}: {taken[False]:.3f} s without, {taken[True]:.3f} s with: {costs[-1]:+.1%}")
    median = statistics.median(costs)
    print(f"median {median:+.2%} of wall time at {RATE:g} samples a second (bound {BOUND:.0%})")
    sys.exit(median > BOUND)


if __name__ == "__main__":
    main()
