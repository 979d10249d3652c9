"""What the compiled learning calls of off-policy algorithms share: batches in blocks of 64 rows, layers in buffers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn.functional import pad

from headrace.algorithms.adam import Adam
from headrace.bindings.bound import place
from headrace.kernels.learning.off_policy_arguments import Weights
from headrace.kernels.nn.layout import BLOCK, aligned
from headrace.kernels.nn.stepwise_layout import DenseLayer

WORTH_HELP = 6e6  # floating-point operations below which waking another thread costs more than it saves
WIDEST = 512  # layers up to which the kernels' products are faster than the library's, with AVX2 as with AVX-512


def narrow(sizes: Sequence[int]) -> bool:
    """Whether layers of these sizes are learned faster by the kernels than by the library's products."""
    return max(sizes) <= WIDEST


def count(rows: int) -> int:
    """Blocks that so many rows fill."""
    return -(-rows // int(BLOCK))


def lay(target: Tensor, column: Tensor) -> None:
    """Copy rows [G, R, W] to blocks [G, B, W, 64]; what is left of the last one is 0."""
    steps, rows, _ = column.shape
    left = target.shape[1] * int(BLOCK) - rows
    column = pad(column, (0, 0, 0, left)) if left else column
    target.copy_(column.reshape(steps, target.shape[1], int(BLOCK), -1).transpose(2, 3))


def dense(
    parts: Sequence[tuple[Tensor, Tensor]], activation: str, flat: Tensor, inputs_first: bool = False
) -> list[DenseLayer]:
    """Linear layers (weight, bias) one after another, of which the last has no activation. Weights are [outputs,
    inputs], or (inputs_first) [inputs, outputs]."""
    layers = []
    for number, (weight, bias) in enumerate(parts, 1):
        inputs, outputs = weight.shape if inputs_first else reversed(weight.shape)
        name = activation if number < len(parts) else "identity"
        layers.append(DenseLayer(inputs, outputs, place(weight, flat), place(bias, flat), inputs_first, name))
    return layers


def weights(optimizer: Adam, target: Tensor | None = None, words: int = 0) -> Weights:
    """An optimizer's buffers, those of its target network, if any, and scratch for packed factors: `words` of each."""
    buffers = (optimizer.flat, optimizer.mean, optimizer.square, optimizer.flat if target is None else target)
    arrays = (*(x.numpy() for x in buffers), aligned(words), aligned(words))
    return Weights(*arrays)
