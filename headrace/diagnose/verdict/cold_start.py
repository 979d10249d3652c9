"""Measures what waking up costs on this machine: work after a pause is slower, because its caches are cold."""

from __future__ import annotations

import ast
import json
import re
import textwrap
import time
from statistics import median

from headrace.core.source_text import parse

PAUSE = 3e-3  # s, as a frame limit or an environment in another process
ROUNDS = 3  # of which the median counts: a core that another program keeps awake makes a round too short
TRIALS, WARM_TRIALS = 40, 3  # pauses of a round, and works after each that find warm caches
TEXT = "def f(x, y=1):\n    for i in range(10):\n        x = [a + i for a in y if a > 3] or {'k': (1, 2)}\n"
DOCUMENT = {"a": [1.5, 2, None, {"b": "c" * 20}], "d": list(range(20))}


def measure() -> float:
    """Median seconds that a little work in Python takes longer after a pause than directly after other work."""
    return median(_round() for _ in range(ROUNDS))


def _round() -> float:
    """Both kinds are measured in turns, and of the latter the fast ones count: other programs make it slower, not
    faster."""
    cold, warm = [], []
    for _ in range(TRIALS):
        cold.append(_timed(PAUSE))
        warm += [_timed(0.0) for _ in range(WARM_TRIALS)]
    return max(median(cold) - sorted(warm)[len(warm) // 10], 0.0)


def _timed(pause: float) -> float:
    if pause:
        time.sleep(pause)
    began = time.perf_counter()
    _work()
    return time.perf_counter() - began


def _work() -> None:
    """About 0.1 ms of code that is spread over memory, as a training loop's is."""
    ast.unparse(parse(TEXT))
    json.loads(json.dumps(DOCUMENT))
    re.sub(r"(\w+)\(", r"<\1>", TEXT)
    textwrap.fill(TEXT, 30)
