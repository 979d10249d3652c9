"""Shares of a planted script's parts by its own clock and by a diagnosis."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from headrace.diagnose.profile.profile import LEARNING, Profile, Role
from headrace.diagnose.verdict.profile_facts import Facts

LEARN = (*LEARNING, Role.DATA)  # the clocks of SB3's scripts go around the whole of train()
PARTS = {  # part, as the clocks name it -> the roles that it may be seen as
    "environment": (Role.ENVIRONMENT,),
    "inference": (Role.INFERENCE,),
    "learn": LEARNING,
    "train": LEARN,
    "logging": (Role.LOGGING,),
    "saving": (Role.SAVING,),
    "data": (Role.DATA,),
    "send": (Role.DATA,),
    "evaluation": (Role.EVALUATION,),
    "wait": (Role.WAIT,),
    "environment and wait": (Role.ENVIRONMENT, Role.WAIT),
}


def truth(path: Path, begin: float, end: float) -> dict[str, float]:
    """Part -> share of the time between two moments (Unix time), as a script's own clock read it."""
    history = [(moment, spent) for moment, spent in json.loads(path.read_text()) if begin <= moment <= end]
    first, last = history[0][1], history[-1][1]
    spent = {part: seconds - first.get(part, 0.0) for part, seconds in last.items()}
    total = sum(spent.values())
    return {part: seconds / total for part, seconds in spent.items()}


def seen(profile: Profile, part: str) -> float:
    """The share of a part in the training thread's time without start-up, which on a busy machine outlasts `skip`."""
    return Facts(profile).share(*PARTS[part])


def differences(profile: Profile, path: Path) -> Mapping[str, tuple[float, float]]:
    """Part -> (share by the script's clock, share by the diagnosis), of the parts that the clock knows.

    Parts of one role go together.
    """
    begin = profile.started + profile.skipped
    known = truth(path, begin, begin + profile.seconds)
    together: dict[tuple[Role, ...], list[str]] = {}
    for part in known:
        if part in PARTS:
            together.setdefault(PARTS[part], []).append(part)
    return {
        " and ".join(parts): (sum(known[part] for part in parts), seen(profile, parts[0]))
        for parts in together.values()
    }
