"""The benchmarks about GPUs, as far as they run without one."""

from __future__ import annotations

import sys

import pytest
import torch
from helpers import benchmark, forked

from benchmarks.speed import cpu_or_gpu


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_cpu_or_gpu_prints_the_cpus_half(tmp_path):
    done = benchmark.ran("speed.cpu_or_gpu", tmp_path, "--quick")
    assert "there is no GPU here" in done.stdout
    result = benchmark.last(done)
    assert result["gpu"] is None and result["crossover"] is None
    assert [row["placement"] for row in result["rows"]] == ["cpu", "cpu"]
    assert [row["weights"] for row in result["rows"]] == [1003, 10747]
    assert all(0 < row["sps_min"] <= row["sps"] for row in result["rows"])


def rows(network, *speeds):
    made = []
    for k, (cpu, toggling, gpu) in enumerate(speeds):
        for placement, sps in (("cpu", cpu), ("toggling", toggling), ("gpu", gpu)):
            made.append({"network": network, "weights": 10**k, "placement": placement, "sps": sps})
    return made


def test_the_crossover_is_where_every_larger_network_is_faster_too():
    assert cpu_or_gpu.crossover(rows("MLP", (9, 1, 2), (5, 6, 2), (4, 1, 3), (2, 3, 9), (1, 1, 9))) == 1000
    assert cpu_or_gpu.crossover(rows("MLP", (9, 1, 2), (5, 1, 2))) is None
    assert cpu_or_gpu.crossover(rows("MLP", (1, 2, 2), (1, 2, 3)) + rows("CNN", (9, 1, 1))) == 1


def test_toggling_learns_with_the_weights_it_acts_with():
    case = cpu_or_gpu.Case("MLP", (6,), 4, 32)
    learner, speed = cpu_or_gpu._toggling(case, torch.device("cpu"), 0.01)
    assert speed["sps"] > 0 and learner.iteration >= 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_benchmark_of_the_gpu_says_what_it_needs(tmp_path):
    command = [sys.executable, "-m", "benchmarks.speed.gpu", "--output", str(tmp_path / "gpu.json")]
    done = forked.run(command, cwd=benchmark.ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and "needs an NVIDIA GPU" in done.stderr
