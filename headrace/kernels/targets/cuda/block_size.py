"""How many threads a block of a CUDA kernel should have: measured once per GPU, kernel and number of environments."""

from __future__ import annotations

import json
from collections.abc import Callable

from headrace.kernels.runtime import cache

CANDIDATES = (32, 64, 128, 256, 512)
FILE = "block_sizes.json"


def best(key: str, seconds: Callable[[int], float]) -> int:
    """The candidate that takes the fewest seconds, from the cache folder where it was found before.

    key: names GPU, kernel and number of environments. Results do not depend on it: each thread is one environment.
    """
    path = cache.folder() / FILE
    with cache.locked(path.with_suffix(".lock")):
        known = json.loads(path.read_text()) if path.is_file() else {}
        if key not in known:
            known[key] = min(CANDIDATES, key=seconds)
            cache.write(path, json.dumps(known, indent=1).encode())
    return int(known[key])
