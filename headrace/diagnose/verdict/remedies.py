"""The remedies for a profile: what each can gain at most, and the change that does it.

A remedy that saves s of T seconds gains T / (T - s). Its bound is the gain if everything it affects took no time
(Amdahl 1967). Where a profile cannot tell how much is saved, only the bound is given.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from headrace.core.source_text import parse
from headrace.diagnose.profile.formatting import at
from headrace.diagnose.profile.profile import Role
from headrace.diagnose.verdict import env_remedies, network_remedies, waiting
from headrace.diagnose.verdict.profile_facts import SLEEPS, Facts
from headrace.diagnose.verdict.remedy import DAY, HALF_AN_HOUR, MINUTE, MINUTES, Remedy, remedy, saved_waiting
from headrace.diagnose.verdict.snippets import instead, snippet, without

LEAST_GAIN = 1.15  # remedies with a lower gain or bound are not listed: predictions are not so exact
COLD_AFTER_FILES = 0.1  # cold caches after a file or an evaluation cost at most this share of all other time
GUESSED = 0.2  # no gain is predicted if the role of more than this share of an activity's time is guessed
ANSWERED = ("a socket", "a pipe", "several files", "a message queue")  # objects through which answers come
WAITED = 0.05  # caches count as cold after waits for a disk that take more than this share of the time
# weight of the saved share of the time, by the effort of a remedy, to sort remedies without a prediction
WORTH = {MINUTE: 2.0, MINUTES: 2.0, HALF_AN_HOUR: 1.0, DAY: 0.5}
RARER = 10  # "ten times less often"
LESS_OFTEN = {  # role -> title, what was measured
    Role.LOGGING: ("Log ten times less often", "goes into logging"),
    Role.SAVING: ("Save ten times less often", "goes into saving"),
    Role.EVALUATION: ("Evaluate ten times less often", "training stops while the policy is evaluated"),
    Role.GARBAGE: ("Collect garbage ten times less often", "goes into Python's garbage collection"),
    Role.SIDE: ("Do the side work ten times less often", "goes into what gives nothing that the loop uses"),
}
ONCE = {  # the same for work that need not be done in each iteration of the loop
    Role.REMADE: ("Make once what each turn of the loop makes again", "goes into building the same again"),
    Role.READING: ("Keep in memory what is read again and again", "goes into reading files"),
}
# After compiling, caches are cold and first calls are slow: a script's other 8 % became 4 %. At most so much of the
# other time is saved with it, and of its own time
COLD_AFTER_MAKING, OF_MAKING = 0.6, 0.1


def remedies(facts: Facts) -> list[Remedy]:
    """All remedies with a gain, sorted by predicted gain, the largest first. Remedies without a prediction are last."""
    found = [remedy for rule in RULES if (remedy := rule(facts)) is not None and remedy.bound >= LEAST_GAIN]
    found = [remedy for remedy in found if remedy.gain is None or remedy.gain >= LEAST_GAIN]
    if (first := waiting.faster(facts)) is not None:  # other savings would only lengthen the wait
        return [first, *(replace(remedy, gain=None) for remedy in found)]
    return sorted(found, key=lambda remedy: (-(remedy.gain or 0.0), -remedy.saved * WORTH[remedy.effort]))


def _sleep(facts: Facts) -> Remedy | None:
    # sleeping inside an environment or a wrapper counts as environment, but is removed as easily
    sites = [site for site in facts.profile.training_thread.sites if site.call in SLEEPS or site.role is Role.IDLE]
    inside = sum(site.seconds for site in sites if site.role is Role.ENVIRONMENT)
    spent = facts.spent(Role.IDLE) + inside
    if spent < 0.03 * facts.total:
        return None
    site = max(sites, key=lambda site: site.seconds, default=None)
    why = f"The script sleeps {facts.percent(spent)} of the time{at(site)}."
    change = without(site, "look for time.sleep(), a frame-rate limit or render_mode='human'")
    most, likely = saved_waiting(facts, spent)
    sampled = 0.0 if facts.knows_waiting else spent
    return remedy(facts, "Remove the sleeping", why, MINUTES, change, most=most, likely=likely, measured=sampled)


def _less_often(facts: Facts, role: Role) -> Remedy | None:
    if facts.share(role) < 0.03:
        return None
    (title, what), spent = LESS_OFTEN[role], facts.spent(role)
    why = f"{facts.percent(spent)} of the time {what}{at(facts.site(role))}."
    most, likely = spent + COLD_AFTER_FILES * (facts.total - spent), spent * (1 - 1 / RARER)
    sampled, waited = spent, spent * max(1 - facts.on_cpu(role) - facts.queued([facts.profile.training_thread]), 0.0)
    if facts.knows_waiting and waited > WAITED * facts.total:  # for a disk
        most, likely = saved_waiting(facts, spent, waited)
        likely -= spent / RARER
        sampled = spent - waited
    known = None if facts.guessed(role) > GUESSED else likely
    return remedy(
        facts, title, why, MINUTES, snippet(facts, role.value), most=most, likely=known, measured=sampled, saves=[role]
    )


def _once(facts: Facts, role: Role) -> Remedy | None:
    if facts.share(role) < 0.03:
        return None
    (title, what), spent = ONCE[role], facts.spent(role)
    why = f"{facts.percent(spent)} of the time {what}{at(facts.loop_line(role))}."
    change = instead(facts.loop_line(role), snippet(facts, role.value))
    most = spent + min(COLD_AFTER_MAKING * (facts.total - spent), OF_MAKING * spent)
    likely = None if facts.guessed(role) > GUESSED else spent
    return remedy(facts, title, why, HALF_AN_HOUR, change, most=most, likely=likely, measured=spent, saves=[role])


def _data(facts: Facts) -> Remedy | None:
    if facts.share(Role.DATA) < 0.15:
        return None
    site, spent = facts.site(Role.DATA), facts.spent(Role.DATA)
    title, code = "Store the data in preallocated arrays", "allocate_once"
    what = "goes into buffers, batches and conversions"
    if site is not None and _sums_up(site.text):
        title, code = "Compute with whole arrays instead of a loop in Python", "whole_arrays"
        what = "goes into data, most of it into arithmetic in a loop, one number at a time"
    why, change = f"{facts.percent(spent)} of the time {what}{at(site)}.", instead(site, snippet(facts, code))
    return remedy(facts, title, why, HALF_AN_HOUR, change, most=spent, saves=[Role.DATA])


def _sums_up(text: str) -> bool:
    """Tell whether a line adds a computed number to a variable: `v += float(x) ** 2 * k`, also within its own loop."""
    with suppress(SyntaxError):
        sums = (node for node in ast.walk(parse(text.strip())) if isinstance(node, ast.AugAssign))
        return any(isinstance(node.target, ast.Name) and isinstance(node.value, ast.BinOp) for node in sums)
    return False


def _waits(facts: Facts) -> Remedy | None:
    """Several requests at once instead of one after another, to processes other than the environments'."""
    waits = facts.profile.training_thread.waits
    spent = min(sum(waits.get(what, 0.0) for what in ANSWERED), facts.spent(Role.WAIT))
    others = (lane for lane in facts.profile.lanes if lane.pid != facts.profile.training_thread.pid)
    computing = max((lane.cpu_seconds + lane.queued_seconds for lane in others), default=0.0)
    if spent < 0.15 * facts.total or facts.env_workers or computing > 0.5 * spent:  # it waits for what they compute
        return None
    site = facts.loop_line(Role.WAIT)
    why = (
        f"{facts.percent(spent)} of the time the script waits for answers{at(site)}, and computes nothing meanwhile. "
        "What does not depend on an answer can be asked for, or computed, before it comes."
    )
    change = instead(site, snippet(facts, "at_once"))
    return remedy(facts, "Ask for several answers at once", why, HALF_AN_HOUR, change, most=spent)


RULES: tuple[Callable[[Facts], Remedy | None], ...] = (
    _sleep,
    *(partial(_less_often, role=role) for role in LESS_OFTEN),
    *(partial(_once, role=role) for role in ONCE),
    _data,
    _waits,
    *env_remedies.RULES,
    *network_remedies.RULES,
)
