"""Settings whose number Python reads, as by an `if`. They are constants of a program; other settings are inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

ASKING = {"__bool__", "__float__", "__int__", "__index__", "__format__", "__repr__"}


class Asked(TorchFunctionMode):
    """Note, in `names`, settings whose number Python reads within this block: from the setting's own tensor, or from
    one that is computed from settings alone.

    settings: tensors that stand for settings, by name.
    """

    def __init__(self, settings: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names: set[str] = set()
        self._made = {id(tensor): (tensor, frozenset((name,))) for name, tensor in settings.items()}

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        tensors = [x for x in args if isinstance(x, Tensor)]
        if tensors and all(id(x) in self._made for x in tensors):
            names = frozenset[str]().union(*(self._made[id(x)][1] for x in tensors))
            if getattr(function, "__name__", "") in ASKING:
                self.names |= names
            elif isinstance(found, Tensor):
                self._made[id(found)] = found, names
        return found
