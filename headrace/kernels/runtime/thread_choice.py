"""Choice between several threads and one, by the times of similar calls, which are compared again and again.

The faster way depends on more than a call's size: on other programs that use the cores, and, in a virtual machine, on
which of the host's cores it has at the moment. If two cores have no cache in common, data that one wrote take five
times as long to reach the other. DQN with two layers of 256 and minibatches of 64 was 1.5 times faster on two threads
than on one with a common cache, and slower without (AMD EPYC, Zen 5). The host moved the machine from one to the other
within seconds.
"""

from __future__ import annotations

# calls of a comparison: whether each is made in the other way. They alternate, so that other programs slow both ways
TURNS = (True, False, False, True, True, False)
MARGIN = 0.95  # fraction of the time that the other way may take at most to be chosen
PERIOD = 1.0  # s of calls from one comparison to the next, at least
COST = 0.005  # of the time may be lost by trying the slower way


class ThreadChoice:
    """Chooses between several threads and one for the next of calls that do about the same.

    several: which of them is faster, so far."""

    def __init__(self) -> None:
        self.several = True
        self._took: list[float] = []  # s, of the calls of a comparison
        self._left = PERIOD  # s of calls until there is one

    def next(self) -> bool:
        """Tell whether the next call shall have several threads."""
        return self.several != (self._left <= 0 and TURNS[len(self._took)])

    def took(self, several: bool, seconds: float) -> None:
        """Note the time of a call. A call in another way than next() said does not count."""
        if several != self.next():
            return
        if self._left > 0:
            self._left -= seconds
            return
        self._took.append(seconds)
        if len(self._took) == len(TURNS):
            self._compare()

    def _compare(self) -> None:
        """Choose by the fastest call and by the median call in each way: either alone may be chance."""
        calls = [*zip(self._took, TURNS, strict=True)]
        other, usual = (sorted(took for took, own in calls if own is way) for way in (True, False))
        self._took, self._left = [], max(PERIOD, (sum(other) - len(other) * usual[0]) / COST)
        if other[0] < MARGIN * usual[0] and other[1] < MARGIN * usual[1]:
            self.several, self._left = not self.several, PERIOD
