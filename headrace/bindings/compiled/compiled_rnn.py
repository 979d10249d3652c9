"""RNNCell.sequence by row programs, forward and backward, for the CPU. A row is a sequence."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from headrace.bindings.compiled.row_functions import LastFound, RowFunction
from headrace.core.fused import register
from headrace.policies.rnn import RNNCell

BURN_INS = 64  # numbers of leading steps, whose functions are kept at most
_last = LastFound()


@lru_cache(BURN_INS)
def _function(burn_in: int) -> RowFunction:
    """Outputs [N, K, T, size] of N sequences, from states [N, K * width], valid [N, T] and features [N, T, inputs] of
    each of K cells, which lie in memory as networks output them."""

    def outputs(rnn: RNNCell, rnn_state: Tensor, valid: Tensor, *features: Tensor) -> Tensor:
        steps_first = torch.stack(features).transpose(1, 2)
        return rnn.sequence(steps_first, rnn_state, valid.t(), burn_in).movedim(2, 0)

    return RowFunction(outputs)


def _columns(features: Tensor, rnn_state: Tensor, valid: Tensor) -> tuple[Tensor, ...]:
    return rnn_state, valid.t(), *features.transpose(1, 2).unbind(0)


def serves(rnn: RNNCell, features: Tensor, rnn_state: Tensor, valid: Tensor, burn_in: int = 0) -> bool | str:
    """True if programs compute these sequences; else the reason."""
    if not all(isinstance(x, Tensor) for x in (features, rnn_state, valid)) or type(burn_in) is not int:
        return False
    if features.dim() != 4 or valid.dim() != 2 or features.dtype != torch.float32:
        return False
    if type(rnn) is not RNNCell:
        return f"it is written for RNNCell, not for {type(rnn).__name__}"
    found = _function(burn_in).find(rnn, _columns(features, rnn_state, valid))
    return _last.answer(found, rnn, features, rnn_state, valid)


@register("rnn.sequence", serves)
def sequence(rnn: RNNCell, features: Tensor, rnn_state: Tensor, valid: Tensor, burn_in: int = 0) -> Tensor:
    """headrace.policies.rnn.RNNCell.sequence, with the same outputs and gradients within rounding."""
    function, columns = _function(burn_in), _columns(features, rnn_state, valid)
    found: Any = _last.take(rnn, features, rnn_state, valid) or function.find(rnn, columns)
    return function.run(found, rnn, columns).movedim(0, 2)
