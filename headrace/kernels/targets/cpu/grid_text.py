"""Loops over within(s.x, s.y, i, radius) by a uniform grid, as text: entities are sorted by cell, and an entity looks
at its own cell and the eight around it.

The grid is made before each phase that needs it, of the entities' bounding box, with at most as many cells as
entities. With few cells looking at all entities is faster, in SIMD lanes; LEAST_CELLS were measured.
"""

from __future__ import annotations

import ast
import copy

from headrace.kernels.language.ir import EnvIR, Phase
from headrace.kernels.language.within import Within

LEAST_CELLS = {True: 384, False: 32}  # with and without a lane version of the phase, whatever the lanes
NAMES = "_grid_order, _grid_start, _grid"
LOOP = """\
_grid_column = grid_cell({s}[{x}][{i}], _grid[0], _grid[2], _grid[4])
_grid_row = grid_cell({s}[{y}][{i}], _grid[1], _grid[3], _grid[5])
for _grid_line in range(max(I32(0), I32(_grid_row - 1)), min(I32(_grid_row + 2), _grid[5])):
    _grid_first = I32(_grid_line * _grid[4] + max(I32(0), I32(_grid_column - 1)))
    _grid_last = I32(_grid_line * _grid[4] + min(I32(_grid_column + 2), _grid[4]))
    for _grid_place in range(_grid_start[_grid_first], _grid_start[_grid_last]):
        {j} = I32(_grid_order[_grid_place])
"""
BUILD = """\
{decorator}
def grid_cell(x, low, scale, count):
    place = (x - low) * scale
    return max(I32(0), min(I32(select(place == place, place, F32(0.0))), I32(count - 1)))


{decorator}
def grid_size(x, cell):
    low = min_over_f32(x)
    width = max_over_f32(x) - low
    count = I32(1)
    if width < F32(1e30) and width > F32(0.0):
        count = max(I32(1), I32(min(width / cell, F32(x.shape[0]))))
    return low, width, count


{decorator}
def build_grid(x, y, radius, least, scratch):
    count = x.shape[0]
    order, cells, start = scratch[:count], scratch[count : 2 * count], scratch[2 * count : 3 * count + 2]
    cell = radius * F32(1.001)  # wider than the radius, by more than rounding
    low_x, width, columns = grid_size(x, cell)
    low_y, height, rows = grid_size(y, cell)
    while columns * rows > count:
        columns, rows = I32((columns + 1) // 2), I32((rows + 1) // 2)
    scale_x = F32(columns) / width if width > F32(0.0) else F32(0.0)
    scale_y = F32(rows) / height if height > F32(0.0) else F32(0.0)
    worth = (radius > F32(0.0)) & (columns * rows >= least)
    if worth:
        for k in range(columns * rows + 2):
            start[k] = I32(0)
        for k in range(count):
            row = grid_cell(y[k], low_y, scale_y, rows)
            cells[k] = I32(row * columns + grid_cell(x[k], low_x, scale_x, columns))
            start[cells[k] + 2] += I32(1)
        for k in range(columns * rows):
            start[k + 2] += start[k + 1]
        for k in range(count):
            place = start[cells[k] + 1]
            order[place] = I32(k)
            start[cells[k] + 1] = I32(place + 1)
    return order, start, (low_x, low_y, scale_x, scale_y, columns, rows, worth)
"""


def within_of(ir: EnvIR, phase: Phase) -> Within | None:
    """What the loops of a phase over within() are of, if all are of the same and a grid can serve them."""
    (function,) = (function for function in ir.functions if function.name == phase.name)
    found = {node.within for node in ast.walk(function.node) if hasattr(node, "within")}
    over = found.pop() if len(found) == 1 else None
    return over if over is not None and over.radius is not None and len(over.fields) > 1 else None


def scratch_size(ir: EnvIR) -> int:
    """How many int32 an environment needs for grids."""
    needed = any(within_of(ir, phase) for phase in (*ir.phases, *ir.reset_phases))
    return 3 * ir.entities + 2 if needed else 1


def grid_functions(ir: EnvIR, decorator: str) -> list[str]:
    """Text of build_grid and of grid_NAME, the phases that can use a grid: they take it behind their other arguments.

    build_grid gives the entities in the order of their cells, where each cell begins in that order, and the lower
    corner, cells per unit of x and of y, columns, rows, and whether the grid is worth it.
    """
    made = []
    for phase in (*ir.phases, *ir.reset_phases):
        over = within_of(ir, phase)
        if over is not None:
            (function,) = (function for function in ir.functions if function.name == phase.name)
            node = _Gridded(function.node, over).function()
            made.append(f"{decorator}\n{ast.unparse(ast.fix_missing_locations(node))}")
    return [BUILD.format(decorator=decorator), *made] if made else []


class _Gridded(ast.NodeTransformer):
    """A phase whose loops over within() look at the entities of nine cells."""

    def __init__(self, node: ast.FunctionDef, over: Within) -> None:
        self.node, self.over = copy.deepcopy(node), over
        self.s, _, self.i = (argument.arg for argument in node.args.args[:3])

    def function(self) -> ast.FunctionDef:
        """grid_NAME."""
        self.node.name = f"grid_{self.node.name}"
        self.node.args.args += [ast.arg(name) for name in NAMES.split(", ")]
        self.generic_visit(self.node)
        return self.node

    def visit_For(self, node: ast.For) -> ast.For | list[ast.stmt]:
        """The loop over all entities becomes one over lines of cells, and one over the entities in a line."""
        self.generic_visit(node)
        if not hasattr(node, "within"):
            return node
        x, y = self.over.fields[:2]
        made = ast.parse(LOOP.format(s=self.s, i=self.i, x=x, y=y, j=node.target.id)).body  # type: ignore[attr-defined]
        made[-1].body[-1].body += node.body  # type: ignore[attr-defined]
        return made
