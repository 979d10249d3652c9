"""Code for a GPU: PTX without doubles and without memory of a thread's own, whatever the rows of a block."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from headrace.bindings.compiled.loss_conditions import Conditions
from headrace.bindings.compiled.loss_program import NUMPY
from headrace.bindings.compiled.loss_tries import Tries
from headrace.kernels.rows.builder import Builder
from headrace.kernels.rows.gpu import gpu_program
from headrace.kernels.rows.gpu.gpu_adam import adam_text
from headrace.kernels.rows.gpu.gpu_code import ptx
from headrace.kernels.rows.gpu.gpu_gradients import ENOUGH, gradients_of
from headrace.kernels.rows.gpu.gpu_kernels import emitted
from headrace.kernels.rows.gpu.gpu_text import SHARED, THREADS
from headrace.kernels.rows.lowering.loss import lower
from headrace.kernels.rows.reasons import NotRows
from headrace.kernels.rows.row_plan import Plan
from headrace.kernels.rows.row_program import FUNCTIONS, Input, Output, Program, whole
from headrace.kernels.rows.row_schedule import plan
from headrace.kernels.rows.tracing.trace_loss import trace
from tests.bindings.losses import gru, ppo_residual, sac_critic


def planned(made: tuple[Any, tuple[Any, ...]]) -> tuple[Plan, list[str]]:
    """The plan of a loss, and the dtypes of its columns."""
    loss, arguments = made
    found = Conditions(loss, arguments, Tries()).given
    columns = [v for s, v in zip(found.sources, found.values, strict=True) if s.kind == "column"]
    return plan(lower(trace(loss, arguments, found, True), "loss"), vectors=False), [NUMPY[v.dtype] for v in columns]


def wide(rows: int) -> tuple[Any, tuple[Any, ...]]:
    """A regression whose gradients are computed apart."""
    net = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
    return lambda net, batch: net(batch["x"]).square().mean(), (net, {"x": torch.randn(rows, 8)})


@pytest.mark.parametrize("make", [ppo_residual, sac_critic, gru, wide])
def test_code_of_losses_is_lean(make: Any, tmp_path: Path) -> None:
    own, dtypes = planned(make(40))
    for lanes in (64, 4):
        made = emitted(own, dtypes, lanes, gpu=True)
        names = [kernel.name for kernel in made.kernels]
        assert any(name.startswith("phase") for name in names)
        assert (make is wide) == any(name.startswith("gradients") for name in names)
        assert all(kernel.shared <= SHARED for kernel in made.kernels)
        lean(ptx(f"sm_90\n{made.text}").decode(), names, tmp_path)


def test_large_products_load_four_numbers_at_a_time() -> None:
    own, dtypes = planned(wide(40))
    kernels = ptx(f"sm_90\n{emitted(own, dtypes, 64, gpu=True).text}").decode().split(".entry ")
    (gradients,) = (x for x in kernels if x.startswith("gradients"))
    assert {*re.findall(r"ld[.]global([.]v4)?[.]b32", gradients)} == {".v4"}
    (phase,) = (x for x in kernels if x.startswith("phase"))
    loop = phase[phase.index("ld.shared.v4") :]
    assert len(re.findall(r"ld[.]global[.]v4", loop)) >= 8 and len(re.findall(r"ld[.]shared[.]v4", loop)) >= 16


@pytest.mark.parametrize("layers", [1, 2, 5, 9])
def test_gradients_are_one_wave_of_blocks(layers: int) -> None:
    """A block beyond those that run at once would double the time."""
    hidden = [part for _ in range(layers) for part in (nn.Linear(256, 256), nn.ReLU())]
    net = nn.Sequential(nn.Linear(8, 256), *hidden, nn.Linear(256, 1))
    made = lambda net, batch: net(batch["x"]).square().mean(), (net, {"x": torch.randn(40, 8)})
    found = gradients_of(planned(made)[0])
    tiles = sum(math.prod(apart.tiles) for apart in found.apart.values())
    assert tiles == 4 * layers and ENOUGH - tiles < tiles * found.chunks <= ENOUGH


def test_no_function_needs_doubles() -> None:
    """A GPU has few units for them, and consumers' GPUs next to none."""
    build, inputs = Builder(), tuple(Input((), True, "f32", f"x{i}", i) for i in range(3))
    numbers, truths = [whole(x) for x in inputs], [build.map("bool", whole(x)) for x in inputs]
    given = dict.fromkeys(("and", "or", "xor", "not"), truths) | {"where": [truths[0], *numbers]}
    made = {name: build.map(name, *given.get(name, numbers)[:count]) for name, count in FUNCTIONS.items()}
    outputs = tuple(Output(name, build.map("float", x) if x.value.dtype != "f32" else x) for name, x in made.items())
    text = emitted(plan(Program("all", inputs, (), outputs), vectors=False), ["float32"] * 3, 4, gpu=True).text
    assert {"sin", "cos", "fmod", "lgamma", "pow"} <= made.keys()
    assert "double" not in text and ".f64" not in ptx(f"sm_90\n{text}").decode()


def test_code_of_adam_is_lean(tmp_path: Path) -> None:
    lean(ptx(f"sm_90\n{adam_text(gpu=True)}").decode(), ["squares", "adam"], tmp_path)


def lean(text: str, names: list[str], folder: Path) -> None:
    """Assert that PTX has these kernels and only what a GPU does fast; that no register is kept elsewhere, where the
    assembler is there to say so."""
    assert sorted(re.findall(r"[.]entry (\w+)", text)) == sorted(names)
    assert ".f64" not in text and not re.search(r"[.]local", text)
    assert "fma.rn.f32" in text and re.search(r"ld[.]shared", text)
    assert all(found == f"{THREADS}" for found in re.findall(r"[.]maxntid (\d+)", text))
    assembler = shutil.which("ptxas")
    if assembler is None:
        return
    (folder / "code.ptx").write_text(text)
    command = [assembler, "-arch=sm_90", "-v", "-o", str(folder / "code.cubin"), str(folder / "code.ptx")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    spilled = [int(number) for number in re.findall(r"(\d+) bytes spill stores", done.stderr)]
    assert len(spilled) == len(names) and max(spilled) == 0
    assert all(int(number) * THREADS <= 65_536 for number in re.findall(r"Used (\d+) registers", done.stderr))


def test_wide_layers_and_many_rows_are_plain() -> None:
    """Plain PyTorch was measured to be faster with both, and not with either alone."""
    own, dtypes = planned(wide(40))
    for weights, rows, refused in ((141_574, 131_072, True), (141_574, 2048, False), (34_694, 131_072, False)):
        own.accumulators = weights
        if refused:
            with pytest.raises(NotRows, match="141,574 weights and 131,072 rows plain PyTorch is faster on a GPU"):
                gpu_program.compiled(own, dtypes, rows, torch.device("cpu"))
        else:
            gpu_program.refuse_wide(own, rows)


@pytest.mark.parametrize(("rows", "lanes"), [(131_072, 64), (16_384, 64), (8192, 64), (2048, 16), (256, 4), (3, 4)])
def test_rows_of_a_block_suit_the_minibatch(rows: int, lanes: int) -> None:
    """A GPU has enough blocks, if there are enough rows, and room for two of them at a time."""
    own, _ = planned(ppo_residual(40))
    found = gpu_program._lanes(own, rows)
    assert found == lanes
    assert 2 * 4 * own.tiles * found <= SHARED
