"""A thread that holds the interpreter's lock while the training thread needs it."""

from __future__ import annotations

from headrace.diagnose.profile.formatting import percent
from headrace.diagnose.profile.profile import Kind, Role
from headrace.diagnose.verdict.profile_facts import Facts

BUSY = 0.3  # share of the time for which a thread must compute to be named
HELD_UP = 0.8  # share of its computing time that the training thread is on a core; above, nobody holds it up
ONE_CORE = 1.25  # cores that threads use together which take turns; threads of native code use more


def note(facts: Facts) -> str:
    """A sentence that names the thread; "" where there is none."""
    main = facts.profile.training_thread
    others = [lane for lane in facts.profile.lanes if lane.pid == main.pid and lane is not main]
    threads = [lane for lane in others if lane.kind in (Kind.THREAD, Kind.MAIN)]
    hog = max(threads, key=lambda lane: lane.cpu_seconds, default=None)
    seconds = max(facts.profile.seconds, 1e-9)
    computing = [role for role in Role if role not in (Role.WAIT, Role.IDLE, Role.START_UP)]
    if hog is None or hog.cpu_seconds < BUSY * seconds or facts.on_cpu(*computing) + facts.queued([main]) > HELD_UP:
        return ""
    if sum(lane.cpu_seconds for lane in (main, *threads)) > ONE_CORE * seconds:
        return ""
    return (
        f'The thread "{hog.name}" computes {percent(hog.cpu_seconds / seconds)} of the time and holds Python\'s lock, '
        "for which the training thread waits: Python runs one thread at a time. Move its work to a process."
    )
