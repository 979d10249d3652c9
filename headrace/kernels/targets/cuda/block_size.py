"""Number of threads in a block of a CUDA kernel: measured once per GPU, kernel and number of environments."""

from __future__ import annotations

from collections.abc import Callable

from headrace.kernels.runtime.cache_folder import folder, json_table

CANDIDATES = (32, 64, 128, 256, 512)
FILE = "block_sizes.json"


def best(key: str, seconds: Callable[[int], float]) -> int:
    """The candidate that takes the fewest seconds, from the cache folder where it was found before.

    key: names GPU, kernel and number of environments. Results do not depend on it: each thread is one environment.
    """
    with json_table(folder() / FILE) as known:
        if key not in known:
            known[key] = min(CANDIDATES, key=seconds)
    return int(known[key])
