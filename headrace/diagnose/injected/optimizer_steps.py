"""Counts the steps of torch's optimizers: a script's progress, by which its runs are compared (`--try`)."""

import sys
import time

RESOLUTION = 0.02  # s between two points


class Progress:
    """Points (s of time.monotonic(), steps so far), once torch is imported."""

    def __init__(self):
        self.points = []
        self._attached = False
        self._count, self._last = 0, 0.0

    def attach(self):
        """Begin to count if torch's optimizers are loaded. Call it in the main thread, which steps the optimizers."""
        optimizer = sys.modules.get("torch.optim.optimizer")
        register = getattr(optimizer, "register_optimizer_step_post_hook", None)
        if register is not None and not self._attached:
            self._attached = True
            register(self._stepped)

    def _stepped(self, *_):
        self._count += 1
        now = time.monotonic()
        if now - self._last >= RESOLUTION:
            self._last = now
            self.points.append((now, self._count))
