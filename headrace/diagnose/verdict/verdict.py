"""The verdict on a profile in plain English: where the time goes, what can be gained at most, and what was not seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from headrace.diagnose.profile.formatting import capital, count, duration, percent, place, sentence, times
from headrace.diagnose.profile.profile import LEARNING, Ending, Profile, Role
from headrace.diagnose.verdict.env_remedies import slowest
from headrace.diagnose.verdict.network_remedies import is_small
from headrace.diagnose.verdict.profile_facts import NOTICEABLE, TITLES, Facts, binned
from headrace.diagnose.verdict.remedies import remedies
from headrace.diagnose.verdict.remedy import Remedy

NOTHING = 1.15  # where no remedy can gain more, there is nothing to gain
ENOUGH_SAMPLES = 150  # below, shares are too rough for a verdict
FEW_TURNS = 5  # of collecting and learning; with fewer, it matters where the window began
MOSTLY_LEARNING = 0.95  # of the time: there it does not matter where the turns lie
UNBOUNDED = 50.0  # a bound as high as this says nothing
UNNAMED = 0.25  # of the time in code without a role: the verdict says so before anything else
COMPUTING = (Role.ENVIRONMENT, Role.INFERENCE, Role.DATA, *LEARNING)
PARTS = {"env": "environments", "inference": "policy inference"}  # of Headrace's timers, in a person's words
NAMED_ONE_BY_ONE = (
    Role.INFERENCE,
    Role.COPY,
    Role.LAUNCH,
    Role.EVALUATION,
    Role.DATA,
    Role.LOGGING,
    Role.SAVING,
    Role.IDLE,
    Role.OTHER,
)


@dataclass(frozen=True)
class Verdict:
    """What a person is told."""

    headline: str  # one sentence
    where: str  # where the time goes
    bounds: str  # what can be gained
    notes: list[str] = field(default_factory=list)  # what else was noticed
    remedies: list[Remedy] = field(default_factory=list)  # the first is the one to begin with
    blind: list[str] = field(default_factory=list)  # what was not seen, and how exact the figures are

    def to_json(self) -> dict[str, Any]:
        """Its fields."""
        return vars(self) | {"remedies": [remedy.to_json() for remedy in self.remedies]}


def judge(facts: Facts) -> Verdict:
    """The verdict. Where nothing was seen, it says no more than that."""
    if not facts.profile.lanes or facts.base < 1e-3:
        return Verdict(
            "Nothing was seen.",
            f"{ending(facts.profile)} No thread was seen at work within the window of {facts.profile.seconds:.1f} s.",
            "Try a longer --seconds, or a shorter --skip.",
            blind=list(facts.profile.blind),
        )
    found = remedies(facts) if facts.samples >= ENOUGH_SAMPLES else []
    return Verdict(_headline(facts, found), _where(facts), _bounds(facts, found), _notes(facts), found, _blind(facts))


def groups(facts: Facts) -> list[tuple[str, float]]:
    """What the time is spent on, in a person's words, and seconds; the most first."""
    waiting = facts.spent(Role.WAIT) - facts.covered
    found = [("environments", facts.environment), ("learning", facts.learning), (TITLES[Role.WAIT], waiting)]
    found += [(TITLES[role], facts.spent(role)) for role in NAMED_ONE_BY_ONE]
    return sorted(found, key=lambda item: -item[1])


def _headline(facts: Facts, found: list[Remedy]) -> str:
    name, seconds = groups(facts)[0]
    most = f"{percent(seconds / facts.base)} of the time"
    if facts.samples < ENOUGH_SAMPLES and facts.timed:  # timers need no samples
        part, share = max(facts.timed.items(), key=lambda item: item[1])
        return f"Most of it is {PARTS.get(part, part)}: {percent(share)} of the training, by Headrace's own timers."
    if facts.samples < ENOUGH_SAMPLES:
        most = " Start-up took nearly all of the window." if facts.start_up > facts.base else ""
        cut = facts.profile.exit.ending is Ending.TIME_LIMIT
        more = "Try a longer --seconds." if cut else "Give the script more to do, such as more steps."
        return f"Too little was seen for a verdict: {count(facts.samples, 'sample')}.{most} {more}"
    if facts.share(Role.OTHER) > UNNAMED and name == TITLES[Role.OTHER]:
        return f"{capital(most)} goes into code whose purpose is not known{_mostly(facts)}."
    if max((remedy.gain or remedy.bound for remedy in found), default=1.0) < NOTHING:
        return f"Nothing to gain here: no remedy known makes it {times(NOTHING)} as fast."
    if name == TITLES[Role.IDLE]:
        return f"The script sleeps {most}."
    if name == TITLES[Role.WAIT]:
        return f"The script waits for other processes or threads {most}, and they do not work meanwhile."
    return f"Most of it is {name}: {most}." if seconds > 0.5 * facts.base else f"The largest part is {name}: {most}."


def _mostly(facts: Facts) -> str:
    site = facts.site(Role.OTHER)
    return f", most of it at {place(site)}" if site else ""


def _where(facts: Facts) -> str:
    parts = []
    for name, seconds in groups(facts):
        share = seconds / facts.base
        if share >= NOTICEABLE:
            parts.append(f"{name} {percent(share)}{_inside(facts, name)}")
    return f"Of {facts.base:.1f} s of training, {sentence(parts)}." + _manner(facts)


def _inside(facts: Facts, name: str) -> str:
    if name == "environments" and facts.covered > NOTICEABLE * facts.base:
        return f" ({percent(facts.covered / facts.base)} waiting for the processes that step them)"
    if name != "learning" or facts.learns_in_one_call:
        return ""
    parts = zip(("forward", "backward", "optimizer"), LEARNING, strict=True)
    return f" ({', '.join(f'{part} {percent(facts.share(role))}' for part, role in parts)})"


def _manner(facts: Facts) -> str:
    """How the environments are stepped."""
    if facts.environment < NOTICEABLE * facts.base:
        return ""
    each = f", {duration(facts.step_seconds)} a step" if facts.step_seconds else ""
    if facts.stepping:
        busy = sum(facts.work) / len(facts.work) / facts.base
        if len(facts.stepping) == 1:
            return f" Another process steps the environments{each}, and is busy with them {percent(busy)} of the time."
        many = f"{len(facts.stepping)} processes"
        return f" {many} step the environments{each}, and are busy with them {percent(busy)} of the time."
    if facts.unseen_processes:
        return " Other processes step the environments, but they were not seen at it."
    if (facts.num_envs or 1) > 1:
        return f" One core steps {facts.num_envs} environments one after another{each}."
    return f" One core steps one environment{each}." if facts.num_envs else f" One core steps the environment{each}."


def _bounds(facts: Facts, found: list[Remedy]) -> str:
    if facts.samples < ENOUGH_SAMPLES:
        few = count(facts.samples, "sample")
        return f"What could be gained is not said on {few}: more steps of training, or a longer --seconds, give more."
    text = [_gpu(facts)]
    if found:
        offers = [f"{remedy.title[0].lower()}{remedy.title[1:]}: {promise(remedy)}" for remedy in found[:3]]
        text.append(f"What would help: {'; '.join(offers)}.")
    return " ".join(part for part in text if part)


def promise(remedy: Remedy) -> str:
    """What a remedy can gain: "about 1.50x, at most 1.55x", or "at most 3.40x, not predicted".

    Where nearly all of the time is touched, Amdahl's law bounds nothing, and that is said.
    """
    most = f"at most {times(remedy.bound)}" if remedy.bound < UNBOUNDED else "no bound"
    return f"about {times(remedy.gain)}, {most}" if remedy.gain else f"{most}, not predicted"


def _gpu(facts: Facts) -> str:
    spent = facts.spent(*LEARNING, Role.INFERENCE, Role.COPY, Role.LAUNCH)
    bound, share = facts.bound(spent), percent(spent / facts.base)
    if facts.on_gpu:
        return f"All that has to do with the GPU is {share} of the time: a faster one gains {times(bound)} at most."
    said = f"Whatever happens on a GPU can gain {times(bound)} at most: acting and learning are {share} of the time"
    if bound < 1.5:
        return f"Stay on the CPU. {said}."
    if bound >= UNBOUNDED:
        said = f"Acting and learning are {share} of the time, so that this profile does not bound what a GPU can gain"
    if is_small(facts):
        unreached = f" Its bound of {times(bound)} is out of reach." if bound < UNBOUNDED else ""
        return (
            f"Stay on the CPU. Acting and learning are {share} of the time, but {_size(facts)}: a GPU ends an update "
            f"sooner than its operations can be sent to it.{unreached}"
        )
    return f"{said}."


def _size(facts: Facts) -> str:
    """How small the network is."""
    parameters = f"the network has {facts.counter('parameters') or 0:,} parameters"
    return (
        f"{parameters}, {facts.operations / 1e6:.1f} million operations an update" if facts.operations else parameters
    )


def _notes(facts: Facts) -> list[str]:
    notes = []
    if facts.ratio is not None:
        notes.append(_ratio(facts, facts.ratio))
    if facts.timed:
        parts = [f"{PARTS.get(part, part)} {percent(share)}" for part, share in facts.timed.items()]
        notes.append(f"By Headrace's own timers, over all of the training until then: {sentence(parts)}.")
    lagging = slowest(facts)
    if lagging:
        notes.append(f"{capital(lagging[0])} lags behind: the other processes wait for it at every step.")
    notes += _gpu_notes(facts)
    notes += _core_notes(facts)
    return notes


def _core_notes(facts: Facts) -> list[str]:
    """Whether the driving thread got a core when it had something to compute."""
    notes, queued, on_cpu = [], facts.queued([facts.profile.driver]), facts.on_cpu(*COMPUTING)
    if queued > 0.1:
        notes.append(
            f"The driving thread could have run but had no core {percent(queued)} of the time: other threads and "
            "programs had them. Figures are those of a busy machine."
        )
    if on_cpu + queued < 0.85:
        notes.append(
            f"While it computed, the driving thread was on a core {percent(on_cpu)} of the time. Otherwise it waited: "
            "for torch's other threads, or inside the environment."
        )
    return notes


def _ratio(facts: Facts, ratio: float) -> str:
    if ratio < 0.005:
        return (
            "R is next to 0: the environments take next to no time beside learning. Nothing is gained by faster ones."
        )
    return f"R = {ratio:.2g}: for each second of learning, {ratio:.2g} s of environment. {_workers(facts)}".strip()


def _workers(facts: Facts) -> str:
    """Whether processes that step environments help, as the ratio R says."""
    if facts.compiled_world:
        return ""
    if facts.stepping or facts.unseen_processes:
        return "Worker processes step them already."
    saved = facts.environment * (1 - 1 / max(facts.cores, 1))
    if facts.cores < 2:
        return "With one core, worker processes cannot help."
    if facts.step_seconds and facts.step_seconds < facts.round_trip:
        step, trip = duration(facts.step_seconds), duration(facts.round_trip)
        return f"Worker processes would be slower: a step takes {step}, handing it over and back {trip}."
    if facts.bound(saved) < NOTHING:
        return f"Worker processes on {facts.cores} cores can gain {times(facts.bound(saved))} at most."
    return f"Worker processes on {facts.cores} cores can gain up to {times(facts.bound(saved))}."


def _gpu_notes(facts: Facts) -> list[str]:
    gpu, notes = facts.profile.gpu, []
    if "nvml_busy" in gpu:
        notes.append(
            f"NVML (nvidia-smi) says that the GPU is {gpu['nvml_busy']:.0f} % busy, which counts every short period in "
            "which any kernel ran at all."
        )
    if "kernel_busy" in gpu:
        notes.append(
            f"Kernels ran {gpu['kernel_busy']:.0f} % of the time, as torch's profiler saw it for a second. The script "
            f"launches {gpu['launches_per_second']:,.0f} times a second, waits for the GPU "
            f"{gpu['synchronisations_per_second']:,.0f} times a second, and copies "
            f"{gpu['copied_mb_per_second']:,.0f} MB a second."
        )
    return notes


def _blind(facts: Facts) -> list[str]:
    samples, profile = facts.samples, facts.profile
    said = []
    if samples:
        said.append(
            f"Shares come from {samples:,} samples of the driving thread: they are good to about "
            f"{100 * facts.margin:.1f} points. Sampling took {100 * profile.overhead:.1f} % of its time."
        )
    said.append(
        "A bound holds for one remedy alone; several do not multiply. Where no gain is expected in figures, this "
        "profile does not tell it: try it, and diagnose again."
    )
    turns = _turns(facts)
    if turns and samples:
        said.append(
            f"Collecting and learning took turns only {'once' if turns == 1 else f'{turns} times'} within the window, "
            "so that the shares depend on where it began and ended. A longer --seconds makes them more exact."
        )
    return said + profile.blind


def _turns(facts: Facts) -> int:
    """How often learning began, where that is too seldom for exact shares; 0 where it is not."""
    spans = facts.profile.driver.spans
    if not spans or facts.learning < NOTICEABLE * facts.base:
        return 0
    columns = binned(spans, spans[0].start, spans[-1].end, 200)
    columns = [column for column in columns if column.get(Role.START_UP, 0.0) < 0.5]
    learning = [sum(column.get(role, 0.0) for role in LEARNING) > 0.5 for column in columns]
    began = sum(now and not before for before, now in zip([False, *learning], learning, strict=False))
    return began if 0 < began < FEW_TURNS and sum(learning) < MOSTLY_LEARNING * len(learning) else 0


def ending(profile: Profile) -> str:
    """How the script came to its end, in a sentence."""
    seconds = f"{profile.skipped + profile.seconds:.1f} s"
    code, detail = profile.exit.code, profile.exit.detail
    return {
        Ending.EXIT: f"The script ended by itself after {seconds}, with exit code {code}.",
        Ending.EXCEPTION: f"The script ended after {seconds} with an exception: {detail or f'exit code {code}'}.",
        Ending.SIGNAL: f"The script was ended by signal {code} after {seconds}.",
        Ending.TIME_LIMIT: f"The script was stopped after {seconds}, as agreed.",
        Ending.INTERRUPT: f"The script was interrupted after {seconds}.",
    }[profile.exit.ending]
