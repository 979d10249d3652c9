"""Finds the thread that runs the training loop, among all processes of a script, and when training began."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from headrace.diagnose.profile.profile import LEARNING, Kind, Lane, Role

TRAINING = (Role.ENVIRONMENT, Role.INFERENCE, *LEARNING, Role.EVALUATION)  # roles of the training loop
GRADIENTS = (Role.BACKWARD, Role.OPTIMIZER)
LEAST = 0.1  # a trainer spends at least this share of the time on gradients that the largest trainer spends
AT_ALL = 0.02  # a trainer spends more than this share of its own time on gradients
SOON = 2.0  # s from the beginning of training, of which ...
GOING_ON = 0.05  # ... this share must belong to the training loop; also the least share of a child that acts
UPDATES, WITHIN = 3, 10.0  # or UPDATES computations of gradients within WITHIN s: short updates, long waits


def trainers(lanes: Sequence[Lane]) -> list[Lane]:
    """The threads that learn, one for each process, sorted by their time for gradients; [] where none was seen."""
    spent: dict[int, list[Lane]] = defaultdict(list)
    for lane in lanes:
        if lane.samples and lane.share(*GRADIENTS) > AT_ALL:
            spent[lane.pid].append(lane)
    found = [max(each, key=lambda lane: lane.spent(*GRADIENTS)) for each in spent.values()]
    found.sort(key=lambda lane: -lane.spent(*GRADIENTS))
    return [lane for lane in found if lane.spent(*GRADIENTS) >= LEAST * found[0].spent(*GRADIENTS)]


def training_thread(lanes: Sequence[Lane], root: int) -> Lane | None:
    """The thread that runs the training loop; None without sampled threads.

    It is the script's main thread, if that takes part in training. Otherwise it is another thread of the same process,
    however long that thread waits, or the child process that learns, as under `accelerate launch`. Where nothing has
    been learned yet, it is the child process that acts.
    """
    own = [lane for lane in lanes if lane.pid == root] or list(lanes)
    if not own:
        return None
    main = next((lane for lane in own if lane.kind is Kind.MAIN), own[0])
    best = max(own, key=lambda lane: lane.spent(*TRAINING))
    learning = trainers(lanes)
    learns_alone = main.spent(*GRADIENTS) > best.spent(*GRADIENTS)  # and waits for data that others collect
    if main.share(*TRAINING) >= 0.1 or learns_alone:
        return main
    if best.share(*TRAINING) > 0.3:
        return best
    if behind := [lane for lane in learning if lane.pid == root and lane is not main]:
        return behind[0]
    if learning and all(lane.pid != root for lane in learning):
        return learning[0]
    acting = max(lanes, key=lambda lane: lane.spent(Role.INFERENCE, *LEARNING))
    elsewhere = (
        not learning
        and not main.spent(*GRADIENTS)
        and acting.pid != root
        and acting.share(Role.INFERENCE, *LEARNING) > GOING_ON
    )
    return acting if elsewhere else main


def began(lane: Lane) -> float | None:
    """Time at which the training loop began, in s since the window began; None if it did not, as while data are loaded.

    It is the first time after which the loop takes more than GOING_ON of the next SOON s, or computes gradients
    repeatedly.
    """
    updates = [span.start for span in lane.spans if span.role in GRADIENTS]
    spans = [span for span in lane.spans if span.role in TRAINING]
    for first, span in enumerate(spans):
        inside = 0.0
        for later in spans[first:]:
            if later.start >= span.start + SOON:
                break
            inside += min(later.end, span.start + SOON) - later.start
        following = [start for start in updates if span.start <= start < span.start + WITHIN]
        if inside > GOING_ON * SOON or len(following) >= UPDATES:
            return span.start
    return None
