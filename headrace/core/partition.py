"""How a number of things is divided among processes."""

from __future__ import annotations

from itertools import pairwise


def partition(number: int, parts: int) -> list[slice]:
    """Which of `number` things each part has: sizes differ by one at most."""
    return [slice(first, end) for first, end in pairwise(number * part // parts for part in range(parts + 1))]
