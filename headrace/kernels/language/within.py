"""Lowering of `for j in within(s.x, s.y, i, radius)`: a loop over all entities with a test of the distance.

The loop's attribute `within` has its entities, so that a target may test fewer of them.
"""

from __future__ import annotations

import ast
import copy
from dataclasses import dataclass

from headrace.core.source_text import parse_expression
from headrace.kernels.language.expressions import Expressions
from headrace.kernels.language.kinds import F32, I32, Array
from headrace.kernels.language.typed import Typed

FORM = "for j in within(s.x, s.y, i, radius):"


@dataclass(frozen=True)
class Within:
    """Entities of a loop: those nearer than `radius`."""

    fields: tuple[int, ...]  # coordinates, fields of State
    radius: str | None  # as text, where it is the same for all entities


def within_loop(of: Expressions, node: ast.For, target: str, count: int) -> tuple[list[ast.stmt], ast.expr, Within]:
    """Lower a loop over within() to the statements before it, the test around its body, and its entities.

    target: the loop's index in the lowered code. count: number of such loops before this one. Raises EnvError for wrong
    arguments.
    """
    given = node.iter.args  # type: ignore[attr-defined]
    if of.over is None:
        of.scope.fail(node, "within() outside a phase", f"Use it in a function for one entity: `{FORM}`")
    if not 3 <= len(given) <= 5 or node.iter.keywords:  # type: ignore[attr-defined]
        of.scope.fail(node, f"`{ast.unparse(node.iter)}`", f"Write `{FORM}`, with one to three fields before i")
    entity = of.scope.node.args.args[2].arg
    fields, coordinates = [], []
    for argument in given[:-2]:
        typed = of.expression(argument)
        kind, entities = typed.kind, of.program.declarations.entities
        if not isinstance(kind, Array) or kind.field is None or (kind.dtype, kind.shape) != ("f32", (entities,)):
            wrong = f"`{ast.unparse(argument)}` in within() is not a field with one f32 for each entity"
            of.scope.fail(node, wrong, f"Write `{FORM}`, where State has `x: array(f32, {entities})`")
        fields.append([f.name for f in of.program.state].index(kind.field))
        coordinates.append(typed.node)
    if not isinstance(given[-2], ast.Name) or given[-2].id != entity:
        of.scope.fail(node, f"within() of entity `{ast.unparse(given[-2])}`", f"Give {entity}, the phase's own entity")
    for part in ast.walk(ast.Module(node.body, [])):
        if isinstance(part, ast.Break):
            of.scope.fail(part, "`break` in a loop over within()", "Its order is not that of the entities' numbers")
    radius = of.number(given[-1])
    own = of.program.local(entity)
    before, test = _distance(of, coordinates, own, target, radius, count)
    return before, test, Within(tuple(fields), _shared(of, radius))


def _distance(
    of: Expressions, coordinates: list[ast.expr], own: str, target: str, radius: Typed, count: int
) -> tuple[list[ast.stmt], ast.expr]:
    reach = f"_part_reach{count}"
    limit = of.cast(radius, F32)
    before: list[ast.stmt] = [
        ast.Assign([ast.Name(reach, ast.Store())], ast.BinOp(limit, ast.Mult(), copy.deepcopy(limit)))
    ]
    squares: list[ast.expr] = []
    for field in coordinates:
        places = [
            of._element(Typed(field, _array(of)), [Typed(ast.Name(n, ast.Load()), I32)], field).node
            for n in (target, own)
        ]
        way = ast.BinOp(places[0], ast.Sub(), places[1])
        squares.append(ast.BinOp(way, ast.Mult(), copy.deepcopy(way)))
    total = squares[0]
    for square in squares[1:]:
        total = ast.BinOp(total, ast.Add(), square)
    other = ast.Compare(ast.Name(target, ast.Load()), [ast.NotEq()], [ast.Name(own, ast.Load())])
    near = ast.Compare(total, [ast.Lt()], [ast.Name(reach, ast.Load())])
    return before, ast.BinOp(other, ast.BitAnd(), near)


def _array(of: Expressions) -> Array:
    return Array("f32", (of.program.declarations.entities,), "")


def _shared(of: Expressions, radius: Typed) -> str | None:
    """The radius as text, where it is made of parameters, scalars of State and numbers alone."""
    state, params = (of.program.local(argument.arg) for argument in of.scope.node.args.args[:2])
    limit = of.cast(radius, F32)
    named = {n.id for n in ast.walk(limit) if isinstance(n, ast.Name)} - {"F32", "I32", "U32"}
    if not named <= {state, params}:
        return None
    text = ast.unparse(ast.fix_missing_locations(limit))
    return _renamed(text, {state: "s", params: "p"})


def _renamed(text: str, names: dict[str, str]) -> str:
    """An expression with other names."""
    tree = parse_expression(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
    return ast.unparse(tree)
