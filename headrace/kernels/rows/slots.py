"""The argument slots of a program's entry point, 8 bytes each: see kernels.runtime.native.

Task 0 computes uniform values that need no rows. Then there are for each phase: where it multiplies on tiles, a piece
of the weights to pack; the blocks of one part; where gradients are taken by weights, a piece of them; and what follows
(sums, and uniform values of the next phase). ALL is everything, one after the other.
"""

from __future__ import annotations

ALL = -1  # a task

TASK, PART, PARTS, ROWS = range(4)
ORDER, FIRST = 4, 5  # address of the rows' order, int64, or 0; how many of it come before these rows
SCRATCH, KEPT, UNIFORM, SUMS = range(6, 10)  # addresses: a thread's tiles, all blocks', the call's numbers, all parts'.
# On a GPU the first is that of the count of blocks that wait for each other
TILES = 10  # address: on a GPU, all parts' tiles, where a block's own memory has no room for them
FACTORS = 11  # address: of gradients that a GPU computes in kernels of their own, for all rows
INPUTS = 12  # then for each column: address, stride of rows, stride of numbers, both in elements; for each uniform
# input: address; for each output: address, and for one with rows both strides


def column(position: int) -> int:
    """The first slot of a column."""
    return INPUTS + 3 * position


def given(position: int, columns: int) -> int:
    """The slot of a uniform input, of a program with so many columns."""
    return INPUTS + 3 * columns + position


def result(position: int, columns: int, uniforms: int) -> int:
    """The first slot of an output."""
    return INPUTS + 3 * columns + uniforms + 3 * position


def count(columns: int, uniforms: int, outputs: int) -> int:
    """Number of argument slots."""
    return INPUTS + 3 * columns + uniforms + 3 * outputs
