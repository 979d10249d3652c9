"""Waiting that samples do not show: for the interpreter's lock, and where a waiting thread could not be sampled.

While another thread holds the lock, the samples show a line that computes, though the thread has no core.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.diagnose.profile.profile import LOCK, Kind, Lane, Role

LEAST = 0.1  # share of the time for which other threads must compute
RESTING = (Role.WAIT, Role.IDLE, Role.START_UP)


def count(lanes: Sequence[Lane]) -> None:
    """Count the time for which other threads of its process hold the lock as waiting, in the first lane's figures."""
    main, total = lanes[0], max(lanes[0].total, 1e-9)
    others = [lane for lane in lanes[1:] if lane.pid == main.pid]
    threads = [lane for lane in others if lane.samples]
    native = sum(lane.cpu_seconds for lane in others if lane.kind in (Kind.POOL, Kind.AUTOGRAD))
    computed = sum(lane.cpu_seconds for lane in threads)
    off_core = _off_core(main)
    if computed < LEAST * total or native > LEAST * total or not off_core:
        return
    resting = main.spent(*RESTING)
    elsewhere = max(sum(main.waits.values()) - main.waits.get("a lock", 0.0) - resting, 0.0)  # files, devices
    held = min(sum(off_core.values()) - main.queued_seconds - elsewhere, computed)
    if held < LEAST * total:
        return
    for role, seconds in off_core.items():
        kept = max(1 - held * seconds / sum(off_core.values()) / max(main.seconds.get(role, 0.0), 1e-9), 0.0)
        _scale(main, role, kept)
    main.seconds[Role.WAIT] = main.seconds.get(Role.WAIT, 0.0) + total - main.total
    main.waits[LOCK] = held
    main.waits["a lock"] = max(main.waits.get("a lock", 0.0) - held, 0.0)
    main.waits = dict(sorted(main.waits.items(), key=lambda item: -item[1]))
    main.seconds = dict(sorted(main.seconds.items(), key=lambda item: -item[1]))


def count_unseen(lane: Lane, unseen: dict[str, float]) -> None:
    """Count blocked time that the kernel recorded, but that samples do not show, as waiting whose role is likely, not
    sure.

    unseen: object that was waited for -> seconds. All other roles keep their proportions in the samples.
    """
    total, lost = lane.total, sum(unseen.values())
    if not lost:
        return
    for role in list(lane.seconds):
        _scale(lane, role, 1 - lost / total)
    for spent in (lane.seconds, lane.guessed):
        spent[Role.WAIT] = spent.get(Role.WAIT, 0.0) + lost
    for what, seconds in unseen.items():
        lane.waits[what] = lane.waits.get(what, 0.0) + seconds
    lane.waits = dict(sorted(lane.waits.items(), key=lambda item: -item[1]))
    lane.seconds = dict(sorted(lane.seconds.items(), key=lambda item: -item[1]))


def _off_core(lane: Lane) -> dict[Role, float]:
    """Role, other than waiting and start-up -> seconds without a core."""
    found: dict[Role, float] = {}
    for span in lane.spans:
        if span.role not in RESTING:
            found[span.role] = found.get(span.role, 0.0) + (1 - span.on_cpu) * (span.end - span.start)
    return {role: seconds for role, seconds in found.items() if seconds > 0}


def _scale(lane: Lane, role: Role, kept: float) -> None:
    for spent in (lane.seconds, lane.guessed):
        if role in spent:
            spent[role] *= kept
    for site in (*lane.sites, *lane.lines):
        if site.role is role:
            site.seconds = round(site.seconds * kept, 4)
            site.waits = {what: min(seconds, site.seconds) for what, seconds in site.waits.items()}
