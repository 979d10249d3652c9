"""What could be done about a profile, what each thing can gain at most, and the change that does it.

A remedy that saves s of T seconds gains T / (T - s); its bound is what it gains where all it touches becomes free
(Amdahl 1967). Where a profile does not tell how much is saved, the gain is left open and only the bound is said.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from headrace.diagnose.profile.formatting import at, percent
from headrace.diagnose.profile.profile import Role
from headrace.diagnose.verdict import env_remedies, network_remedies, snippets
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.remedy import (
    HALF_AN_HOUR,
    MINUTE,
    MINUTES,
    WAKING,
    WAKING_AT_MOST,
    Remedy,
    remedy,
    with_the_rest,
)

WORTH_SAYING = 1.05  # remedies whose bound is lower are not mentioned
WARMER = 0.1  # of all else may go with a file or an evaluation, after which it found its caches cold
TRIED = 1.3  # a gain that is predicted goes before whatever has to be tried, if it is larger than this
RARER = 10  # "ten times less often"


def remedies(facts: Facts) -> list[Remedy]:
    """Those worth saying, the most promising first."""
    found = [remedy for rule in RULES if (remedy := rule(facts)) is not None and remedy.bound >= WORTH_SAYING]
    found = [remedy for remedy in found if remedy.gain is None or remedy.gain >= WORTH_SAYING]
    return sorted(found, key=lambda remedy: (-_promise(remedy), -remedy.bound))


def _promise(remedy: Remedy) -> float:
    """The gain; or, where it is tried in minutes, the middle between none and the bound, within reason."""
    if remedy.gain:
        return remedy.gain
    return min(math.sqrt(remedy.bound), TRIED) if remedy.cost in (MINUTE, MINUTES) else 1.0


def _sleep(facts: Facts) -> Remedy | None:
    # sleeping inside an environment or a wrapper counts as theirs, but is as easily taken out
    sites = [site for site in facts.profile.driver.sites if site.call == "sleep" or site.role is Role.IDLE]
    inside = sum(site.seconds for site in sites if site.role is Role.ENVIRONMENT)
    spent = facts.spent(Role.IDLE) + inside
    if spent < 0.03 * facts.base:
        return None
    site = max(sites, key=lambda site: site.seconds, default=None)
    why = f"{percent(spent / facts.base)} of the time the script sleeps{at(site)}."
    change = snippets.without(site, "look for time.sleep(), a frame-rate limit or render_mode='human'")
    most, likely = with_the_rest(facts, spent, WAKING_AT_MOST), with_the_rest(facts, spent, WAKING)
    return remedy(facts, "Take the sleeping out", why, MINUTES, change, most=most, likely=likely)


def _logging(facts: Facts) -> Remedy | None:
    return _rarer(facts, Role.LOGGING, "Log ten times less often", "goes into logging", snippets.logging)


def _saving_models(facts: Facts) -> Remedy | None:
    return _rarer(facts, Role.SAVING, "Save ten times less often", "goes into saving", snippets.saving)


def _evaluation(facts: Facts) -> Remedy | None:
    what = "training stands still while the policy is evaluated"
    return _rarer(facts, Role.EVALUATION, "Evaluate ten times less often", what, snippets.evaluation)


def _rarer(facts: Facts, role: Role, title: str, what: str, change: Callable[[Facts], str]) -> Remedy | None:
    if facts.share(role) < 0.03:
        return None
    spent, site = facts.spent(role), facts.site(role)
    why = f"{percent(facts.share(role))} of the time {what}{at(site)}."
    most, likely = with_the_rest(facts, spent, WARMER), spent * (1 - 1 / RARER)
    return remedy(facts, title, why, MINUTES, change(facts), most=most, likely=likely)


def _data(facts: Facts) -> Remedy | None:
    if facts.share(Role.DATA) < 0.15:
        return None
    site = facts.site(Role.DATA)
    why = f"{percent(facts.share(Role.DATA))} of the time goes into buffers, batches and conversions{at(site)}."
    title = "Keep the data in preallocated arrays"
    return remedy(facts, title, why, HALF_AN_HOUR, snippets.data(site), most=facts.spent(Role.DATA), likely=None)


RULES: tuple[Callable[[Facts], Remedy | None], ...] = (
    _sleep,
    _logging,
    _saving_models,
    _evaluation,
    _data,
    env_remedies.processes,
    env_remedies.straggler,
    env_remedies.one_process,
    env_remedies.batched_inference,
    env_remedies.kernel,
    network_remedies.fused_optimizer,
    network_remedies.larger_minibatches,
    network_remedies.threads,
    network_remedies.leave_the_gpu,
    network_remedies.fewer_copies,
    network_remedies.use_a_gpu,
)
