"""Lane versions of lowered functions for several environments at once, as text: lane k is environment k of 16.

All of the state differs between lanes, and the entity does not. Array fields are arrays [*shape, 16], so that an entry
of 16 environments is one load. The rest is as in headrace.kernels.targets.cpu.lane_functions.
"""

from __future__ import annotations

import ast

from headrace.core.source_text import parse_expression
from headrace.kernels.language.ir import EnvIR, Field, Function
from headrace.kernels.language.ops_over import PARTS
from headrace.kernels.language.typed import call
from headrace.kernels.targets.cpu.codegen_cpu import ENVS_AT_ONCE
from headrace.kernels.targets.cpu.lane_functions import STARTS, LaneVersion, NoLanes, Values, is_array
from headrace.kernels.targets.episode_text import block, function
from headrace.kernels.targets.over_text import combined

ALL = f"lane_entities(np.uint64(0), {ENVS_AT_ONCE})"  # the lanes, as the last index of an array


class EnvLaneVersion(LaneVersion):
    """One function's version, called envs_NAME. `p` varies too: a parameter may differ between environments."""

    prefix = "envs_"

    def __init__(self, lowered: Function, ir: EnvIR, others: set[str]) -> None:
        super().__init__(lowered, ir, others)
        arguments = [argument.arg for argument in self.node.args.args]
        of_entity = {phase.name for phase in ir.phases} | ({"env_observe"} if ir.entity_agents else set())
        self.varying = set(arguments) - ({arguments[2]} if lowered.name in of_entity else set())

    def store(self, place: ast.Subscript, value: ast.expr, mask: ast.expr | None) -> ast.stmt:
        """array[index] = value, in those lanes."""
        array, index = self.entry(place, self.value(place.slice))
        made = self.value(value, mask is not None)
        if mask is not None:
            made = call("lane_select", mask, made, call("lane_get", *self.entry(place, self.value(place.slice))))
        return ast.Expr(call("lane_set", array, index, made))

    def entry(self, node: ast.Subscript, index: ast.expr) -> tuple[ast.expr, ast.expr]:
        """An array field and the index of one of its entries in all lanes. Raises NoLanes for other arrays."""
        is_field = isinstance(node.value, ast.Subscript) and is_array(node.value, {})
        if not is_field or getattr(node, "partial", False):
            raise NoLanes
        indices = index.elts if isinstance(index, ast.Tuple) else [index]
        return node.value, ast.Tuple([*indices, parse_expression(ALL)], ast.Load())

    def rewriter(self, guarded: bool) -> Values:
        """Make an object that rewrites expressions."""
        return _EnvValues(self, guarded)


class _EnvValues(Values):
    """Expressions of a version for several environments."""

    of: EnvLaneVersion

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """An entry of an array field, of all lanes; a constant array's is the same in all."""
        if getattr(node, "guarded", False) and not isinstance(node.value, ast.Name):
            return call("lane_get", *self.of.entry(node, self.visit(node.slice)))
        return super().visit_Subscript(node)

    def renamed(self, name: str) -> str:
        """Name of the function that is called instead."""
        is_reduction = "_over_" in name and name not in self.of.others
        return f"envs_{name}" if is_reduction else super().renamed(name)


def env_reductions(ir: EnvIR, decorator: str) -> list[str]:
    """The reductions of headrace.kernels.targets.over_text for several environments, with the same bits."""
    made = []
    for kind, convert in (("f32", "F32"), ("i32", "I32")):
        value = f"lane_{convert}(lane_get(values, (k, {ALL})))"
        for op, (_, starts) in STARTS.items():
            lines, parts = [], [f"part{part}" for part in range(PARTS)]
            for part, name in enumerate(parts):
                lines += [
                    f"{name} = {starts[kind]}",
                    *_each(ir, part, PARTS, f"{name} = _{op}_{kind}({name}, {value})"),
                ]
            whole = f"return {combined(f'_{op}_{kind}', parts)}"
            made.append(function(decorator, f"envs_{op}_over_{kind}(values)", [*lines, whole]))
            if op != "sum":
                first = f"result = lane_select(({value} == wanted) & (result < I32(0)), I32(k), result)"
                body = [f"wanted = envs_{op}_over_{kind}(values)", "result = I32(-1)", *_each(ir, 0, 1, first)]
                body.append("return lane_select(result < I32(0), I32(0), result)")  # where all are NaN
                made.append(function(decorator, f"envs_arg{op}_over_{kind}(values)", body))
        body = ["result = False", *_each(ir, 0, 1, f"result = result | ({value} != {convert}(0))"), "return result"]
        made.append(function(decorator, f"envs_any_over_{kind}(values)", body))
    return made


def _each(ir: EnvIR, first: int, step: int, line: str) -> list[str]:
    """A line for every so many-th entity from the first on."""
    if first >= ir.entities:
        return []
    return block(f"for k in range(np.uint64({first}), np.uint64({ir.entities}), np.uint64({step}))", [line])


def changed_fields(ir: EnvIR) -> list[Field]:
    """Array fields that a step may change."""
    resets = {phase.name for phase in ir.reset_phases} - {phase.name for phase in ir.phases} | {"env_reset"}
    nodes = [part for f in ir.functions if f.name not in resets for part in ast.walk(f.node)]
    targets = [node.targets[0] for node in nodes if isinstance(node, ast.Assign)]
    arrays = [target.value for target in targets if isinstance(target, ast.Subscript)]
    indices = [array.slice for array in arrays if isinstance(array, ast.Subscript)]
    places = {index.value for index in indices if isinstance(index, ast.Constant)}
    return [field for k, field in enumerate(ir.state) if k in places and field.shape is not None]
