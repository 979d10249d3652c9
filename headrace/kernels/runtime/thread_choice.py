"""Whether calls that are alike take less time on several threads than on one: tried again and again.

It depends on more than a call's size: on what else uses the cores, and, in a virtual machine, on which of the host's
cores it has at the moment. Where two cores have no cache in common, what one wrote takes five times as long to come to
the other: DQN with two layers of 256 and minibatches of 64 was 1.5 times faster on two threads than on one where they
have, and slower where they have not (AMD EPYC, Zen 5), and the host moved the machine from one to the other within
seconds.
"""

from __future__ import annotations

from collections import deque

TRIALS = 3  # calls in a row by which one way is compared with the other: the fastest counts
MARGIN = 0.95  # fraction of the time that the other way may take at most to be chosen
PERIOD = 1.0  # s of calls from one comparison to the next, at least
COST = 0.005  # of the time may be lost by trying the slower way


class ThreadChoice:
    """Chooses between several threads and one for the next of calls that do about the same."""

    def __init__(self) -> None:
        self.several = True  # what is faster, so far
        self._latest: deque[float] = deque(maxlen=TRIALS)  # s, of calls in the chosen way
        self._trials: list[float] | None = None  # s, of calls in the other way; None while it is not tried
        self._left = PERIOD  # s of calls until it is

    def next(self) -> bool:
        """Whether the next call shall have several threads."""
        return self.several == (self._trials is None)

    def took(self, several: bool, seconds: float) -> None:
        """A call took so long. One made in another way than next() said counts for nothing."""
        if several != self.next():
            return
        if self._trials is not None:
            self._trials.append(seconds)
            if len(self._trials) == TRIALS:
                self._compare(self._trials)
            return
        self._latest.append(seconds)
        self._left -= seconds
        if self._left <= 0 and len(self._latest) == TRIALS:
            self._trials = []

    def _compare(self, trials: list[float]) -> None:
        usual = min(self._latest)
        lost = sum(trials) - len(trials) * usual
        self._trials, self._left = None, max(PERIOD, lost / COST)
        if min(trials) < MARGIN * usual:
            self.several, self._left = not self.several, PERIOD
            self._latest.clear()
