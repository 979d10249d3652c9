"""Wall time of a run by part: environment, inference, learning."""

from __future__ import annotations

from time import perf_counter


class Timer:
    """Seconds spent in each named part. `with timer("env"): ...` takes about half a microsecond.

    Parts do not nest: time inside an inner part would be counted twice.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.elsewhere: dict[str, float] = {}  # of other processes, in the mean; not part of this one's time
        self._part = ""
        self._since = 0.0

    def __call__(self, part: str) -> Timer:
        self._part = part
        return self

    def __enter__(self) -> None:
        self._since = perf_counter()

    def __exit__(self, *_: object) -> None:
        self.add(self._part, perf_counter() - self._since)

    def add(self, part: str, seconds: float) -> None:
        """Add seconds that were measured elsewhere."""
        self.seconds[part] = self.seconds.get(part, 0.0) + seconds

    def add_elsewhere(self, part: str, seconds: float) -> None:
        """Add seconds of other processes, in the mean of them."""
        self.elsewhere[part] = self.elsewhere.get(part, 0.0) + seconds
