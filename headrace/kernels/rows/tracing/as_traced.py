"""Changes of PyTorch while a loss is traced, in the thread that traces it alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import _rnn_helper, gather_params, one_layer_lstm
from torch.overrides import TorchFunctionMode

from headrace.kernels.rows.reasons import NotRows, place_in, stack_here
from headrace.kernels.rows.tracing.graph_recorder import note_place
from headrace.kernels.rows.tracing.switches import unchecked


class AsTraced(TorchFunctionMode):
    """Traces an LSTM's steps, where oneDNN makes one operation of them all, and numbers as tensors.

    numbers: what `.item()` returned, and what was computed of that alone; by their ids.
    """

    def __init__(self) -> None:
        super().__init__()
        self.numbers: dict[int, Tensor] = {}

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name == "lstm" and isinstance(args[1], list | tuple):  # else it is of a PackedSequence
            return _lstm_by_step(*args)
        if name == "item" or (name == "tolist" and not args[0].dim()):
            found = args[0].detach().reshape(()).clone()
            if found.dtype == torch.float64:  # as Python's numbers are that it is computed with
                found = found.float()
        else:
            if name in ("__format__", "__repr__") and id(args[0]) in self.numbers:
                raise NotRows("writes a number of a tensor as text", place_in(stack_here()))
            found = function(*args, **(kwargs or {}))
            note_place(found)
            tensors = [x for x in args if isinstance(x, Tensor)] if self.numbers else []
            if not tensors or not isinstance(found, Tensor) or any(id(x) not in self.numbers for x in tensors):
                return found
        self.numbers[id(found)] = found
        return found


def _lstm_by_step(*args: Any) -> Any:
    """Compute an LSTM step by step: the arguments and results of torch's lstm()."""
    x, (hidden, cell), parameters, has_biases, layers, dropout, training, both_ways, batch_first = args
    parameters = gather_params(parameters, has_biases, hidden.size(2) != cell.size(2))
    states = list(zip(hidden, cell, strict=True))
    settings = layers, dropout, training, both_ways, batch_first
    found, states = _rnn_helper(x, states, parameters, has_biases, *settings, one_layer_lstm)
    # torch 2.11 leaves a dimension of 1 in these
    shaped = zip(zip(*states, strict=True), (hidden, cell), strict=True)
    return found, *(torch.stack(own, 0).reshape(before.shape) for own, before in shaped)


@contextmanager
def as_traced() -> Iterator[AsTraced]:
    """Change torch within this block, in this thread. Distributions do not check their arguments, which would read the
    data; an LSTM is its steps, and `.item()` returns a tensor."""
    with unchecked(), AsTraced() as mode:
        yield mode
