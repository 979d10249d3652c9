"""A training thread that waits, and the work of other threads and processes meanwhile. One that works without a pause
is the bottleneck."""

from __future__ import annotations

from headrace.diagnose.profile.formatting import at, capitalized, percent
from headrace.diagnose.profile.profile import LOCK, Kind, Lane, Role
from headrace.diagnose.verdict import loop_lines
from headrace.diagnose.verdict.profile_facts import TOLD, Facts
from headrace.diagnose.verdict.remedy import HALF_AN_HOUR, Remedy, remedy
from headrace.diagnose.verdict.snippets import snippet

ALWAYS = 0.9  # a bottleneck computes, or is ready to, for more than this share of the time
WAITED = 0.1  # waits of the training thread, or work meanwhile, below this share of the time are not named
MOSTLY = 0.5  # a report names a lane's role if it takes more than this share of the lane's work


def bottleneck(facts: Facts) -> Lane | None:
    """The lane that is the bottleneck; None without one."""
    main, seconds = facts.profile.training_thread, max(facts.profile.seconds, 1e-9)
    if facts.spent(Role.WAIT) - facts.env_wait < WAITED * facts.total:
        return None
    waited = next(iter(main.waits), "a lock")
    candidates = [lane for lane in facts.profile.lanes[1:] if lane.samples and lane not in facts.env_workers]
    candidates = [lane for lane in candidates if lane.pid == main.pid or lane.parent == main.pid]
    candidates = [lane for lane in candidates if waited in ({"a lock"} if lane.pid == main.pid else TOLD)]
    busy = [lane for lane in candidates if lane.cpu_seconds + lane.queued_seconds > ALWAYS * seconds]
    busy = [lane for lane in busy if lane.share(Role.WAIT, Role.IDLE) < 1 - ALWAYS]
    return max(busy, key=lambda lane: lane.cpu_seconds, default=None)


def sentence(facts: Facts) -> str:
    """Sentence, without its full stop, on a script that waits most of the time, or waits for its bottleneck."""
    seconds = facts.spent(Role.WAIT) - facts.env_wait
    what = next(iter(facts.profile.training_thread.waits), "")
    for_what = f", for {what} for the most part" if what else ""
    where = loop_lines.mostly(facts, Role.WAIT.label)
    waits = f"The script waits for other processes or threads {facts.percent(seconds)} of the time{where}{for_what}"
    if (lane := bottleneck(facts)) is not None:
        return f"{waits}; {lane.name} is the bottleneck: it works all the time{_work(lane)}"
    return f"{waits}{_meanwhile(facts)}"


def for_the_lock(facts: Facts) -> list[str]:
    """Sentence on a thread that holds the interpreter's lock while the training thread needs it; [] without one."""
    main, seconds = facts.profile.training_thread, max(facts.profile.seconds, 1e-9)
    threads = [lane for lane in facts.profile.lanes[1:] if lane.pid == main.pid and lane.samples]
    if main.waits.get(LOCK, 0.0) < WAITED * facts.total or not threads:
        return []
    holder = max(threads, key=lambda lane: lane.cpu_seconds)
    said = f'The thread "{holder.name}" computes {percent(holder.cpu_seconds / seconds)} of the time'
    return [f"{said} and holds {LOCK}: Python runs one thread at a time. Move its work to a process."]


def _meanwhile(facts: Facts) -> str:
    """Clause on the thread or process that computes the most while the training thread waits."""
    others = [lane for lane in facts.profile.lanes[1:] if lane.samples and lane.total > 0]
    lane = max(others, key=lambda lane: lane.cpu_seconds, default=None)
    if lane is None or lane.cpu_seconds < WAITED * facts.total:
        return ", and those that were sampled do not work meanwhile"
    return f"; {lane.name} computes {facts.percent(lane.cpu_seconds)} of the time{_work(lane)}"


def _work(lane: Lane) -> str:
    """The place and the role of a lane's work: ", mostly at train.py:12 (reading files)"."""
    site = max(lane.sites, key=lambda site: (site.role is not Role.WAIT, site.seconds), default=None)
    working = {role: seconds for role, seconds in lane.seconds.items() if role not in (Role.WAIT, Role.OTHER)}
    role = max(working, key=working.__getitem__, default=None)
    # a thread is seen where it lets go of Python's lock, and not evenly
    needed = ALWAYS if lane.kind is Kind.THREAD else MOSTLY
    known = role is not None and working[role] > needed * (lane.total - lane.spent(Role.WAIT))
    return at(site) + (f" ({role.label})" if known and role else "")


def faster(facts: Facts) -> Remedy | None:
    """Less work for the bottleneck, or more processes for it."""
    lane = bottleneck(facts)
    if lane is None:
        return None
    why = (
        f"{capitalized(lane.name)} works all the time{_work(lane)}, and the training thread waits for it "
        f"{percent(facts.share(Role.WAIT))} of the time."
    )
    most = facts.total - min(facts.profile.training_thread.cpu_seconds, facts.total)
    title = f"Give {lane.name} less to do, or share its work among processes"
    return remedy(facts, title, why, HALF_AN_HOUR, snippet(facts, "bottleneck"), most=most)
