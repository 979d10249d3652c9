"""The first lines of a report: the statements of the training loop that take the most time, and how sure this is."""

from __future__ import annotations

from headrace.diagnose.profile.formatting import percent, place
from headrace.diagnose.profile.profile import LEARNING, Role, Site
from headrace.diagnose.verdict.profile_facts import NOTICEABLE, Facts

UNKNOWN = 0.2  # share of the time in code of unknown or guessed role, above which a headline may say so
SHOWN, LEAST = 5, 0.03  # at most so many statements, each with at least this share of the time
SPREAD = 0.3  # a statement stands out if it takes this share of the time
WAITS = 0.2  # a report says what a statement waits for above this share of its time
ACTIVITIES = {"environments": (Role.ENVIRONMENT,), "learning": LEARNING}


def mostly(facts: Facts, activity: str) -> str:
    """The statement of the loop that takes most of an activity's time, if it is known."""
    site = _longest(facts, activity)
    if site is None:
        return ""
    where = f"{place(site)} `{site.text}`"
    if is_spread(facts, activity):
        return f", in several statements, of which {where} takes the most, {facts.percent(site.seconds)}"
    return f", mostly at {where}"


def is_spread(facts: Facts, activity: str) -> bool:
    """Tell whether no statement of the loop takes much of the time, though an activity may."""
    site = _longest(facts, activity)
    return site is not None and site.seconds < SPREAD * facts.total


def _longest(facts: Facts, activity: str) -> Site | None:
    roles = ACTIVITIES.get(activity, ())
    lines = (site for site in facts.profile.training_thread.lines if site.role in roles or site.role.label == activity)
    return max(lines, key=lambda site: site.seconds, default=None)


def meanwhile(facts: Facts) -> str:
    """The statement that a script spent most of its time at before it trained; "" where there is none."""
    thread = facts.profile.training_thread
    sites = [site for site in (*thread.lines, *thread.sites) if site.own and site.seconds > 0.5 * thread.total]
    site = next(iter(sites), None)
    return f" Most of the time went into {place(site)} `{site.text}`." if site else ""


def caveats(facts: Facts) -> str:
    """Sentences that a reader has to know before all figures."""
    said = ""
    if facts.guessed() > UNKNOWN:
        said += f" What {percent(facts.guessed())} of the time is for is likely, not sure."
    if not facts.profile.counters.get("updates_seen", 1.0) and facts.learning < NOTICEABLE * facts.total:
        said += f" No update of a network was seen for {facts.total:.0f} s."
    return said


def rows(facts: Facts) -> list[tuple[str, str, str]]:
    """(share, place and text, what it is) of the statements that take the most time; [] for a library's loop."""
    if not facts.training_began:
        return []
    lines = [site for site in facts.profile.training_thread.lines if site.role is not Role.START_UP]
    lines = [site for site in lines if site.seconds >= LEAST * facts.total][:SHOWN]
    return [(facts.percent(site.seconds), f"{place(site)}  {site.text}", _what(facts, site)) for site in lines]


def _what(facts: Facts, site: Site) -> str:
    """The state and the role of a statement, and how sure that is."""
    waited = sum(site.waits.values())
    what = next(iter(sorted(site.waits, key=lambda name: -site.waits[name])), "")
    state = f"waits for {what} {percent(waited / site.seconds)}" if waited > WAITS * site.seconds else "on a core"
    thread, seconds = facts.profile.training_thread, facts.profile.seconds
    moved = {
        Role.READING: f"{thread.read_mb / seconds:.1f} MB/s read",
        Role.SAVING: f"{thread.written_mb / seconds:.1f} MB/s written",
    }
    state += f", {moved[site.role]}" if site.role in moved else ""
    if site.role is Role.OTHER:
        return f"{state}: not known"
    return f"{state}: {facts.title(site.role)} ({'sure' if site.sure else 'likely'})"
