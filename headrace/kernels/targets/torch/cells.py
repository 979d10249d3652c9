"""Array fields of all environments as the lowered functions see them."""

from __future__ import annotations

from torch import Tensor

from headrace.kernels.targets.tensor_state import put
from headrace.kernels.targets.torch.ops_torch import Number


class Cells:
    """An array field of all environments, indexed as that of one environment: entries are copies, rows are views.

    tensor: [*shape, N]; env_dims: its last dimensions that count environments (and pixels). A first index that is a
    tensor [E, 1] means the entities 0 .. E - 1: entries are then [E, N].
    """

    def __init__(self, tensor: Tensor, env_dims: int = 1) -> None:
        self.tensor, self.env_dims = tensor, env_dims

    def __getitem__(self, index: int | Tensor | tuple[int | Tensor, ...]) -> Tensor | Cells:
        found = self.tensor[_places(index)]
        if self._of_entities(index):
            return found.clone()
        return found.clone() if found.dim() == self.env_dims else Cells(found, self.env_dims)

    def __setitem__(self, index: int | Tensor | tuple[int | Tensor, ...], value: Number) -> None:
        put(self.tensor[_places(index)], value)

    def _of_entities(self, index: int | Tensor | tuple[int | Tensor, ...]) -> bool:
        return isinstance(index[0] if isinstance(index, tuple) else index, Tensor)


def _places(index: int | Tensor | tuple[int | Tensor, ...]) -> tuple[int | slice, ...]:
    parts = index if isinstance(index, tuple) else (index,)
    return tuple(slice(len(part)) if isinstance(part, Tensor) else part for part in parts)
