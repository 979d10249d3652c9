"""Remedies for the network: acting, learning, and copies between host and GPU."""

from __future__ import annotations

from headrace.diagnose.profile.formatting import at, count, percent
from headrace.diagnose.profile.profile import LEARNING, Role
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.remedy import HALF_AN_HOUR, MINUTE, MINUTES, Remedy, remedy
from headrace.diagnose.verdict.snippets import instead, snippet

NETWORK = (*LEARNING, Role.INFERENCE)
FUSED_SAVES = 0.55  # of the optimizer's time: Adam(fused=True) on a CPU takes a third or less; clipping stays as it is
SMALL = 20e6  # operations of an update that a GPU computes faster than its kernels launch (100 x 5 us, 40 TFLOP/s)
USUAL_ROWS = 256  # assumed size of a minibatch that was not seen
IDLE = 0.2  # a GPU does not pay if its kernels run for less than this share of the time that involves it
WAITING = 0.7  # share of its computing time that a thread is on a core; below, fewer threads may be faster
LARGER = 4  # factor of the proposed minibatch size


def is_small(facts: Facts) -> bool:
    """Tell whether the network and its batches are known to be too small to keep a GPU busy."""
    parameters = facts.counter("parameters")
    most = facts.operations or (6 * parameters * USUAL_ROWS if parameters else None)
    return most is not None and most < SMALL


def fused_optimizer(facts: Facts) -> Remedy | None:
    spent = facts.spent(Role.OPTIMIZER) * (
        1 - facts.guessed(Role.OPTIMIZER)
    )  # updating a target network is no optimizer step
    if spent < 0.08 * facts.total or facts.on_gpu or facts.uses("headrace") or not _plain_adam(facts):
        return None
    why = (
        f"The optimizer takes {facts.percent(spent)} of the time. On a CPU, Adam updates one parameter tensor after "
        "another by default. The fused version updates all in one call: it is about three times faster and gives the "
        "same numbers up to rounding."
    )
    change = snippet(facts, "fused_optimizer")
    return remedy(
        facts,
        "Use the fused optimizer",
        why,
        MINUTE,
        change,
        most=spent,
        likely=FUSED_SAVES * spent,
        saves=[Role.OPTIMIZER],
    )


def _plain_adam(facts: Facts) -> bool:
    details = {span.detail for span in facts.profile.training_thread.spans if span.role is Role.OPTIMIZER}
    plain = any(detail.startswith(("_single_tensor_adam", "Adam.step")) for detail in details)
    return plain and not any("_fused_adam" in detail for detail in details)


def larger_minibatches(facts: Facts) -> Remedy | None:
    if not facts.operations or not is_small(facts) or facts.share(*LEARNING) < 0.25 or facts.uses("headrace"):
        return None
    rows, most = facts.counter("learning_batch") or 0, facts.learning * (1 - 1 / LARGER)
    why = (
        f"{facts.percent(facts.learning)} of the time goes into updates on {rows} rows of a network with "
        f"{facts.counter('parameters'):,} parameters. Updates this small are dominated by the overhead of Python and "
        "torch, not by arithmetic: fewer, larger ones take less time. They also learn differently: compare returns as "
        "well as speed."
    )
    title = f"Learn from minibatches of {LARGER * rows} instead of {rows}"
    return remedy(
        facts, title, why, HALF_AN_HOUR, snippet(facts, "minibatch", rows=LARGER * rows), most=most, saves=LEARNING
    )


def threads(facts: Facts) -> Remedy | None:
    pools, cores = facts.pools(), count(facts.cores, "core")
    number, most = sum(pools.values()), facts.spent(*NETWORK)
    in_workers = [lane for lane in facts.env_workers if lane.pid in pools]
    if in_workers:
        why = (
            f"{len(in_workers)} worker processes have a torch thread pool each, {number} threads in all for {cores}: "
            "they compete for the cores."
        )
        most = facts.spent(*NETWORK, Role.WAIT, Role.ENVIRONMENT)
        change = snippet(facts, "one_thread_each")
        return remedy(facts, "Give each worker process one thread", why, MINUTE, change, most=most)
    if number > facts.cores:
        why = f"{number} threads compute on {cores}."
    elif pools and is_small(facts):
        why = (
            "torch divides each operation among several threads; with a network this small, each has almost nothing to "
            "compute."
        )
    elif pools and (on_cpu := facts.on_cpu(*NETWORK)) < WAITING:
        why = (
            f"While it acts and learns, the training thread is on a core {percent(on_cpu)} of the time. For the rest "
            "it waits for torch's other threads, or for a core that another program uses."
        )
    else:
        return None
    return remedy(
        facts, "Let torch use one thread", why, MINUTE, snippet(facts, "one_thread"), most=most, saves=NETWORK
    )


def leave_the_gpu(facts: Facts) -> Remedy | None:
    spent = facts.spent(*NETWORK, Role.COPY, Role.LAUNCH)
    busy = facts.gpu_busy
    small = busy < IDLE if busy is not None else is_small(facts)
    if not facts.on_gpu or not small or spent < 0.2 * facts.total:
        return None
    why = "The GPU is mostly idle: its kernels finish sooner than they are launched and their data is copied."
    if busy is not None:
        why += f" In the {facts.percent(spent)} of the time that involve it, its kernels run {percent(busy)}."
    if "kernel_busy" in facts.profile.gpu:
        why += f" Kernels ran {facts.profile.gpu['kernel_busy']:.0f} % of the time."
    return remedy(facts, "Train on the CPU", why, MINUTE, snippet(facts, "device", device="cpu"), most=spent)


def fewer_copies(facts: Facts) -> Remedy | None:
    if not facts.on_gpu or facts.share(Role.COPY) < 0.05:
        return None
    site, spent = facts.site(Role.COPY), facts.spent(Role.COPY)
    why = f"{facts.percent(spent)} of the time goes into copies between host and GPU and waiting for them{at(site)}."
    title = "Read from the GPU once per update, not once per step"
    return remedy(facts, title, why, HALF_AN_HOUR, instead(site, snippet(facts, "read_once")), most=spent)


def use_a_gpu(facts: Facts) -> Remedy | None:
    spent = facts.spent(*NETWORK)
    if facts.on_gpu or facts.uses("headrace") or spent < 0.5 * facts.total:
        return None
    if facts.operations is None or is_small(facts):
        return None
    why = (
        f"{facts.percent(spent)} of the time goes into the network, and an update is "
        f"{facts.operations / 1e6:,.0f} million operations: enough for a GPU. Its gain was not measured here."
    )
    return remedy(
        facts,
        "Put the network on a GPU",
        why,
        MINUTES,
        snippet(facts, "device", device="cuda"),
        most=spent,
        saves=NETWORK,
    )


RULES = (fused_optimizer, larger_minibatches, threads, leave_the_gpu, fewer_copies, use_a_gpu)
