"""The result of one check of an environment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

ADVICE = {
    "observations": "let observation_space describe what step() and reset() return, or return what it describes",
    "rewards": "return a finite number: a NaN or infinite reward ruins the weights of the policy",
    "endings": "return terminated and truncated as bools; at a time limit truncated=True, not terminated",
}
# added to the seed until an episode differs: of an environment that draws one of two numbers, many are the same
OTHER_SEEDS = range(1, 9)


class Finding(NamedTuple):
    """One result. outcome: "wrong" must be fixed; a "note" is for the user to judge."""

    check: str
    outcome: Literal["ok", "note", "wrong"]
    found: str
    advice: str = ""  # the remedy


def findings_of(errors: Mapping[str, str], ok: Mapping[str, str]) -> list[Finding]:
    """ "wrong" for each check in `errors` (check -> what is wrong), "ok" for the other checks of `ok`."""
    found = [
        Finding(check, "wrong", errors[check], ADVICE[check]) if check in errors else Finding(check, "ok", text)
        for check, text in ok.items()
    ]
    return found + [Finding(check, "wrong", text) for check, text in errors.items() if check not in ok]


def another_seed(same: Iterable[bool], steps: int) -> Finding:
    """Report whether other seeds give another episode. same: whether each gives the same one, computed as needed."""
    if all(same):
        found = f"{len(OTHER_SEEDS)} other seeds give the same {steps:,} steps: nothing here seems random"
        return Finding("another seed", "note", found)
    return Finding("another seed", "ok", "gives another episode")


def raised(what: str, error: Exception) -> Finding:
    """Report an exception of the environment. what: the call that raised it."""
    notes = "; ".join(getattr(error, "__notes__", []))
    advice = "an exception ends a training run, or with on_error='restart' the episode: fix its cause"
    return Finding("exceptions", "wrong", f"{what} raised {type(error).__name__}: {error} {notes}".rstrip(), advice)
