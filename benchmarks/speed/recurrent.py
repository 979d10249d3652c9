"""Steps a second of PPO with an LSTM, compared with sb3-contrib's RecurrentPPO: the same network, batches and epochs.

A process for each measurement; the libraries take turns. An LSTM of 256 (sb3-contrib's own) or 64 for actor and critic
each, right on the observations of CartPole-v1; 8 environments, 128 steps, 10 epochs of minibatches of 128 rows.
Gradients of sb3-contrib go back to the start of the rollout: so do Headrace's at a sequence_length of 128. At 16
minibatches hold eight sequences instead of one.
"""

from __future__ import annotations

import statistics

from benchmarks.common import Neighbours, Row, finish, parser, run_program, table
from benchmarks.speed.off_policy import interpreters
from benchmarks.speed.recurrent_one import LIBRARIES

COLUMNS = ("library", "rnn_size", "sequence_length", "per_second", "per_second_min", "per_second_max", "times_sb3")


def main() -> None:
    flags = parser(__doc__ or "")
    flags.add_argument("--sizes", type=int, nargs="+", default=(256, 64), help="of the LSTM")
    flags.add_argument("--libraries", nargs="+", default=tuple(LIBRARIES), help="those not found are left out")
    flags.add_argument("--rounds", type=int, default=3, help="the median counts")
    options = flags.parse_args()
    neighbours = Neighbours()
    found = interpreters(options.libraries, options.peers_home, LIBRARIES)
    rounds, seconds = (1, 0.1) if options.quick else (options.rounds, 6.0)
    rows = [row for size in options.sizes for row in rates(size, found, rounds, seconds)]
    print(table(rows, COLUMNS))
    finish("recurrent", rows, options, neighbours)


def rates(size: int, found: dict[str, str], rounds: int, seconds: float) -> list[Row]:
    """Steps a second of each library: medians over rounds."""
    cases = [(name, length) for name in found for length in ((128, 16) if name == "headrace" else (128,))]
    measured: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for _ in range(rounds):
        for name, length in cases:
            arguments = (name, size, "--sequence-length", length, "--seconds", seconds)
            row = run_program(found[name], "speed/recurrent_one.py", *arguments, timeout=300)
            measured[name, length].append(row["sps"])
    sb3 = measured.get(("sb3-contrib", 128))
    return [
        {
            "library": name,
            "rnn_size": size,
            "sequence_length": length,
            "per_second": statistics.median(values),
            "per_second_min": min(values),
            "per_second_max": max(values),
            "times_sb3": statistics.median(values) / statistics.median(sb3) if sb3 else None,
        }
        for (name, length), values in measured.items()
    ]


if __name__ == "__main__":
    main()
