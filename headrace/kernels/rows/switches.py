"""What torch does otherwise while a loss is traced, in the thread that traces it alone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._decomp.decompositions import _rnn_helper, gather_params, one_layer_lstm
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributions import Distribution
from torch.overrides import TorchFunctionMode

_here = threading.local()


class _Validation:
    """Distribution._validate_args while any thread traces: False there, elsewhere what it was."""

    def __init__(self, usual: bool) -> None:
        self.usual = usual

    def __get__(self, owner: object, kind: type) -> bool:
        return self.usual and not getattr(_here, "traces", False)


def _is_others(_: logging.LogRecord) -> bool:
    """Whether a log record is of another thread; of this one, what stops a trace is said in one line."""
    return not getattr(_here, "traces", False)


class _LSTMByStep(TorchFunctionMode):
    """Has an LSTM's steps traced, where oneDNN makes one operation of them all."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function.__name__ != "lstm" or not isinstance(args[1], list | tuple):  # else it is of a PackedSequence
            return function(*args, **(kwargs or {}))
        x, (hidden, cell), parameters, has_biases, layers, dropout, training, both_ways, batch_first = args
        parameters = gather_params(parameters, has_biases, hidden.size(2) != cell.size(2))
        states = list(zip(hidden, cell, strict=True))
        settings = layers, dropout, training, both_ways, batch_first
        found, states = _rnn_helper(x, states, parameters, has_biases, *settings, one_layer_lstm)
        return found, *(torch.stack(states, 0) for states in zip(*states, strict=True))


_lock, _tracing = threading.Lock(), 0


@contextmanager
def as_traced() -> Iterator[None]:
    """Inside, in this thread: distributions do not check their arguments, which asks about the data, and fake tensors
    log nothing; an LSTM is its steps."""
    before = getattr(_here, "traces", False)
    _count(1)
    _here.traces = True
    try:
        with _LSTMByStep():
            yield
    finally:
        _here.traces = before
        _count(-1)


def _count(change: int) -> None:
    """One more thread that traces, or one less: the first and the last change what all threads share."""
    global _tracing
    logger = logging.getLogger(FakeTensor.__module__)
    with _lock:
        _tracing += change
        own = vars(Distribution)["_validate_args"]
        if change > 0:
            if not isinstance(own, _Validation):
                Distribution._validate_args = _Validation(own)  # type: ignore[assignment]
            logger.addFilter(_is_others)
        elif not _tracing:
            if isinstance(own, _Validation):  # else somebody has called set_default_validate_args()
                Distribution._validate_args = own.usual
            logger.removeFilter(_is_others)
