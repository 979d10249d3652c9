"""Sentences about the GPU: how busy it is, and how much a GPU, or a faster one, can gain."""

from __future__ import annotations

from headrace.diagnose.profile.formatting import capitalized, count, times
from headrace.diagnose.profile.profile import Role
from headrace.diagnose.verdict.network_remedies import NETWORK, is_small
from headrace.diagnose.verdict.profile_facts import FEW_UNSURE, Facts
from headrace.diagnose.verdict.remedy import UNBOUNDED


def bound(facts: Facts) -> str:
    """Bound of the gain from a GPU, or from a faster one."""
    spent = facts.spent(*NETWORK, Role.COPY, Role.LAUNCH)
    most, share = facts.bound(spent), facts.percent(spent)
    if facts.on_gpu:
        return f"Everything that involves the GPU takes {share} of the time{_of_a_faster_one(facts, spent)}."
    network = f"acting and learning take {share} of the time"
    if most < 1.5 and facts.unsure > FEW_UNSURE:
        return f"A GPU can gain at most {times(facts.bound(spent, unsure=facts.may_be(*NETWORK)))}: {network}."
    if most < 1.5:
        return f"Stay on the CPU. A GPU can gain at most {times(most)}: {network}."
    if is_small(facts):
        unreached = (
            f" At most {times(most)} if both took no time, which a GPU does not reach." if most < UNBOUNDED else ""
        )
        return (
            f"Stay on the CPU. {capitalized(network)}, but {_size(facts)}: a GPU would finish an update before its "
            f"kernels could be launched.{unreached}"
        )
    if most >= UNBOUNDED:
        return f"{capitalized(network)}, so this profile does not bound what a GPU can gain."
    return f"A GPU can gain at most {times(most)}: {network}."


def _of_a_faster_one(facts: Facts, spent: float) -> str:
    """Bound of a faster GPU's gain: only kernels and copies shorten. NVML never underestimates the kernels' time."""
    working = facts.profile.gpu.get("nvml_busy", 100.0) / 100 * facts.total + facts.spent(Role.COPY)
    if working >= spent:
        return f": a faster GPU gains at most {times(facts.bound(spent))}"
    most = times(facts.bound(working))
    return f", and its kernels and copies at most {facts.percent(working)}: a faster GPU gains at most {most}"


def _size(facts: Facts) -> str:
    """Size of the network, in words."""
    parameters = f"the network has {facts.counter('parameters') or 0:,} parameters"
    update = f" and an update takes {facts.operations / 1e6:.1f} million operations" if facts.operations else ""
    return parameters + update


def notes(facts: Facts) -> list[str]:
    """Sentences on how busy the GPU is, by each of its figures."""
    gpu, found = facts.profile.gpu, []
    if "nvml_busy" in gpu:
        found.append(
            f"NVML (nvidia-smi) reports that the GPU is {gpu['nvml_busy']:.0f} % busy. It counts every short period in "
            "which any kernel ran."
        )
    if "kernel_busy" in gpu:
        found.append(
            f"Kernels ran {gpu['kernel_busy']:.0f} % of the time, as measured by torch's profiler in "
            f"{count(int(gpu.get('kernel_windows', 1)), 'window')} of half a second. Per "
            f"second, the script makes {gpu['launches_per_second']:,.0f} kernel launches, waits for the GPU "
            f"{gpu['synchronisations_per_second']:,.0f} times, and copies {gpu['copied_mb_per_second']:,.0f} MB."
        )
    return found
