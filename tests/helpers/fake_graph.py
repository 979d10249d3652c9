"""A CUDA graph as the CPU can imitate it: every operation of a function, run again on the tensors it ran on first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Recorder(TorchDispatchMode):
    """Keeps operations with the very tensors they read and wrote; numbers of the host are kept as they were then."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        made = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        fresh = [x for x in made if x.untyped_storage().data_ptr() not in given]
        if fresh or not operation.is_view:
            self.operations.append((operation, args, kwargs or {}, fresh))
        return result

    def replay(self) -> None:
        for operation, args, kwargs, fresh in self.operations:
            result = operation(*args, **kwargs)
            if fresh:
                made = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
                for kept, new in zip(fresh, made, strict=True):
                    kept.copy_(new)


def record(body: Callable[[], None]) -> Callable[[], None]:
    """Record a function as headrace.parallel.cuda.cuda_graphs.cuda_graph does. The function also runs, and the caller
    restores what it changes."""
    recorder = Recorder()
    with recorder:
        body()

    def replay() -> None:
        import torch

        with torch.no_grad():
            recorder.replay()

    return replay


def put_back(collector: Any, algorithm: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """A capture that leaves no trace, as that of a GPU leaves none."""

    def capture(body: Callable[[], None]) -> Callable[[], None]:
        before = algorithm.state_dict(), collector.state_dict()
        replay = record(body)
        algorithm.load_state_dict(before[0])
        collector.load_state_dict(before[1])
        return replay

    return capture
