"""Remedies for the environments: in which processes they are stepped, and who waits for whom."""

from __future__ import annotations

from statistics import median

from headrace.diagnose.profile.formatting import capital, count, duration, percent
from headrace.diagnose.profile.profile import Role
from headrace.diagnose.verdict import snippets
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.remedy import (
    DAY,
    HALF_AN_HOUR,
    MINUTES,
    WAKING,
    WAKING_AT_MOST,
    Remedy,
    remedy,
    with_the_rest,
)

MORE_ENVS = 8  # what few environments are raised to
FEW_ENVS = 4  # up to here the policy is asked too seldom for many actions at once
WARM = 0.5  # of the time a short step takes in a worker, which wakes up for it on cold caches, it takes in a loop
LAGGING = 1.4  # times as long as the others: a straggler


def processes(facts: Facts) -> Remedy | None:
    """Environments that one core steps one after another, in several processes."""
    envs, spent = facts.num_envs or 1, facts.spent(Role.ENVIRONMENT)
    elsewhere = facts.stepping or facts.unseen_processes
    if spent < 0.1 * facts.base or elsewhere or facts.compiled_world:
        return None
    if envs < 2:
        return _more_envs_in_processes(facts)
    at_once = min(facts.cores, envs) if facts.env_on_cpu > 0.5 else envs
    if at_once < 2:
        return None
    why = f"One core steps {envs} environments one after another, {percent(spent / facts.base)} of the time."
    handing_over = None
    if facts.step_seconds and facts.env_steps:
        # Headrace's workers take a step of all their environments at a time, others one each
        messages = facts.env_steps * at_once / envs if facts.uses("headrace") else facts.env_steps
        handing_over = messages * facts.round_trip
        why += (
            f" A step takes {duration(facts.step_seconds)}; to hand one to another process and back takes "
            f"{duration(facts.round_trip)} here, which the prediction takes into account."
        )
    else:
        why += f" It pays where a step takes much longer than the {duration(facts.round_trip)} of handing it over."
    likely = None if handing_over is None else spent * (1 - 1 / at_once) - handing_over
    title = f"Step the environments in {at_once} processes"
    change = snippets.workers(at_once) if facts.uses("headrace") else snippets.processes(facts, envs)
    return remedy(facts, title, why, MINUTES, change, most=spent * (1 - 1 / at_once), likely=likely)


def _more_envs_in_processes(facts: Facts) -> Remedy | None:
    cores = facts.cores
    if cores < 2 or facts.on_gpu or facts.uses("headrace") or (facts.step_seconds or 1.0) < 4 * facts.round_trip:
        return None
    why = (
        f"One core steps one environment, {percent(facts.share(Role.ENVIRONMENT))} of the time. {cores} of them in "
        f"{cores} processes take as many steps in a {cores}th of that at best. More environments change what is "
        "learned from: shorten the rollout of each by as much, and compare returns as well as speed."
    ).replace("a 2th", "half")
    most = facts.spent(Role.ENVIRONMENT, Role.INFERENCE) * (1 - 1 / cores)
    title = f"Step {cores} environments in {cores} processes"
    return remedy(facts, title, why, HALF_AN_HOUR, snippets.processes(facts, cores), most=most, likely=None)


def one_process(facts: Facts) -> Remedy | None:
    """Workers whose environments cost less than talking to them."""
    waiting = facts.spent(Role.WAIT, Role.ENVIRONMENT)  # what the driving thread steps itself is the handing over
    alone = WARM * sum(_busy(facts))
    if not facts.stepping or waiting - alone < 0.05 * facts.base or sum(facts.work) > waiting:
        return None
    theirs = percent(sum(facts.work) / facts.base)
    why = (
        f"Handing steps to {count(len(facts.stepping), 'process')} and waiting for them takes "
        f"{percent(waiting / facts.base)} of the time, their environments together {theirs}"
        ": the rest is pickling, pipes and waking up."
    ).replace("processs", "processes")
    most = with_the_rest(facts, waiting, WAKING_AT_MOST)
    likely = with_the_rest(facts, waiting, WAKING) - alone
    title = "Step the environments in the script's own process"
    return remedy(facts, title, why, MINUTES, snippets.one_process(facts), most=most, likely=likely)


def _busy(facts: Facts) -> list[float]:
    """Seconds that each worker's environments would take with a core of their own."""
    lanes = zip(facts.stepping, facts.work, strict=True)
    return [
        min(work, lane.cpu_seconds) if lane.cpu_seconds and facts.env_on_cpu > 0.5 else work for lane, work in lanes
    ]


def straggler(facts: Facts) -> Remedy | None:
    """One worker for whom all the others wait, step by step."""
    found = slowest(facts)
    if found is None:
        return None
    name, its, others = found
    saved = min(facts.spent(Role.WAIT), its - others)
    why = (
        f"{capital(name)} is busy {percent(its / facts.base)} of the time, the others {percent(others / facts.base)} "
        f"(median), and each step waits for the slowest. Were it like them, {percent(saved / facts.base)} of the time "
        "would be saved."
    )
    return remedy(
        facts, f"Find out why {name} is slower", why, HALF_AN_HOUR, snippets.STRAGGLER, most=saved, likely=saved
    )


def slowest(facts: Facts) -> tuple[str, float, float] | None:
    """A straggler's name, its seconds of work, and the median of the others; None where there is none."""
    if len(facts.work) < 2 or facts.spent(Role.WAIT) < 0.1 * facts.base:
        return None
    its = max(facts.work)
    place = facts.work.index(its)
    others = median(facts.work[:place] + facts.work[place + 1 :])
    return (facts.stepping[place].name, its, others) if its > LAGGING * others else None


def batched_inference(facts: Facts) -> Remedy | None:
    """The policy asked for few actions at a time."""
    envs = facts.counter("inference_batch") or facts.num_envs or 0
    spent = facts.spent(Role.INFERENCE)
    once_a_call = spent + facts.spent(Role.ENVIRONMENT, Role.DATA, Role.OTHER)
    if not 0 < envs <= FEW_ENVS or spent < 0.15 * facts.base or facts.uses("headrace"):
        return None
    why = (
        f"{percent(spent / facts.base)} of the time the policy chooses actions, for {count(envs, 'environment')} at a "
        f"time. A small network takes little longer for {MORE_ENVS}, and is then asked less often for as many steps. "
        "More environments change what is learned from: shorten the rollout of each by as much, and compare returns as "
        "well as speed."
    )
    title, change = f"Act in {MORE_ENVS} environments at a time", snippets.more_envs(facts, MORE_ENVS)
    return remedy(facts, title, why, HALF_AN_HOUR, change, most=once_a_call * (1 - envs / MORE_ENVS), likely=None)


def kernel(facts: Facts) -> Remedy | None:
    """The environment compiled."""
    if facts.environment < 0.15 * facts.base or facts.compiled_world:
        return None
    why = (
        f"{percent(facts.environment / facts.base)} of the time is environment. Compiled, a step costs next to nothing."
    )
    name = "" if facts.uses("headrace") else facts.built_in
    if name:
        why += f" Headrace has {name} already, and replaces the training loop too, which this bound leaves as it is."
        title, cost = f"Train {name} in Headrace", HALF_AN_HOUR
    else:
        why += " That takes an environment whose state is numbers and whose step can be written as scalar Python."
        title, cost = "Write the environment as a Headrace kernel", DAY
    return remedy(facts, title, why, cost, snippets.headrace(name), most=facts.environment, likely=None)
