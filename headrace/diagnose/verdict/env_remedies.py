"""Remedies for the environments: the processes that step them, and how many are stepped at a time."""

from __future__ import annotations

from statistics import median

from headrace.diagnose.profile.formatting import at, capitalized, count, duration
from headrace.diagnose.profile.profile import Lane, Role
from headrace.diagnose.verdict.profile_facts import SLEEPS, Facts
from headrace.diagnose.verdict.remedy import (
    COLD_CACHES,
    COLD_CACHES_AT_MOST,
    DAY,
    HALF_AN_HOUR,
    MINUTES,
    Remedy,
    remedy,
)
from headrace.diagnose.verdict.snippets import snippet

MORE_ENVS = 8  # number of environments that is proposed instead of a few
LEAST_WARM = 0.33  # ... where the worker's wake-ups were counted
FEW_ENVS = 4  # up to this many, batched inference is proposed
WARM_CACHES = 0.5  # time of a step in a loop, as a share of its time in a worker that wakes up with cold caches
COLD_STEP = 250e-6  # s that a step takes longer after a pause
LEAST_STAYS = 0.5  # least time of the environments in one process, as a share of the expected time
ACTING = (Role.ENVIRONMENT, Role.INFERENCE)
LAGGING = 1.4  # a straggler takes this many times as long as the other workers
OTHER_DATA = (
    "More environments change the data that the policy learns from: shorten each rollout by the same factor, and "
    "compare returns as well as speed."
)


def processes(facts: Facts) -> Remedy | None:
    """Several processes for environments that one core steps one after another."""
    envs, spent = facts.num_envs or 1, facts.spent(Role.ENVIRONMENT)
    elsewhere = facts.env_workers or facts.unsampled_env_workers
    if spent < 0.1 * facts.total or elsewhere or facts.compiled_env:
        return None
    if envs < 2:
        return _more_envs_in_processes(facts)
    at_once = min(facts.cores, envs) if facts.env_on_cpu > 0.5 else envs
    if at_once < 2:
        return None
    most, likely, trip = spent * (1 - 1 / at_once), None, duration(facts.round_trip)
    why = f"One core steps {envs} environments one after another, {facts.percent(spent)} of the time."
    if facts.step_seconds and facts.env_steps:
        # Headrace's workers step all their environments with one message, others use a message for each
        messages = facts.env_steps * at_once / envs if facts.uses("headrace") else facts.env_steps
        likely = most - messages * facts.round_trip
        why += (
            f" A step takes {duration(facts.step_seconds)}; a round trip to another process takes {trip} on this "
            "machine, which the prediction includes."
        )
    else:
        why += f" Processes help where a step takes much longer than a round trip to another process, {trip} here."
    if at_once < envs and not facts.uses("headrace"):
        why += f" Each environment gets a process of its own, of which {at_once} run at a time."
    change = snippet(facts, "processes", envs=envs, workers=at_once)
    title = f"Step the environments in {at_once} processes"
    return remedy(facts, title, why, MINUTES, change, most=most, likely=likely, saves=[Role.ENVIRONMENT])


def _more_envs_in_processes(facts: Facts) -> Remedy | None:
    cores = facts.cores
    if cores < 2 or facts.uses("headrace") or (facts.step_seconds or 1.0) < 4 * facts.round_trip:
        return None
    why = (
        f"One core steps one environment, {facts.percent(facts.spent(Role.ENVIRONMENT))} of the time. {cores} "
        f"environments in {cores} processes take as many steps in 1/{cores} of that time at best. "
    ) + OTHER_DATA
    most = facts.spent(Role.ENVIRONMENT, Role.INFERENCE) * (1 - 1 / cores)
    title, change = f"Step {cores} environments in {cores} processes", snippet(facts, "processes", envs=cores)
    return remedy(facts, title, why, HALF_AN_HOUR, change, most=most, saves=ACTING)


def one_process(facts: Facts) -> Remedy | None:
    """Environments in the script's process, where they take less time than communicating with workers. Actors send no
    steps, so this does not apply to them."""
    waiting = facts.spent(Role.WAIT, Role.ENVIRONMENT)  # the training thread's own environment time is communication
    busy, alone = sum(facts.env_worker_seconds), sum(_computing_seconds(facts))
    if facts.actors or not facts.env_workers or waiting - alone < 0.05 * facts.total or busy > waiting:
        return None
    why = (
        f"Sending steps to {count(len(facts.env_workers), 'process')} and waiting for them takes "
        f"{facts.percent(waiting)} of the time, but their environments together take {facts.percent(busy)}: the rest "
        "is pickling, pipes and waking up."
    )
    rest, stays = facts.total - waiting, min(alone + facts.spent(Role.ENVIRONMENT), waiting)  # it stacks as before
    likely = waiting + COLD_CACHES * rest - stays
    title, change = "Step the environments in the script's own process", snippet(facts, "one_process")
    most = waiting - LEAST_STAYS * stays + COLD_CACHES_AT_MOST * rest
    return remedy(facts, title, why, MINUTES, change, most=most, likely=likely, measured=waiting)


def _computing_seconds(facts: Facts) -> list[float]:
    """Seconds that each worker's environments would take with a core of their own, and with warm caches."""
    lanes = zip(facts.env_workers, facts.env_worker_seconds, strict=True)
    return [_warm(facts, lane, work) for lane, work in lanes]


def _warm(facts: Facts, lane: Lane, work: float) -> float:
    """Seconds of a worker's environments in a loop, without the cost of the worker's wake-ups, which matters for short
    steps.

    The time for which environments sleep is the same in any process.
    """
    asleep = lane.spent(Role.IDLE)
    asleep += sum(site.seconds for site in lane.sites if site.role is Role.ENVIRONMENT and site.call in SLEEPS)
    asleep = min(asleep, work)
    computing = work - asleep
    if lane.cpu_seconds and facts.env_on_cpu > 0.5:
        computing = min(computing, lane.cpu_seconds)
    if not lane.wakes:
        return asleep + WARM_CACHES * computing
    return asleep + max(computing - COLD_STEP * lane.wakes, LEAST_WARM * computing)


def straggler(facts: Facts) -> Remedy | None:
    """One worker that is slower than the others, which wait for it at every step."""
    found = slowest(facts)
    if found is None:
        return None
    lane, busy, others = found
    waiting = facts.spent(Role.WAIT)
    saved = min(waiting, busy - others)
    site = max(lane.sites, key=lambda site: (site.role is not Role.WAIT, site.seconds), default=None)
    why = (
        f"{capitalized(lane.name)} is busy {facts.percent(busy)} of the time{at(site)}, the others "
        f"{facts.percent(others)} (median), and each step waits for the slowest. If it were as fast as the others, "
        f"{facts.percent(saved)} of the time would be saved."
    )
    title, change = f"Find out why {lane.name} is slower", snippet(facts, "straggler")
    if not facts.env_workers:  # its role is not known
        return remedy(facts, title, why, HALF_AN_HOUR, change, most=waiting)
    return remedy(facts, title, why, HALF_AN_HOUR, change, most=saved, likely=saved)


def slowest(facts: Facts) -> tuple[Lane, float, float] | None:
    """A straggler, its busy seconds, and the median of the others; None where there is none.

    It is one of the environments' workers. If there are none, it is the child process that computes for most of the
    time for which the training thread waits.
    """
    waiting, lanes, seconds = facts.spent(Role.WAIT), facts.env_workers, facts.env_worker_seconds
    if not lanes:
        parent = facts.profile.training_thread.pid
        lanes = [lane for lane in facts.profile.workers if lane.parent == parent]
        seconds = [lane.cpu_seconds + lane.queued_seconds for lane in lanes]
        if max(seconds, default=0.0) < 0.5 * waiting:
            return None
    if len(seconds) < 2 or waiting < 0.1 * facts.total:
        return None
    longest = max(seconds)
    index = seconds.index(longest)
    others = median(seconds[:index] + seconds[index + 1 :])
    return (lanes[index], longest, others) if longest > LAGGING * others else None


def batched_inference(facts: Facts) -> Remedy | None:
    """More environments where the policy computes few actions per call."""
    envs = facts.counter("inference_batch") or facts.num_envs or 0
    spent = facts.spent(Role.INFERENCE)
    per_call = spent + facts.spent(Role.ENVIRONMENT, Role.DATA, Role.OTHER)
    if not 0 < envs <= FEW_ENVS or spent < 0.15 * facts.total or facts.uses("headrace"):
        return None
    why = (
        f"{facts.percent(spent)} of the time the policy computes actions, for {count(envs, 'environment')} at a time. "
        f"A small network takes little longer for {MORE_ENVS}, and as many steps then need fewer calls. "
    ) + OTHER_DATA
    title, change = f"Act in {MORE_ENVS} environments at a time", snippet(facts, "more_envs", envs=MORE_ENVS)
    return remedy(
        facts,
        title,
        why,
        HALF_AN_HOUR,
        change,
        most=per_call * (1 - envs / MORE_ENVS),
        saves=[*ACTING, Role.DATA, Role.OTHER],
    )


def compiled(facts: Facts) -> Remedy | None:
    """A compiled environment."""
    if facts.environment < 0.15 * facts.total or facts.compiled_env:
        return None
    why = f"{facts.percent(facts.environment)} of the time goes into environments. Compiled, a step takes almost none."
    name = "" if facts.uses("headrace") else facts.built_in
    if name:
        why += f" {name} is built into Headrace, which replaces the training loop too; the bound does not include that."
        title, effort, change = f"Train {name} in Headrace", HALF_AN_HOUR, snippet(facts, "built_in", env=name)
    else:
        why += " This requires an environment with a numeric state and a step that can be written as scalar Python."
        title, effort = "Write the environment as a compiled Headrace environment", DAY
        change = snippet(facts, "compiled")
    return remedy(facts, title, why, effort, change, most=facts.environment, saves=[Role.ENVIRONMENT])


RULES = (processes, straggler, one_process, batched_inference, compiled)
