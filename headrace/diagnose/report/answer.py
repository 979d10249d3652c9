"""The answer of a report: a remedy, its gain, and its command or code. It precedes all figures."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

from headrace.diagnose.profile.formatting import times
from headrace.diagnose.profile.profile import Profile
from headrace.diagnose.record.trials import Trial, Trials
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import Verdict, gain_text


@dataclass(frozen=True)
class Answer:
    """One sentence, the script's present speed, and the command or code of the first remedy."""

    sentence: str
    speed: str  # "951 steps/s"; "" if the learner does not count its steps
    title: str = ""  # of the first remedy; "" where there is none
    gain: str = ""
    command: str = ""  # or code


def answer(facts: Facts, verdict: Verdict, trials: Trials | None = None) -> Answer:
    """A measured gain if there is one, otherwise the first remedy with a predicted gain."""
    speed = speed_text(facts)
    if trials and trials.best:
        best = trials.best
        title, command = f"Set {best.change}", f"{best.change} {command_line(facts.profile)}"
        sentence = f"With {best.change} the script is {times(best.gain)} as fast: measured. {verdict.headline}"
        return Answer(sentence, speed, title, measured(best), command)
    tried = ""
    if trials and trials.found:
        tried = f" Nothing that was tried gains more than its uncertainty: {'; '.join(map(outcome, trials.found))}."
    first = next((remedy for remedy in verdict.remedies if remedy.gain), None)
    if first is None:
        return Answer(verdict.headline + tried, speed)
    return Answer(verdict.headline + tried, speed, first.title, f"speedup {gain_text(first)}", first.change)


def measured(trial: Trial) -> str:
    """ "1.31x, between 1.25x and 1.38x in 3 turns"."""
    return f"{times(trial.gain)}, between {times(trial.low)} and {times(trial.high)} in {len(trial.rates)} turns"


def outcome(trial: Trial) -> str:
    """One trial in words."""
    return f"{trial.change} {measured(trial)}"


def command_line(profile: Profile) -> str:
    """The command, with the names of programs instead of their paths."""
    first, *rest = profile.command or [""]
    return shlex.join([Path(first).name if Path(first).is_absolute() else first, *rest])


def speed_text(facts: Facts) -> str:
    """Environment steps per second, if the learner counts them."""
    rate = facts.profile.counters.get("env_rate")
    return f"{rate:,.0f} steps/s" if rate else ""


def summary(facts: Facts, verdict: Verdict, trials: Trials | None = None) -> dict[str, object]:
    """The verdict and its figures, for JSON."""
    shares = (
        {str(role): seconds / facts.total for role, seconds in facts.seconds.items()} if facts.profile.lanes else {}
    )
    learning = sum(share for role, share in shares.items() if role.startswith("learning."))
    return {
        "command": facts.profile.command,
        "started": facts.profile.started,
        "machine": asdict(facts.profile.machine),
        "seconds": facts.total if facts.profile.lanes else 0.0,
        "steps_per_second": facts.profile.counters.get("env_rate"),
        "shares": shares | {"learning": learning},
        "ratio": facts.ratio if facts.profile.lanes else None,
        "round_trip": facts.round_trip,
        "answer": asdict(answer(facts, verdict, trials)),
        "trials": asdict(trials) if trials else None,
        **asdict(verdict),
    }
