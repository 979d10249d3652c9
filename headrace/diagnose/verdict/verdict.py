"""The verdict on a profile in plain English: where the time goes, what can be gained at most, and the limitations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.diagnose.profile.formatting import at, capitalized, count, duration, enumeration, percent, place, times
from headrace.diagnose.profile.profile import LEARNING, Ending, Lane, Profile, Role
from headrace.diagnose.verdict import gpu_notes, loop_lines, waiting
from headrace.diagnose.verdict.env_remedies import slowest
from headrace.diagnose.verdict.loop_lines import UNKNOWN
from headrace.diagnose.verdict.profile_facts import FEW_UNSURE, NOTICEABLE, Facts, binned
from headrace.diagnose.verdict.remedies import remedies
from headrace.diagnose.verdict.remedy import UNBOUNDED, Remedy

LITTLE_GAIN = 1.15  # below, a gain is not worth a headline
ENOUGH_SAMPLES = 150  # with fewer, there is no verdict, unless it is clear which few activities take the most time
FEWEST_SAMPLES = 20  # with fewer, there is no verdict at all
FEW_PHASES = 5  # phases of learning; with fewer, the shares depend on where the window began
MOSTLY_LEARNING = 0.95  # ... unless learning takes more than this share of the time
TELLING = 2.0  # the bound of a remedy without a predicted gain is given only below this
COMPUTING = (Role.ENVIRONMENT, Role.INFERENCE, Role.DATA, *LEARNING)
SOME_WORK = 0.1  # a thread that works for more than this share of its time may do a part of the training
TOGETHER = 3  # most parts that a headline names together, where the largest is not known
SINGLE_ROLES = [role for role in Role if role not in (Role.ENVIRONMENT, *LEARNING, Role.WAIT, Role.START_UP)]


@dataclass(frozen=True)
class Verdict:
    """The text of a report."""

    headline: str  # one sentence
    where: str  # where the time goes
    bounds: str  # what can be gained
    notes: list[str] = field(default_factory=list)  # other observations
    remedies: list[Remedy] = field(default_factory=list)  # the most promising first
    limitations: list[str] = field(default_factory=list)  # how exact the figures are, and what was not measured


def judge(facts: Facts) -> Verdict:
    """The verdict on a profile. If nothing was sampled, it only says so."""
    failed = facts.profile.exit.ending in (Ending.EXCEPTION, Ending.SIGNAL) and not facts.training_began
    if facts.profile.lanes and (failed or facts.total < 1e-3):
        return _without_training(facts)
    if not facts.profile.lanes:
        return Verdict(
            f"No samples were taken. {ending(facts.profile)}",
            f"No thread was sampled in the window of {facts.profile.seconds:.1f} s.",
            "Try a longer --seconds, or a shorter --skip.",
            limitations=list(facts.profile.limitations),
        )
    if facts.several_trainers:
        return _of_several(facts)
    if _has_not_begun(facts):
        return _without_training(facts)
    found = [] if _too_few(facts) else remedies(facts)
    return Verdict(
        _headline(facts, found), _where(facts), _bounds(facts, found), _notes(facts), found, _limitations(facts)
    )


def _too_few(facts: Facts) -> bool:
    """Tell whether there are too few samples to tell what takes the most time."""
    clear = facts.samples >= FEWEST_SAMPLES and len(_nearly_largest(facts)) <= TOGETHER
    return facts.samples < ENOUGH_SAMPLES and not clear


def _has_not_begun(facts: Facts) -> bool:
    """Tell whether a window ended before the training began, as while data are loaded."""
    if facts.samples < FEWEST_SAMPLES and facts.share(*COMPUTING) > facts.share(Role.DATA):
        return False  # it may have begun at the end of the window
    others = [lane for lane in facts.profile.lanes[1:] if lane.samples]
    nobody = bool(others) and not any(map(_works, others)) and facts.share(Role.IDLE) < 0.5
    waits = facts.share(Role.WAIT, Role.IDLE) >= 0.5 and not nobody
    known = (bool(facts.counter("before_updates")) or facts.share(Role.OTHER) < 0.5) and not waits
    stopped = facts.profile.exit.ending in (Ending.TIME_LIMIT, Ending.INTERRUPT)
    sets_up_again = facts.share(Role.REMADE) > 0.5 and not facts.counter("before_updates")
    return not facts.training_began and not sets_up_again and known and stopped


def _works(lane: Lane) -> bool:
    """Tell whether a thread does anything besides starting, waiting and sleeping."""
    return 1 - lane.share(Role.START_UP, Role.WAIT, Role.IDLE) > SOME_WORK and lane.total > 0


def _without_training(facts: Facts) -> Verdict:
    profile = facts.profile
    seconds = f"{profile.skipped + profile.seconds:.0f} s"
    failed = profile.exit.ending in (Ending.EXCEPTION, Ending.SIGNAL) or bool(profile.exit.code)
    nothing = "nothing was learned" if facts.environment else "no environment was stepped, and nothing was learned"
    return Verdict(
        f"The script did not train. {ending(profile)}"
        if failed
        else f"Training had not begun after {seconds}: {nothing}.{loop_lines.meanwhile(facts)}",
        (f"{_where(facts)} " if facts.total > 1e-3 else "") + f"Start-up took {facts.start_up:.1f} s of the window.",
        f"Nothing can be said about the training yet: {_what_to_do(profile)}.",
        _queued_note(facts),
        limitations=_limitations(facts),
    )


def _what_to_do(profile: Profile) -> str:
    """Advice where a script ended, or was stopped, before it trained."""
    if profile.exit.detail.startswith("ModuleNotFoundError"):
        return "where another virtual environment has the module, name its interpreter, --python path/to/bin/python"
    if profile.exit.ending is Ending.EXCEPTION:
        return "correct the exception first"
    if profile.exit.ending in (Ending.EXIT, Ending.SIGNAL):
        return "the script ended before it trained"
    return "use a longer --seconds"


def _of_several(facts: Facts) -> Verdict:
    """The verdict on several processes that train: a list, without figures that would hold for only one of them."""
    number = facts.counter("trainers") or 0
    learning = sorted(facts.profile.lanes, key=lambda lane: -lane.spent(*LEARNING))[:number]
    parts = [
        f"{lane.name} (process {lane.pid}) {percent(lane.share(*LEARNING))} of its time, and it waits "
        f"{percent(lane.share(Role.WAIT, Role.IDLE))}"
        for lane in learning
    ]
    return Verdict(
        f"Several processes train, {number} of them.",
        f"They spend on learning: {'; '.join(parts)}.",
        "No gain is predicted: what one of them saves is not what all of them save. Diagnose one of them alone.",
        _notes(facts),
        limitations=_limitations(facts),
    )


def groups(facts: Facts, spent: Callable[..., float] | None = None) -> list[tuple[str, float]]:
    """The names of activities in reports, with their seconds, the largest first. spent: facts.spent where not given."""
    spent = spent or facts.spent
    found = [("environments", spent(Role.ENVIRONMENT) + facts.env_wait), ("learning", spent(*LEARNING))]
    found += [(Role.WAIT.label, spent(Role.WAIT) - facts.env_wait)]
    found += [(role.label, spent(role)) for role in SINGLE_ROLES]
    return sorted(found, key=lambda item: -item[1])


def _headline(facts: Facts, found: list[Remedy]) -> str:
    if _too_few(facts):
        return _headline_of_few_samples(facts)
    name, seconds = groups(facts)[0]
    share = facts.percent(seconds)
    if facts.share(Role.OTHER) > UNKNOWN and name == Role.OTHER.label:
        return f"{share} of the time goes into code whose role is not known{at(facts.site(Role.OTHER))}."
    caveats = loop_lines.caveats(facts)
    if waiting.bottleneck(facts):
        return f"{waiting.sentence(facts)}.{caveats}"
    if len(parts := _largest(facts)) > 1:
        where = f"The largest parts of the time go into {enumeration(parts, ', and ')}"
    elif name == Role.IDLE.label:
        return f"The script sleeps {share} of the time.{caveats}"
    elif name == Role.WAIT.label:
        return f"{waiting.sentence(facts)}.{caveats}"
    else:
        most = seconds > 0.5 * facts.total and not loop_lines.is_spread(facts, name)
        goes = "Most of the time goes" if most else "The largest part of the time goes"
        where = f"{goes} into {name}: {share}{loop_lines.mostly(facts, name)}"
    known = facts.unsure < FEW_UNSURE and facts.profile.counters.get("updates_seen", 1.0)
    little = (
        bool(known)
        and facts.samples >= ENOUGH_SAMPLES
        and max((remedy.gain or remedy.bound for remedy in found), default=1.0) < LITTLE_GAIN
    )
    known_text = f"; no known remedy makes it {times(LITTLE_GAIN)} as fast" if little else ""
    return f"{where}{known_text}.{caveats}"


def _largest(facts: Facts) -> list[str]:
    """The largest part of the time with its share, and those that may be as large within the sampling error."""
    return [f"{name}, {facts.percent(seconds)}" for name, seconds in _nearly_largest(facts)[:TOGETHER]]


def _nearly_largest(facts: Facts) -> list[tuple[str, float]]:
    """The largest part, those within its sampling error, and those that a busy machine may have made smaller."""
    known = [(name, seconds) for name, seconds in groups(facts) if name != Role.OTHER.label]
    (first, most), idle = known[0], dict(groups(facts, facts.idle_seconds))
    larger = [name for name, seconds in known if idle[name] > idle[first] and seconds > SOME_WORK * facts.total]
    return [(name, seconds) for name, seconds in known if name in larger or facts.overlap(most, seconds)]


def _headline_of_few_samples(facts: Facts) -> str:
    start_up = " Start-up took most of the window." if facts.start_up > facts.total else ""
    stopped = facts.profile.exit.ending in (Ending.TIME_LIMIT, Ending.RUNNING)
    advice = "Try a longer --seconds." if stopped else "Let the script do more, such as more training steps."
    few = f"There are too few samples for a verdict: {facts.samples}.{start_up}"
    if facts.profile.exit.ending in (Ending.EXCEPTION, Ending.SIGNAL):
        return f"{ending(facts.profile)} {few}"
    return f"{few} {advice}"


def _where(facts: Facts) -> str:
    parts = [
        f"{name} {facts.percent(seconds)}{_details(facts, name)}"
        for name, seconds in groups(facts)
        if seconds / facts.total >= NOTICEABLE
    ]
    return f"Shares of {facts.total:.1f} s of training: {enumeration(parts)}." + _env_stepping(facts)


def _details(facts: Facts, name: str) -> str:
    if name == "environments" and facts.env_wait > NOTICEABLE * facts.total:
        what = "waiting for fragments of actors" if facts.actors else "waiting for the processes that step them"
        return f" ({facts.percent(facts.env_wait)} {what})"
    if name != "learning" or facts.learns_in_one_call:
        return ""
    parts = zip(("forward", "backward", "optimizer"), LEARNING, strict=True)
    return f" ({', '.join(f'{part} {facts.percent(facts.spent(role))}' for part, role in parts)})"


def _env_stepping(facts: Facts) -> str:
    """Place where the environments are stepped, and time of a step."""
    if facts.environment < NOTICEABLE * facts.total:
        return ""
    step = f", {duration(facts.step_seconds)} per step" if facts.step_seconds else ""
    if workers := len(facts.env_workers):
        busy = percent(sum(facts.env_worker_seconds) / workers / facts.total)
        if workers == 1:
            return f" Another process steps the environments{step}, and is busy with them {busy} of the time."
        return f" {workers} processes step the environments{step}, each busy with them {busy} of the time on average."
    if facts.unsampled_env_workers:
        return " Other processes step the environments, but no sample shows them doing so."
    envs = facts.num_envs or 0
    what = f"{envs} environments one after another" if envs > 1 else "one environment" if envs else "the environment"
    return f" One core steps {what}{step}."


def _bounds(facts: Facts, found: list[Remedy]) -> str:
    if _too_few(facts):
        few = count(facts.samples, "sample")
        return f"Gains are not predicted from {few}: let the script train for more steps, or use a longer --seconds."
    offers = [f"{remedy.title[0].lower()}{remedy.title[1:]} ({gain_text(remedy)})" for remedy in found[:3]]
    return gpu_notes.bound(facts) + (f" What would help: {'; '.join(offers)}." if offers else "")


def gain_text(remedy: Remedy) -> str:
    """The gain of a remedy: "about 1.50x, at most 1.55x"; or "not predicted", with a bound where it says something.

    A bound of UNBOUNDED or more, where the remedy affects nearly all of the time, is not given as a number. The bound
    of a remedy without a prediction is given only below TELLING, because nothing in the profile supports a larger one.
    """
    if not remedy.gain:
        return f"not predicted, at most {times(remedy.bound)}" if remedy.bound < TELLING else "not predicted"
    most = f"at most {times(remedy.bound)}" if remedy.bound < UNBOUNDED else "no bound"
    return f"about {times(remedy.gain)}, {most}"


def _notes(facts: Facts) -> list[str]:
    notes = []
    if facts.share(Role.OTHER) > UNKNOWN:
        notes.append(_unknown(facts))
    if facts.ratio is not None:
        notes.append(_ratio(facts, facts.ratio))
    if lagging := slowest(facts):
        every = "rollout" if facts.actors else "step"
        notes.append(
            f"{capitalized(lagging[0].name)} is slower than the other processes, which wait for it at every {every}."
        )
    return notes + waiting.for_the_lock(facts) + gpu_notes.notes(facts) + _core_notes(facts)


def _unknown(facts: Facts) -> str:
    """The lines that take most of the time of unknown role."""
    sites = [site for site in facts.profile.training_thread.sites if site.role is Role.OTHER]
    sites.sort(key=lambda site: -site.seconds)
    lines = [f"{place(site)} `{site.text or site.function}` ({facts.percent(site.seconds)})" for site in sites[:5]]
    return (
        f"{facts.percent(facts.spent(Role.OTHER))} of the time is in code whose role is not known; --hints FILE names "
        f"it. The lines that take the most of it: {'; '.join(lines) or 'none can be read'}."
    )


def _core_notes(facts: Facts) -> list[str]:
    """Tell whether the training thread had a core when it had something to compute."""
    queued, on_cpu = facts.queued([facts.profile.training_thread]), facts.on_cpu(*COMPUTING)
    notes = _queued_note(facts)
    if on_cpu + queued < 0.85:
        notes.append(
            f"While it computed, the training thread was on a core {percent(on_cpu)} of the time. For the rest it "
            f"waited for {'the GPU' if facts.on_gpu else 'other threads of its libraries'}, or inside the environment."
        )
    return notes


def _queued_note(facts: Facts) -> list[str]:
    """Sentence on a training thread that had no core for long; [] where it had."""
    queued = facts.queued([facts.profile.training_thread])
    said = (
        f"The training thread was ready to run but had no core {percent(queued)} of the time: other threads and "
        "programs used the cores. The figures are those of a busy machine."
    )
    return [said] if queued > 0.1 else []


def _ratio(facts: Facts, ratio: float) -> str:
    if ratio < 0.005 and (facts.unsure > FEW_UNSURE or facts.share(Role.WAIT, Role.IDLE) > FEW_UNSURE):
        return "R is close to 0: hardly any step of an environment was seen."
    if ratio < 0.005:
        return "R is close to 0: environments take almost no time compared with learning. Faster ones gain nothing."
    return f"R = {ratio:.2g}: {ratio:.2g} s of environment steps per second of learning. {_workers(facts)}".strip()


def _workers(facts: Facts) -> str:
    """Tell whether worker processes that step environments can help."""
    if facts.compiled_env:
        return ""
    if facts.actors:
        return "Actors already step the environments."
    if facts.env_workers or facts.unsampled_env_workers:
        return "Worker processes already step the environments."
    if facts.cores < 2:
        return "With one core, worker processes cannot help."
    if facts.step_seconds and facts.step_seconds < facts.round_trip:
        step, trip = duration(facts.step_seconds), duration(facts.round_trip)
        return f"Worker processes would be slower: a step takes {step}, a round trip to another process {trip}."
    bound = facts.bound(facts.environment * (1 - 1 / facts.cores))
    return f"Worker processes on {facts.cores} cores can gain at most {times(bound)}."


def _limitations(facts: Facts) -> list[str]:
    samples, profile = facts.samples, facts.profile
    notes = []
    if samples:
        notes.append(
            f"Shares come from {samples:,} samples of the training thread: their error is up to about "
            f"{100 * facts.margin:.1f} percentage points. Sampling took {100 * profile.overhead:.1f} % of its time."
        )
    notes.append(
        "Each bound is for one remedy alone: gains do not multiply. Where no gain is predicted, try the remedy and "
        "diagnose again."
    )
    phases = _learning_phases(facts)
    if phases and samples:
        notes.append(
            f"Learning began only {'once' if phases == 1 else f'{phases} times'} within the window, so the shares "
            "depend on where it began and ended. A longer --seconds makes them more exact."
        )
    return notes + profile.limitations


def _learning_phases(facts: Facts) -> int:
    """Number of times that learning began, where that is too seldom for exact shares; otherwise 0."""
    spans = facts.profile.training_thread.spans
    if not spans or facts.learning < NOTICEABLE * facts.total:
        return 0
    columns = binned(spans, spans[0].start, spans[-1].end, 200)
    columns = [column for column in columns if column.get(Role.START_UP, 0.0) < 0.5]
    learning = [sum(column.get(role, 0.0) for role in LEARNING) > 0.5 for column in columns]
    began = sum(now and not before for before, now in zip([False, *learning], learning, strict=False))
    return began if 0 < began < FEW_PHASES and sum(learning) < MOSTLY_LEARNING * len(learning) else 0


def ending(profile: Profile) -> str:
    """The end of the script, in a sentence."""
    seconds = f"{profile.skipped + profile.seconds:.1f} s"
    code, detail = profile.exit.code, " ".join(profile.exit.detail.split()).rstrip(".")
    return {
        Ending.EXIT: f"The script exited after {seconds} with code {code}.",
        Ending.EXCEPTION: f"The script ended after {seconds} with an exception: {detail or f'exit code {code}'}.",
        Ending.SIGNAL: f"The script was ended by signal {code} after {seconds}.",
        Ending.TIME_LIMIT: f"The script was stopped at its time limit, after {seconds}.",
        Ending.INTERRUPT: f"The script was interrupted after {seconds}.",
        Ending.RUNNING: f"The script was measured for {seconds} while it ran, and goes on.",
    }[profile.exit.ending]
