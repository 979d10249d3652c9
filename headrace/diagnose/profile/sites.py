"""The lines that take the most time: the script's own, or those of a library that runs the training loop for it."""

from __future__ import annotations

from collections import Counter, defaultdict

from headrace.diagnose.profile import source_context
from headrace.diagnose.profile.profile import Role, Site
from headrace.diagnose.profile.roles import Classifier, title
from headrace.diagnose.profile.source_context import PACKAGES, is_own
from headrace.diagnose.profile.spool import Place, Sample, Stack
from headrace.diagnose.profile.training_loop import Statement

MOST = 40  # sites of a lane
LEAST = 0.001  # share of the lane's time
ONE_ROLE = 0.8  # share of a statement's time in its largest role, above which it is not divided
FOUNDATIONS = ("torch", "numpy", "importlib", "threading", "multiprocessing", "contextlib", "runpy", "abc", "typing")


def find(samples: list[Sample], classifier: Classifier) -> list[Site]:
    """The lines that take the most time, the most first."""
    spent: defaultdict[tuple, float] = defaultdict(float)
    total = 0.0
    for sample in samples:
        role, detail = classifier.classify(sample.stack)
        place = _place(sample.stack, role, detail)
        total += sample.seconds
        key = role, place.code.file, place.line, place.code.name, source_context.call_at(place), is_own(place.code.file)
        spent[key] += sample.seconds
    ranked = sorted(spent.items(), key=lambda item: -item[1])[:MOST]
    return [
        Site(role, file, line, function, call, round(seconds, 4), source_context.text_at(file, line), own)
        for (role, file, line, function, call, own), seconds in ranked
        if seconds > LEAST * total
    ]


def of_loop(samples: list[Sample], classifier: Classifier) -> list[Site]:
    """The statements of the script's training loop that take the most time, the most first; [] without one."""
    found: dict[tuple, Site] = {}
    chosen = _chosen(samples, classifier)
    for sample in samples:
        if sample.stack not in chosen:
            continue
        role, sure = classifier.classify(sample.stack)[0], not classifier.is_guessed(sample.stack)
        file, line, text = place = chosen[sample.stack]
        site = found.setdefault((role, sure, *place), Site(role, file, line, "", "", 0.0, text, True, sure))
        site.seconds = round(site.seconds + sample.seconds, 4)
        if sample.waits_for:
            site.waits[sample.waits_for] = round(site.waits.get(sample.waits_for, 0.0) + sample.seconds, 4)
    return sorted(found.values(), key=lambda site: -site.seconds)[:MOST]


def _chosen(samples: list[Sample], classifier: Classifier) -> dict[Stack, Statement]:
    """The statement to which each stack within the loop is counted: the loop's own statement, or a part of it if the
    statement has several roles."""
    places: dict[Stack, list[Statement]] = {}
    spent: defaultdict[Statement, Counter[Role]] = defaultdict(Counter)
    for sample in samples if classifier.loop else ():
        if sample.stack not in places:
            places[sample.stack] = classifier.loop.statements(sample.stack)  # type: ignore[union-attr]
        for outer in places[sample.stack][:1]:
            spent[outer][classifier.classify(sample.stack)[0]] += sample.seconds  # type: ignore[assignment]
    plain = {outer for outer, each in spent.items() if max(each.values()) > ONE_ROLE * each.total()}
    return {stack: both[0] if both[0] in plain else both[1] for stack, both in places.items() if both}


def _place(stack: Stack, role: Role, detail: str) -> Place:
    """The innermost place outside torch, numpy and Python itself; of an evaluation, the place that calls it."""
    if role is Role.EVALUATION:
        inside = max((index for index, place in enumerate(stack) if title(place.code) == detail), default=-1)
        return stack[min(inside + 1, len(stack) - 1)]
    for place in stack:
        foundation = place.code.module.partition(".")[0] in FOUNDATIONS or place.code.file.startswith("<")
        if is_own(place.code.file) or (PACKAGES.search(place.code.file) and not foundation):
            return place
    return stack[-1]
