"""Products on tensor cores, which tests imitate by PTX's manual: as exact as float32's, or rounded as TF32 is."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from helpers.assembled import assembled

from headrace.kernels.rows.builder import Builder
from headrace.kernels.rows.gpu import gpu_program
from headrace.kernels.rows.gpu.gpu_code import ptx
from headrace.kernels.rows.gpu.gpu_kernels import emitted
from headrace.kernels.rows.gpu.gpu_tensor_cores import height_for
from headrace.kernels.rows.gpu.gpu_text import THREADS
from headrace.kernels.rows.row_plan import Plan
from headrace.kernels.rows.row_program import Output, Program, whole
from headrace.kernels.rows.row_schedule import plan
from tests.kernels.rows import in_numpy, on_threads
from tests.kernels.rows.compared import columns, numbers, uniforms

ROWS = 77


def layer(terms: int, rows: int) -> Plan:
    """A layer with a bias, and the gradient of its weights from another column."""
    (x, y), (weight, bias) = columns((terms,), (rows,)), uniforms((rows, terms), (rows,))
    build = Builder()
    made, gradient = build.product(whole(x), whole(weight), whole(bias)), build.outer(whole(y), whole(x))
    outputs = Output("made", made), Output("gradient", gradient)
    return plan(Program("layer", (x, y), (weight, bias), outputs), vectors=False)


def computed(own: Plan, given: Any, monkeypatch: pytest.MonkeyPatch, kind: str, lanes: int) -> dict[str, np.ndarray]:
    monkeypatch.setattr(gpu_program, "tensor_cores", lambda: kind)
    return on_threads.run(own, *given, lanes=lanes)


@pytest.mark.parametrize("lanes", [64, 32])
@pytest.mark.parametrize(("terms", "rows"), [(32, 48), (64, 128), (128, 96), (256, 256)])
def test_products_are_those_of_float32(terms: int, rows: int, lanes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    own = layer(terms, rows)
    given = numbers(own.program, ROWS)
    wanted = in_numpy.run(own.program, *given)
    errors = {}
    for kind in ("", "split", "plain"):
        found = computed(own, given, monkeypatch, kind, lanes)
        errors[kind] = {name: np.abs(found[name] - x).max() / np.abs(x).max() for name, x in wanted.items()}
    for name in wanted:
        assert errors["split"][name] <= 4e-7 + errors[""][name], errors
    assert 1e-6 < errors["plain"]["made"] < 1e-3  # TF32 has 11 bits
    assert max(errors["plain"].values()) < 1e-3


def test_what_is_infinite_or_no_number_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    own = layer(32, 32)
    (x, y), given = numbers(own.program, ROWS)
    x[3, 5], x[4, 6] = np.nan, np.inf
    found = computed(own, ([x, y], given), monkeypatch, "split", 32)["made"]
    assert not np.isfinite(found[[3, 4]]).any() and np.isfinite(np.delete(found, [3, 4], 0)).all()


def test_a_warps_tile_is_as_high_as_all_warps_have_one() -> None:
    assert height_for(256, 256, 64) == 32
    assert height_for(64, 64, 64) == 16  # of which there are eight
    assert height_for(64, 17, 64) == height_for(20, 64, 64) == height_for(64, 64, 16) == 0


@pytest.mark.parametrize("kind", ["split", "plain"])
def test_code_multiplies_by_the_instruction(kind: str) -> None:
    for lanes in (64, 32):
        made = emitted(layer(128, 256), ["float32", "float32"], lanes, gpu=True, tensor_cores=kind)
        text = ptx(f"sm_90\n{made.text}").decode()
        assert re.search(r"mma[.]sync[.]aligned[.]m16n8k8[.]row[.]col[.]f32[.]tf32[.]tf32[.]f32", text)
        assert "cvt.rna.tf32.f32" in text and ".f64" not in text and ".local" not in text
        for kernel in assembled(text):
            assert kernel.spilled == kernel.stack == 0 and kernel.registers * THREADS <= 65_536, kernel


def test_it_is_off_where_no_one_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_TENSOR_CORES", raising=False)
    assert gpu_program.tensor_cores() == ""
    monkeypatch.setenv("HEADRACE_TENSOR_CORES", "1")
    assert gpu_program.tensor_cores() == "split"
