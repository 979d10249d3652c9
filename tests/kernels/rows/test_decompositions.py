"""The operations that are taken apart while tracing are those of our list, whatever torch adds to its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.kernels.rows.tracing.decompositions import PINNED, table

OURS = {  # whose functions are in kernels/rows/tracing
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"),
    *("_weight_norm_interface", "_weight_norm_interface_backward", "linalg_solve_triangular", "cosh", "sinh", "tan"),
    *("convolution", "convolution_backward", "avg_pool2d", "avg_pool2d_backward", "max_pool2d_with_indices"),
    *("max_pool2d_with_indices_backward", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "constant_pad_nd"),
    "unfold_backward",
}


def packets(keys: Any) -> set[str]:
    return {key._overloadpacket.__name__ for key in keys}


def test_the_table_has_the_pinned_operations_and_ours_alone():
    pinned = {name.partition(".")[0] for name in PINNED}
    assert len({*PINNED}) == len(PINNED) and [*PINNED] == sorted(PINNED)
    assert packets(table()) == pinned | OURS and not pinned & OURS
    of_torch = packets(key for key, rule in table().items() if rule.__module__.startswith("torch."))
    assert of_torch == pinned


def test_a_rule_that_torch_adds_is_not_taken(monkeypatch: pytest.MonkeyPatch):
    from torch._decomp import decomposition_table

    before = table()
    monkeypatch.setitem(decomposition_table, torch.ops.aten.tanh.default, lambda x: 2 * (2 * x).sigmoid() - 1)
    assert table.__wrapped__().keys() == before.keys()


def test_an_operation_that_is_not_in_the_list_is_refused_by_name():
    def loss(net: nn.Module, x: Tensor) -> Tensor:
        return nn.functional.interpolate(net(x).unflatten(1, (1, 2, 2)), scale_factor=2, mode="bilinear").mean()

    reason = hr.compile(loss).why_not(nn.Linear(3, 4), torch.randn(20, 3))
    assert reason is not None and "upsample_bilinear2d" in reason and "test_decompositions.py" in reason
