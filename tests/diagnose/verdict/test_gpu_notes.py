"""Sentences about a GPU follow from the figures that are printed."""

from __future__ import annotations

import pytest
from helpers.profiles import profile

from headrace.diagnose.profile.profile import Profile
from headrace.diagnose.verdict.profile_facts import Facts
from headrace.diagnose.verdict.verdict import judge


def _jax(busy: float) -> Profile:
    """Learning 90 %, with NVML's figure of a GPU."""
    made = profile(FORWARD=0.9, DATA=0.1, gpu="H100")
    made.machine.versions, made.gpu = {"jax": "0.10.2"}, {"nvml_busy": busy, "memory_mb": 60_000.0}
    made.training_thread.samples = 1_000_000  # hardly an error
    return made


@pytest.mark.parametrize(("busy", "bound"), [(83.0, 1 / 0.17), (50.0, 2.0), (95.0, 10.0)])
def test_a_faster_gpu_shortens_its_kernels_alone(busy: float, bound: float) -> None:
    said = judge(Facts(_jax(busy))).bounds
    gained = float(said.rpartition("at most ")[2].removesuffix("x."))
    assert gained == pytest.approx(bound, rel=0.03)
    assert (f"its kernels and copies at most {busy:.0f} %" in said) == (busy < 90)


def test_without_nvml_a_faster_gpu_may_shorten_all_that_involves_it() -> None:
    made = profile(FORWARD=0.5, ENVIRONMENT=0.5, counters={"cuda": 1}, gpu="H100")
    made.training_thread.samples = 1_000_000
    assert "takes 50 % of the time: a faster GPU gains at most 2.0" in judge(Facts(made)).bounds


def test_a_thread_without_a_core_may_wait_for_the_gpu() -> None:
    made = _jax(83.0)
    for span in made.training_thread.spans:
        span.on_cpu = 0.3
    assert "waited for the GPU, or inside the environment." in judge(Facts(made)).notes[-1]
    made.machine.versions, made.gpu = {}, {}
    assert "waited for other threads of its libraries" in judge(Facts(made)).notes[-1]
