"""The benchmarks about GPUs, as far as they run without one."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from functools import partial

import pytest
import torch
from helpers import benchmark, forked
from helpers.assembled import assembled

from benchmarks.speed import cpu_or_gpu, gpu, gpu_aims, gpu_card, gpu_carried, gpu_ceilings, gpu_expected, gpu_tools
from headrace.kernels.rows.gpu import gpu_code


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
    for k, (cpu, toggling, card) in enumerate(speeds):
        for placement, sps in (("cpu", cpu), ("toggling", toggling), ("gpu", card)):
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


def test_each_part_runs_on_the_cpu_in_a_dry_run(tmp_path):
    """All code of the parts, but for what CUDA alone has; what they print after each part is what they write."""
    command = [sys.executable, "-m", "benchmarks.speed.gpu", "--dry", "--output", str(tmp_path / "gpu.json")]
    done = forked.run([*command, "--without", "rejax", "gymnax"], cwd=benchmark.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "gpu.json").read_text())
    printed = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    names = [name for name in gpu.parts() if name not in ("rejax", "gymnax")]
    assert [one.pop("part") for one in printed] == names and result["dry"]
    assert printed == [result[name] for name in names]
    assert all(result[name]["rows"] for name in names if name != "entities")


def waiting(seconds):
    return [sys.executable, "-c", f"print('ROW {{\"a\": 1}}', flush=True); import time; time.sleep({seconds})"]


def test_a_part_is_ended_at_its_limit_and_its_rows_stay():
    began = time.monotonic()
    found = gpu.run_part(waiting(60), 1.5)
    assert found["rows"] == [{"a": 1}] and "ended at its limit of 2 seconds" in found["error"]
    assert time.monotonic() - began < 30


def test_others_run_after_a_part_that_fails_and_as_long_as_there_is_time(tmp_path, capsys):
    failing = "import sys; name = sys.argv[-1]; print('ROW {\"name\": \"' + name + '\"}'); sys.exit(name == 'first')"
    result, options = {}, argparse.Namespace(output=tmp_path / "gpu.json", limit=60.0)
    gpu.run_all({"first": 20, "second": 20}, [sys.executable, "-c", failing], result, options)
    assert result["first"]["error"] == "ended with 1" and "error" not in result["second"]
    assert [result[name]["rows"] for name in result] == [[{"name": "first"}], [{"name": "second"}]]
    assert [json.loads(line)["part"] for line in capsys.readouterr().out.splitlines()] == ["first", "second"]
    options.limit = 3.0
    gpu.run_all({"third": 20}, waiting(60), result, options)
    assert result["third"]["left_out"] == "of 3 seconds 3 were left"
    assert json.loads(options.output.read_text()) == result


def test_a_part_that_there_is_not_is_an_error():
    with pytest.raises(SystemExit, match="there is no part nothing; parts are check, ceilings, memcheck"):
        gpu.main(["--dry", "--only", "nothing"])


def test_kernels_that_were_carried_are_loaded(tmp_path, monkeypatch):
    if (program := gpu_carried.assembler()) is None:
        pytest.skip("no ptxas")
    monkeypatch.setattr(gpu_code, "ptx", gpu_code.ptx)
    assert gpu_carried.build(tmp_path, program, [partial(gpu_carried.of_loss, "PPO 2 x 64", 2048)]) >= 2  # and Adam's
    counts = gpu_carried.install(tmp_path)
    text = f"{gpu_carried.ARCHITECTURE}\n{gpu_carried.adam_text(gpu=True)}"
    assert gpu_code.ptx(text).startswith(b"\x7fELF") and counts == {"carried": 1, "made here": 0}
    assert b".entry adam" in gpu_code.ptx(text.replace("sm_90", "sm_80", 1)) and counts["made here"] == 1


def test_ceilings_are_of_kernels_that_do_little_else():
    for name, text, instruction, count in (
        ("fma", gpu_ceilings.fma_text(), r"fma[.]rn[.]f32", gpu_ceilings.CHAINS * gpu_ceilings.UNROLLED),
        ("mma", gpu_ceilings.mma_text(), r"mma[.]sync", gpu_ceilings.TILES * gpu_ceilings.TILES_UNROLLED),
    ):
        ptx = gpu_code.ptx(f"sm_90\n{text}").decode()
        assert len(re.findall(instruction, ptx)) == count
        (kernel,) = assembled(ptx)
        assert kernel.name == name and kernel.spilled == kernel.stack == 0


def test_the_metrics_of_a_profile_are_read():
    """Kernels belong to what was profiled last: a kernel without metrics of its own marks where the next begins."""
    head = '"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"'
    light = "GPU Speed Of Light Throughput"
    table = [(0, "fma", light, "Memory Throughput", "%", "0.1"), (0, "fma", "Occupancy", "", "", "")]
    table += [(1, "phase0", light, "Memory Throughput", "%", "41.5"), (2, "sum0(long)", light, "Duration", "us", "3.5")]
    table += [(3, "fma", light, "Duration", "us", "1"), (4, "phase0", light, "Duration", "us", "88")]
    said = ["==PROF== Connected", head, *(",".join(f'"{x}"' for x in row) for row in table), "done"]
    first, second = gpu_tools.counted(said)
    assert first == {"1 phase0": {f"{light}: Memory Throughput": "41.5 %"}, "2 sum0": {f"{light}: Duration": "3.5 us"}}
    assert second == {"4 phase0": {f"{light}: Duration": "88 us"}}


# of compute-sanitizer 2025.3.1 (CUDA 13.0), by its --help; of ncu, by its manual
SANITIZERS = {"--tool", "--report-api-errors", "--error-exitcode", "--print-limit", "--kernel-name-exclude"}
PROFILERS = {"--profile-from-start", "--csv", "--page", "--section"}


def test_tools_are_given_options_that_they_have():
    for check in ("memcheck", "racecheck"):
        assert {x for x in gpu_tools.sanitizer_options(check) if x.startswith("--")} <= SANITIZERS
    assert {x for x in gpu_tools.profiler_options() if x.startswith("--")} == PROFILERS
    program = gpu_tools.tool("compute-sanitizer")
    if program is not None:  # it says so of an option that it does not have, before it runs anything
        done = forked.run([program, *gpu_tools.sanitizer_options("memcheck"), "--help"], capture_output=True, text=True)
        assert "unrecognised option" not in done.stdout + done.stderr


@pytest.mark.parametrize("part", ["memcheck", "profile"])
def test_a_tool_that_fails_is_an_error_of_its_part_alone(part, tmp_path, monkeypatch):
    """Messages as compute-sanitizer has where no GPU can be reached, and ncu without permission to count."""
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\necho '========= Error: no card'\necho ERR_NVGPUCTRPERM >&2\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setattr(gpu_tools, "tool", lambda name: str(program))
    rows, card = [], gpu_card.Card(dry=False)
    monkeypatch.setattr(card, "tell", lambda **row: rows.append(row))
    with pytest.raises(RuntimeError, match=r"ended with 9: .*ERR_NVGPUCTRPERM" if part == "memcheck" else "with 9: ="):
        gpu.parts()[part].call(card)
    assert [row["said"] for row in rows] == [["========= Error: no card"]] * (part == "memcheck")


def test_the_page_has_the_table_of_expected_times():
    assert gpu_expected.table() in gpu_expected.PAGE.read_text()


def test_the_page_has_the_table_of_aims():
    assert gpu_aims.table() in gpu_expected.PAGE.read_text()
    # two critics of 12 weights and their targets, an actor of 6: outputs, gradients of weights, and of what comes in
    assert gpu_aims.off_policy_flop([2, 3], [3, 4], delay=1) == 2 * (2 * 3 * 12 + 2 * 12 + 6 + 3 * 6 + 2 * 2 * 12)
