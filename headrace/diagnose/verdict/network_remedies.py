"""Remedies for the network's part: acting, learning, and what lies between host and GPU."""

from __future__ import annotations

from headrace.diagnose.profile.formatting import at, count, percent
from headrace.diagnose.profile.profile import LEARNING, Role
from headrace.diagnose.verdict import snippets
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.remedy import HALF_AN_HOUR, MINUTE, MINUTES, Remedy, remedy

FUSED_SAVES = 0.55  # of the optimizer's time: Adam(fused=True) on a CPU takes a third of it or less, clipping stays
SMALL = 20e6  # operations of an update that a GPU ends sooner than its kernels are launched (100 x 5 us, 40 TFLOP/s)
USUAL_ROWS = 256  # of a minibatch that was not seen
WAITING = 0.7  # of its arithmetic that a thread is on a core; with less, threads may cost more than they give
LARGER = 4  # "minibatches four times larger"


def is_small(facts: Facts) -> bool:
    """Whether the network and its batches are known to be too small to keep a GPU busy."""
    parameters = facts.counter("parameters")
    most = facts.operations or (6 * parameters * USUAL_ROWS if parameters else None)
    return most is not None and most < SMALL


def fused_optimizer(facts: Facts) -> Remedy | None:
    spent = facts.spent(Role.OPTIMIZER)
    if facts.share(Role.OPTIMIZER) < 0.08 or facts.on_gpu or facts.uses("headrace") or not _plain_adam(facts):
        return None
    why = (
        f"{percent(spent / facts.base)} of the time is the optimizer's. Adam on a CPU takes parameter by parameter; "
        "the fused one takes them in one call, about three times faster, and gives the same numbers up to rounding."
    )
    title = "Use the fused optimizer"
    change = snippets.fused(facts)
    return remedy(facts, title, why, MINUTE, change, most=spent, likely=FUSED_SAVES * spent)


def _plain_adam(facts: Facts) -> bool:
    details = {span.detail for span in facts.profile.driver.spans if span.role is Role.OPTIMIZER}
    plain = any(detail.startswith(("_single_tensor_adam", "Adam.step")) for detail in details)
    return plain and not any("_fused_adam" in detail for detail in details)


def larger_minibatches(facts: Facts) -> Remedy | None:
    if not facts.operations or not is_small(facts) or facts.share(*LEARNING) < 0.25 or facts.uses("headrace"):
        return None
    rows, most = facts.counter("learning_batch"), facts.learning * (1 - 1 / LARGER)
    why = (
        f"{percent(facts.share(*LEARNING))} of the time goes into updates on {rows} rows of a network with "
        f"{facts.counter('parameters'):,} parameters. So small an update costs Python and torch's overhead, not "
        "arithmetic: fewer, larger ones cost less. They also learn differently: compare returns as well as speed."
    )
    title = f"Learn from minibatches of {LARGER * (rows or 0)} instead of {rows}"
    return remedy(facts, title, why, HALF_AN_HOUR, snippets.minibatch(facts, LARGER), most=most, likely=None)


def threads(facts: Facts) -> Remedy | None:
    pools, cores = facts.pools(), facts.cores
    in_workers = [pools[lane.pid] for lane in facts.stepping if lane.pid in pools]
    touched = facts.spent(*LEARNING, Role.INFERENCE, Role.WAIT, Role.ENVIRONMENT)
    if in_workers:
        why = (
            f"{len(in_workers)} worker processes have a thread pool of torch each, {sum(pools.values())} threads in "
            f"all for {count(cores, 'core')}: they take the cores from each other."
        )
        title = "Give each worker process one thread"
        return remedy(facts, title, why, MINUTE, snippets.OMP_THREADS, most=touched, likely=None)
    if sum(pools.values()) > cores:
        why = f"{sum(pools.values())} threads do arithmetic on {count(cores, 'core')}."
    elif pools and is_small(facts):
        why = (
            "torch divides each operation among several threads; of so small a network each has next to nothing to do."
        )
    elif pools and facts.on_cpu(*LEARNING, Role.INFERENCE) < WAITING:
        share = percent(facts.on_cpu(*LEARNING, Role.INFERENCE))
        why = (
            f"While it acts and learns, the driving thread is on a core {share} of the time. Otherwise it waits for "
            "torch's other threads, or for a core that another program has."
        )
    else:
        return None
    title = "Let torch use one thread"
    most = facts.spent(*LEARNING, Role.INFERENCE)
    return remedy(facts, title, why, MINUTE, snippets.TORCH_THREADS, most=most, likely=None)


def leave_the_gpu(facts: Facts) -> Remedy | None:
    spent = facts.spent(*LEARNING, Role.INFERENCE, Role.COPY, Role.LAUNCH)
    small = is_small(facts) or facts.profile.gpu.get("kernel_busy", 100.0) < 20.0
    if not facts.on_gpu or not small or spent < 0.2 * facts.base:
        return None
    why = "The GPU waits: what it is given ends sooner than it can be launched and copied."
    if "kernel_busy" in facts.profile.gpu:
        why += f" Kernels ran {facts.profile.gpu['kernel_busy']:.0f} % of the time."
    return remedy(facts, "Train on the CPU", why, MINUTE, snippets.device(facts, "cpu"), most=spent, likely=None)


def fewer_copies(facts: Facts) -> Remedy | None:
    if not facts.on_gpu or facts.share(Role.COPY) < 0.05:
        return None
    site = facts.site(Role.COPY)
    share = percent(facts.share(Role.COPY))
    why = f"{share} of the time goes into copies between host and GPU, and waiting for them{at(site)}."
    title = "Read from the GPU once an update, not once a step"
    return remedy(facts, title, why, HALF_AN_HOUR, snippets.copies(site), most=facts.spent(Role.COPY), likely=None)


def use_a_gpu(facts: Facts) -> Remedy | None:
    spent = facts.spent(*LEARNING, Role.INFERENCE)
    if facts.on_gpu or facts.uses("headrace") or spent < 0.5 * facts.base:
        return None
    if facts.operations is None or is_small(facts):
        return None
    why = (
        f"{percent(spent / facts.base)} of the time is the network's, and an update is "
        f"{facts.operations / 1e6:,.0f} million operations: enough for a GPU. What one gains was not measured here."
    )
    title = "Put the network on a GPU"
    return remedy(facts, title, why, MINUTES, snippets.device(facts, "cuda"), most=spent, likely=None)
