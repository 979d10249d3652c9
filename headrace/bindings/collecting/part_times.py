"""Times of the parts of a call that collects, by the processor's ticks that its threads have counted."""

from __future__ import annotations

import numpy as np

LINE = 8  # words of a cache line: each thread counts in its own


def seconds_of_parts(spent: np.ndarray, threads: int, seconds: float) -> dict[str, float]:
    """Divide the seconds of a call among policy and environments. spent: uint64 [workers, LINE], of which the first two
    are ticks of these. A processor whose counter cannot be read has none: then all is "collecting"."""
    inference, env = map(sum, zip(*spent[:threads, :2].tolist(), strict=True))
    whole = inference + env
    if not whole:
        return {"collecting": seconds}
    return {"inference": seconds * inference / whole, "env": seconds * env / whole}
