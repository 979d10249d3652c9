"""All kernels of a gradient as one: the same bits as one after the other, and code in which blocks see what others
wrote."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from helpers.assembled import assembled

from headrace.kernels.rows.builder import Builder
from headrace.kernels.rows.gpu import gpu_program
from headrace.kernels.rows.gpu.gpu_code import ptx
from headrace.kernels.rows.gpu.gpu_kernels import emitted
from headrace.kernels.rows.gpu.gpu_one_launch import FEWER, NAME
from headrace.kernels.rows.gpu.gpu_text import REGISTERS, SHARED, THREADS
from headrace.kernels.rows.row_program import Output, Program, whole
from headrace.kernels.rows.row_schedule import plan
from tests.bindings.losses import gru, ppo_residual, sac_critic
from tests.kernels.rows import on_threads
from tests.kernels.rows.compared import columns, numbers
from tests.kernels.rows.test_gpu_code import planned, wide

ROWS = 77


@pytest.mark.parametrize("make", [ppo_residual, sac_critic, gru, wide])
def test_one_launch_computes_the_bits_of_several(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own, _ = planned(make(40))
    for lanes in (4, 32):
        given = numbers(own.program, ROWS)
        parts, found = -(-ROWS // lanes), []
        for switch in ("0", "1"):
            monkeypatch.setenv("HEADRACE_ONE_LAUNCH", switch)
            found.append(on_threads.run(own, *given, lanes=lanes))
        assert lanes > 4 or parts > 2 * FEWER  # a block has several, and not all have as many
        for name, wanted in found[0].items():
            np.testing.assert_array_equal(found[1][name], wanted, err_msg=name)
        assert any(np.abs(x).max() > 0 for x in found[0].values())


@pytest.mark.parametrize("make", [ppo_residual, sac_critic, gru, wide])
def test_its_code_is_lean_and_reads_what_others_wrote(make: Any) -> None:
    own, dtypes = planned(make(40))
    for lanes in (64, 4):
        several = emitted(own, dtypes, lanes, gpu=True).kernels
        made = emitted(own, dtypes, lanes, gpu=True, one_launch=True)
        (kernel,) = made.kernels
        assert kernel.name == NAME and kernel.shared == max(one.shared for one in several) <= SHARED
        text = ptx(f"sm_90\n{made.text}").decode()
        assert ".f64" not in text and not re.search(r"[.]local|\bcall\b", text)
        assert "ld.global.nc" not in text  # such loads need not see what the same launch has written
        borders = len(several) - 1
        assert len(re.findall(r"atom[.]global[.]add[.]u64", text)) == borders > 1
        assert len(re.findall(r"ld[.]acquire[.]gpu", text)) == borders
        assert len(re.findall(r"fence[.]acq_rel[.]gpu", text)) == 2 * borders
        (found,) = assembled(text)
        assert found.spilled == found.stack == 0 and found.registers * THREADS <= REGISTERS


def test_what_sums_no_rows_is_launched_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acting has two kernels, and the first of a rollout packs the weights for all."""
    (x,), build = columns((3,)), Builder()
    own = plan(Program("none", (x,), (), (Output("y", build.map("tanh", whole(x))),)), vectors=False)
    monkeypatch.setenv("HEADRACE_ONE_LAUNCH", "1")
    program = gpu_program.compiled(own, ["float32"], 8, torch.device("cpu"))
    assert [kernel[0] for kernel in program.layout.kernels] == ["phase0"]


def test_records_of_both_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for switch in ("0", "1"):
        monkeypatch.setenv("HEADRACE_ONE_LAUNCH", switch)
        found.append(gpu_program.target(torch.device("cpu"), 100))
    assert found[0] != found[1]
