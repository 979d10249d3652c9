"""Text of a uniform grid for loops over within(s.x, s.y, i, radius). Entities are sorted by cell. Neighbours in this
order, in SIMD lanes or one at a time, look together at the cells around them.

The grid is made before each phase that needs it, over the entities' bounding box. Cells are numbered along lines of
them, every second one backwards, so that neighbours in the order are near each other also where a line ends. The
entities' numbers that the loops read are copied in this order. An entity's neighbours come in this order whatever the
lanes, and entities that are looked at and are not near change nothing, so the bits do not depend on the lanes.
"""

from __future__ import annotations

import ast
import copy
import re
from dataclasses import replace

from headrace.core.source_text import parse, parse_expression
from headrace.kernels.language.ir import EnvIR, Function, Phase
from headrace.kernels.language.ops_over import PARTS
from headrace.kernels.language.within import Within
from headrace.kernels.targets.episode_text import block

LEAST_CELLS, LEAST_ENTITIES = 16, 128  # with fewer, looking at all entities is faster: measured
WIDE, HIGH = 0.25, 0.5  # sides of a cell, in radii; of several that were measured
# A phase's argument `grid`: the entities' numbers in their order, where the entities to look at begin and end on each
# line of cells, of how many lines, and the fields of SORTED_KINDS that the loops read
ORDER, ENDS, LINES, FIRST_FIELD = range(4)
SORTED_KINDS = ("f32", "i32")
GRID_TAKES = ("place", "grid")  # what a phase takes behind its key: its entities' place in the order, and the grid
LOOP = """\
for _grid_line in range(_grid[{lines}]):
    for {place} in range(U64(_grid[{ends}][2 * _grid_line]), U64(_grid[{ends}][2 * _grid_line + 1])):
        {j} = I32(_grid[{order}][{place}])
"""
BUILD = """\
{decorator}
def grid_cell(x, low, scale, count):
    place = (x - low) * scale
    return I32(min(select(place > F32(0.0), place, F32(0.0)), F32(I32(count - 1))))  # NaN is in the first


{decorator}
def grid_size(x, cell):
    low = min_over_f32(x)
    width = max_over_f32(x) - low
    count = I32(1)
    if width < F32(1e30) and width > F32(0.0):
        count = max(I32(1), I32(min(width / cell, F32(x.shape[0]))))
    return low, width, count


{decorator}
def grid_number(line, column, columns):
    return I32(line * columns + select(I32(line & I32(1)) == I32(0), column, I32(columns - I32(1) - column)))


{decorator}
def build_grid(x, y, radius, order, cells, start):
    count = x.shape[0]
    low_x, width, columns = grid_size(x, radius * F32({wide}))
    low_y, height, lines = grid_size(y, radius * F32({high}))
    while columns * lines > count:
        columns, lines = I32((columns + 1) // 2), I32((lines + 1) // 2)
    scale_x = F32(columns) / width if width > F32(0.0) else F32(0.0)
    scale_y = F32(lines) / height if height > F32(0.0) else F32(0.0)
    worth = (radius > F32(0.0)) & (columns * lines >= {least})
    if worth:
        for k in range(columns * lines + 2):
            start[k] = I32(0)
        for k in range(np.uint64(count)):
            line = grid_cell(y[k], low_y, scale_y, lines)
            cells[k] = grid_number(line, grid_cell(x[k], low_x, scale_x, columns), columns)
        for k in range(np.uint64(count)):
            start[np.uint64(cells[k]) + np.uint64(2)] += I32(1)
        for k in range(columns * lines):
            start[k + 2] += start[k + 1]
        for k in range(np.uint64(count)):
            cell = np.uint64(cells[k]) + np.uint64(1)
            order[np.uint64(start[cell])] = I32(k)
            start[cell] += I32(1)
        for k in range(count, order.shape[0]):  # lanes behind the last entity compute the same as its own
            order[k] = order[count - 1]
    return low_x, low_y, scale_x, scale_y, columns, lines, worth


{decorator}
def in_grid_order(values, order, copy):
    for k in range(np.uint64(order.shape[0])):
        copy[k] = values[np.uint64(order[k])]
    return copy


{decorator}
def grid_ends(x, y, place, lanes, radius, grid, start, ends):
    left, right, low, high = F32(np.inf), F32(-np.inf), F32(np.inf), F32(-np.inf)
    for k in range(place, place + np.uint64(lanes)):
        left, right = select(x[k] < left, x[k], left), select(x[k] > right, x[k], right)
        low, high = select(y[k] < low, y[k], low), select(y[k] > high, y[k], high)
    low_x, low_y, scale_x, scale_y, columns, lines, worth = grid
    first = grid_cell(left - radius, low_x, scale_x, columns)
    last = max(first, grid_cell(right + radius, low_x, scale_x, columns))
    lowest = grid_cell(low - radius, low_y, scale_y, lines)
    count = I32(0)
    for line in range(lowest, grid_cell(high + radius, low_y, scale_y, lines) + 1):
        cell, other = grid_number(line, first, columns), grid_number(line, last, columns)
        ends[2 * count] = start[min(cell, other)]
        ends[2 * count + 1] = start[max(cell, other) + 1]
        count = I32(count + 1)
    return count
"""


def within_of(ir: EnvIR, phase: Phase) -> Within | None:
    """Entities of a phase's loops over within(), if all loops have the same and a grid can serve them and is worth it.
    None otherwise."""
    if ir.entities < LEAST_ENTITIES:
        return None
    found = {node.within for node in ast.walk(_function(ir, phase).node) if hasattr(node, "within")}
    over = found.pop() if len(found) == 1 else None
    return over if over is not None and over.radius is not None and len(over.fields) > 1 else None


def gridded(ir: EnvIR) -> EnvIR:
    """Environment with additional functions grid_NAME, for the phases that can use a grid. They also take
    GRID_TAKES."""
    phases = [phase for phase in (*ir.phases, *ir.reset_phases) if within_of(ir, phase) is not None]
    of_grid = tuple(replace(phase, name=f"grid_{phase.name}", takes=(*phase.takes, *GRID_TAKES)) for phase in phases)
    made = tuple(_Gridded(ir, phase).function() for phase in phases)
    return replace(ir, functions=(*ir.functions, *made), phases=(*ir.phases, *of_grid))


def grid_functions(ir: EnvIR, decorator: str) -> list[str]:
    """Text of build_grid and what is around it, and of the phases that use a grid."""
    made = [
        f"{decorator}\n{ast.unparse(ast.fix_missing_locations(function.node))}"
        for function in gridded(ir).functions[len(ir.functions) :]
    ]
    return [BUILD.format(decorator=decorator, wide=WIDE, high=HIGH, least=LEAST_CELLS), *made] if made else []


def sorted_fields(ir: EnvIR, phase: Phase) -> list[int]:
    """Fields of State that a phase's loops over within() read of entities, the coordinates first: they are copied in
    the grid's order."""
    over, node = within_of(ir, phase), _function(ir, phase).node
    if over is None:
        return []
    loops = [loop for loop in ast.walk(node) if hasattr(loop, "within")]
    places = [part for loop in loops for part in ast.walk(loop) if isinstance(part, ast.Subscript)]
    names = {_argument(node, 2), *(loop.target.id for loop in loops)}  # type: ignore[attr-defined]
    read = {field for field in (_field(part, node, names) for part in places) if field is not None}
    stored = [part for part in ast.walk(node) if isinstance(part, ast.Subscript) and isinstance(part.ctx, ast.Store)]
    changed = {_field(part, node, names) for part in stored}
    wanted = [k for k in sorted(read - set(over.fields) - changed) if _is_sorted(ir, k)]
    return [*over.fields, *wanted]


def with_grid(ir: EnvIR, phase: Phase, state: str, lanes: int, call: list[str], otherwise: list[str]) -> list[str]:
    """Lines that make the grid of a phase, and run the phase by `call` for the entities in the places `place` ..
    `place` + lanes - 1 of the order; where the grid is not worth it, `otherwise`."""
    over = within_of(ir, phase)
    if over is None:
        return otherwise
    room = room_of(ir)
    parts = [("order", room), ("cells", room), ("start", room + 2), ("ends", 2 * room), ("", PARTS - 2)]
    parts += [(f"copy{number}", room) for number in range(len(sorted_fields(ir, phase)))]
    x, y = (f"{state}[{field}]" for field in over.fields[:2])
    radius = re.sub(r"\bs\b", state, over.radius or "")
    lines, first = [f"radius = {radius}"], 0
    for name, size in parts:
        lines += [f"{name} = masked[{first}:{first + size}]"] if name else []
        first += size
    copies = []
    for number, field in enumerate(sorted_fields(ir, phase)):
        view = ".view(np.float32)" if ir.state[field].dtype == "f32" else ""
        copies.append(f"sorted{number} = in_grid_order({state}[{field}], order, copy{number}{view})")
    grid = ", ".join(["order", "ends", "count", *(f"sorted{number}" for number in range(len(copies)))])
    each = [
        f"count = grid_ends(sorted0, sorted1, place, {lanes}, radius, made, start, ends)",
        f"grid = ({grid})",
        *call,
    ]
    head = f"for place in range(np.uint64(0), np.uint64({ir.entities}), np.uint64({lanes}))"
    return [
        *lines,
        f"made = build_grid({x}, {y}, radius, order, cells, start)",
        *block("if made[6]", [*copies, *block(head, each)]),
        *block("else", otherwise),
    ]


def room_of(ir: EnvIR) -> int:
    """Number of entities, rounded up so that they fill all lanes."""
    return -(-ir.entities // PARTS) * PARTS


def scratch_size(ir: EnvIR) -> int:
    """Number of int32 that an environment needs for grids."""
    fields = max([len(sorted_fields(ir, phase)) for phase in (*ir.phases, *ir.reset_phases)], default=0)
    return (5 + fields) * room_of(ir) + PARTS if fields else 1


def _argument(node: ast.FunctionDef, number: int) -> str:
    """The name of an argument."""
    return node.args.args[number].arg


def _function(ir: EnvIR, phase: Phase) -> Function:
    (found,) = (function for function in ir.functions if function.name == phase.name)
    return found


def _is_sorted(ir: EnvIR, field: int) -> bool:
    return ir.state[field].dtype in SORTED_KINDS and ir.state[field].shape == (ir.entities,)


def _field(part: ast.Subscript, node: ast.FunctionDef, names: set[str]) -> int | None:
    """k of s[k][name], for some of the names; None for other places."""
    match part:
        case ast.Subscript(ast.Subscript(ast.Name(s), ast.Constant(int(k))), ast.Name(name)) if name in names:
            return k if s == _argument(node, 0) else None
    return None


class _Gridded(ast.NodeTransformer):
    """A phase whose loops over within() are over lines of cells, and the entities on each."""

    def __init__(self, ir: EnvIR, phase: Phase) -> None:
        self.made = _function(ir, phase)
        self.node = copy.deepcopy(self.made.node)
        self.copies = {field: FIRST_FIELD + k for k, field in enumerate(sorted_fields(ir, phase))}
        self.at = 3 + len(phase.takes)  # before reductions
        self.places = {_argument(self.node, 2): "_grid_place"}  # of entities in the order, by their names

    def function(self) -> Function:
        """grid_NAME."""
        self.node.name = f"grid_{self.node.name}"
        self.generic_visit(self.node)
        self.node.args.args[self.at : self.at] = [ast.arg("_grid_place"), ast.arg("_grid")]
        return replace(self.made, name=self.node.name, node=self.node)

    def visit_For(self, node: ast.For) -> ast.For | list[ast.stmt]:
        """The loop over all entities becomes one over lines of cells, and one over the entities on a line."""
        if not hasattr(node, "within"):
            self.generic_visit(node)
            return node
        name = node.target.id  # type: ignore[attr-defined]
        body = ast.Module(node.body, [])
        place, before = f"_grid_place_{name}", dict(self.places)
        if not any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in ast.walk(body)):
            self.places[name] = place
        self.generic_visit(node)
        self.places = before
        made = parse(LOOP.format(j=name, place=place, order=ORDER, ends=ENDS, lines=LINES)).body
        made[-1].body[-1].body += node.body  # type: ignore[attr-defined]
        return made

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        """A field's entry is read from the copy."""
        self.generic_visit(node)
        field = _field(node, self.made.node, set(self.places))
        if field not in self.copies:
            return node
        place = self.places[node.slice.id]  # type: ignore[attr-defined]
        made = parse_expression(f"_grid[{self.copies[field]}][{place}]")
        made.guarded = place == "_grid_place"  # type: ignore[attr-defined]  # differs between lanes
        return made  # type: ignore[return-value]
