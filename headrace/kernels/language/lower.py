"""Lowering of a whole environment: reset, step, observe or pixel, and the helpers they reach."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from types import FunctionType

from gymnasium.spaces import Box, Discrete, Space

from headrace.core.source_text import parse
from headrace.data.flat_dict import FlatDict
from headrace.kernels.language.calls import ExpressionsWithCalls
from headrace.kernels.language.declarations import Declarations
from headrace.kernels.language.expressions import Expressions
from headrace.kernels.language.ir import Field, Function, Lowered, Over, Param, Phase, Statement
from headrace.kernels.language.kinds import BOOL, F32, I32, KEY, NONE, PARAMS, STATE, Array, Kind, Tuple
from headrace.kernels.language.phases import check_races, lower_phases
from headrace.kernels.language.program import LoweredHelper, Program
from headrace.kernels.language.scope import Scope
from headrace.kernels.language.statements import Statements
from headrace.kernels.language.typed import Typed, call, pure

UNMASKED = "unmasked"  # env_unmasked is the class's observe, where env_observe adds the action mask
BRANCHES = (ast.If, ast.While, ast.For)


def entry(program: Program, role: str, arguments: tuple[Kind, ...], returns: Kind) -> LoweredHelper:
    """reset, step, observe or pixel of the class, lowered."""
    scope = Scope(getattr(program.cls, role), program.cls)
    _check_arguments(scope, role, len(arguments), program.declarations)
    return _lower(program, scope, f"env_{role}", arguments, returns, role)


def helper(program: Program, function: FunctionType, caller: Expressions, node: ast.Call) -> Typed:
    """A call of the user's own function, lowered for the kinds it is called with."""
    try:
        bound = inspect.signature(function).bind(*node.args, **{k.arg: k.value for k in node.keywords if k.arg})
    except TypeError as error:
        caller.scope.fail(node, f"{ast.unparse(node.func)}(): {error}", "Give the arguments it is defined with")
    bound.apply_defaults()
    given = [
        caller.expression(v) if isinstance(v, ast.expr) else caller.python(v, node) for v in bound.arguments.values()
    ]
    signature = tuple(typed.kind for typed in given)
    key = (function, signature)
    if key in program.open:
        caller.scope.fail(node, f"{function.__name__}() calls itself", "Write a loop")
    if key not in program.made:
        program.open.append(key)
        same = sum(made.function.name.startswith(f"env_{function.__name__}") for made in program.made.values())
        name = f"env_{function.__name__}" + (f"_{same + 1}" if same or function.__name__ in (*ROLES, UNMASKED) else "")
        made = _lower(program, Scope(function, program.cls), name, signature, None, "helper")
        program.made[key] = made
        program.open.remove(key)
    made = program.made[key]
    written = call(made.function.name, *(caller.value(typed) for typed in given))
    branches = any(isinstance(part, BRANCHES) for part in ast.walk(made.function.node))
    written.guarded = branches or not pure(made.function.node)  # type: ignore[attr-defined]
    return Typed(written, made.returns)


def _lower(
    program: Program, scope: Scope, name: str, arguments: tuple[Kind, ...], returns: Kind | None, role: str
) -> LoweredHelper:
    expressions = ExpressionsWithCalls(program, scope)
    of_entity = role == "phase" or (role == "observe" and program.declarations.entity_agents)
    expressions.over = {} if of_entity else None
    names = [a.arg for a in scope.node.args.args]
    if scope.node.args.vararg or scope.node.args.kwarg or len(names) != len(arguments):
        scope.fail(scope.node, f"{scope.node.name}() has * or keyword-only arguments", "Name plain arguments")
    expressions.kinds.update(zip(names, arguments, strict=True))
    statements = Statements(expressions, returns, role)
    body = statements.body()
    changed = [n for n, kind in zip(names, arguments, strict=True) if expressions.kinds[n] != kind]
    if changed:
        scope.fail(scope.node, f"the argument {changed[0]!r} becomes another kind", "Use another name")
    over = expressions.over or {}
    given = [ast.arg(name) for name in (*map(program.local, names), *over.values())]
    args = ast.arguments([], given, None, [], [], None, [])
    node = ast.FunctionDef(name, args, body or [ast.Pass()], [])
    ast.copy_location(node, scope.node)
    result = statements.returned if statements.returned is not None else NONE
    return LoweredHelper(Function(name, ast.fix_missing_locations(node), scope.file, scope.line), result, tuple(over))


ROLES = {
    **{"reset": "s, p, key", "step": "s, p, action, key", "observe": "s, p", "action_mask": "s, p"},
    "pixel": "s, p, row, column",
}
BY_AGENT = ("observe", "action_mask")  # roles that are asked for each agent, and may fill `out`


def lower(
    cls: type, state: tuple[Field, ...], params: tuple[Param, ...], declarations: Declarations, prints: bool = False
) -> Lowered:
    """The functions of an environment, the arrays they name, and their first statement that branches. prints: leave
    calls of print() out."""
    program = Program(cls, state, params, declarations, helper)
    program.prints = prints
    phases, reset_phases = _phases(program)
    entries = [function for _, function in phases + reset_phases]
    entries += [entry(program, "reset", (STATE, PARAMS, KEY), STATE).function, _step(program)]
    observe_over: tuple[Over, ...] = ()
    pixel_functions: tuple[Function, ...] = ()
    if declarations.frames:
        pixel = _pixel(program, declarations)
        pixel_functions = _reached([made.function for made in program.made.values()], [pixel])
    elif declarations.masked:
        entries += _observe_and_mask(program, declarations)
    else:
        observe = _observe(program, declarations)
        entries.append(observe.function)
        observe_over = observe.over
    functions = _reached([made.function for made in program.made.values()], entries)
    check_races(program, phases + reset_phases)
    statement = _first_statement(functions, len(entries))
    rewards = _rewards_field(program) if declarations.entity_agents else ""
    of_step, of_reset = (tuple(phase for phase, _ in group) for group in (phases, reset_phases))
    arrays = program.constants
    return Lowered(functions, pixel_functions, arrays, statement, of_step, of_reset, rewards, observe_over)


def _phases(program: Program) -> tuple[list[tuple[Phase, Function]], list[tuple[Phase, Function]]]:
    """The phases of a step, and those of a reset."""

    def lower_phase(scope: Scope, name: str, arguments: tuple[Kind, ...]) -> tuple[Function, tuple[Over, ...]]:
        made = _lower(program, scope, name, arguments, NONE, "phase")
        return made.function, made.over

    declared = program.declarations
    names, action = declared.phase_names, action_kind(declared.action_space)
    of_reset = lower_phases(program, declared.reset_phase_names, len(names), None, lower_phase)
    return lower_phases(program, names, 0, action, lower_phase), of_reset


def _step(program: Program) -> Function:
    """Lower step. Where entities are agents, it takes no action, and its rewards are in a field of State."""
    declared = program.declarations
    agents, action = declared.num_agents, action_kind(declared.action_space)
    if declared.entity_agents:
        rewards = Array(F32, (declared.entities,), _rewards_field(program))
        return entry(program, "step", (STATE, PARAMS, KEY), Tuple((STATE, rewards, BOOL))).function
    reward: Kind = F32
    if agents > 1:
        action, reward = Tuple((action,) * agents), Tuple((F32,) * agents)
    return entry(program, "step", (STATE, PARAMS, action, KEY), Tuple((STATE, reward, BOOL))).function


def _rewards_field(program: Program) -> str:
    """Field of State with the rewards that step returns, by its text: `return State(...), s.reward, False`."""
    scope = Scope(program.cls.step, program.cls)  # type: ignore[attr-defined]
    for node in ast.walk(scope.node):
        match node:
            case ast.Return(value=ast.Tuple(elts=[_, ast.Attribute(attr=name), _])):
                return name
    return "reward"


def _observe(program: Program, declarations: Declarations) -> LoweredHelper:
    space, cls = declarations.observation_space, program.cls
    shape = (space.features,) if isinstance(space, FlatDict) else space.shape
    seen: tuple[Kind, ...] = (STATE, PARAMS) if declarations.num_agents == 1 else (STATE, PARAMS, I32)
    scope = Scope(cls.observe, cls)  # type: ignore[attr-defined]
    names = [a.arg for a in scope.node.args.args]
    if declarations.num_agents == 1 and names[2:3] == ["agent"]:
        wrong = f"observe takes ({', '.join(names)}), and {cls.__name__} has no num_agents"
        scope.fail(scope.node, wrong, "Write `num_agents = 2` in the class, or leave agent out")
    if len(names) == len(seen) + 1:
        return entry(program, "observe", (*seen, Array(F32, shape, "out")), NONE)
    if len(shape) != 1:
        scope.fail(scope.node, f"observe returns a tuple, but observation_space has shape {shape}", "Take `out` too")
    return entry(program, "observe", seen, Tuple((F32,) * shape[0]))


def _observe_and_mask(program: Program, declarations: Declarations) -> list[Function]:
    """The class's observe and action_mask, and an env_observe whose entries are those of both."""
    space, cls = declarations.observation_space, program.cls
    assert isinstance(space, FlatDict)
    observe, total = _observe(program, declarations).function, space.shape[0]
    observe.node.name = f"env_{UNMASKED}"
    seen: tuple[Kind, ...] = (STATE, PARAMS) if declarations.num_agents == 1 else (STATE, PARAMS, I32)
    scope, size = Scope(cls.action_mask, cls), total - space.features  # type: ignore[attr-defined]
    fills = len(scope.node.args.args) == len(seen) + 1
    kinds: tuple[Kind, ...] = (*seen, Array(F32, (size,), "out")) if fills else seen
    mask = entry(program, "action_mask", kinds, NONE if fills else Tuple((BOOL,) * size)).function
    text = _joined(seen, len(observe.node.args.args) > len(seen), fills, space.features, total)
    node = parse(text).body[0]
    assert isinstance(node, ast.FunctionDef)
    for part in ast.walk(node):
        if hasattr(part, "lineno"):
            ast.copy_location(part, mask.node)
    both = Function("env_observe", node, mask.file, mask.line)
    return [replace(observe, name=f"env_{UNMASKED}"), mask, both]


def _joined(seen: tuple[Kind, ...], observe_fills: bool, mask_fills: bool, features: int, total: int) -> str:
    """The text of env_observe: entries of env_unmasked, then those of env_action_mask as 0 and 1."""
    given = "s, p" if len(seen) == 2 else "s, p, agent"
    entries = [f"seen[{k}]" for k in range(features)]
    allowed = [f"select(mask[{k}], F32(1.0), F32(0.0))" for k in range(total - features)]
    look, ask = f"seen = env_{UNMASKED}({given})", f"mask = env_action_mask({given})"
    if not (observe_fills or mask_fills):
        return f"def env_observe({given}):\n    {look}\n    {ask}\n    return ({', '.join(entries + allowed)})"
    lines = [look, *(f"out[{k}] = {value}" for k, value in enumerate(entries))]
    if observe_fills:
        lines = [f"env_{UNMASKED}({given}, out)"]
    if mask_fills:
        lines.append(f"env_action_mask({given}, out[{features}:])")
    else:
        lines += [ask, *(f"out[{features + k}] = {value}" for k, value in enumerate(allowed))]
    return f"def env_observe({given}, out):\n    " + "\n    ".join(lines)


def _pixel(program: Program, declarations: Declarations) -> Function:
    gray: Kind = F32 if declarations.channels == 1 else Tuple((F32,) * declarations.channels)
    return entry(program, "pixel", (STATE, PARAMS, I32, I32), gray).function


def action_kind(space: Space) -> Kind:
    """Kind of the action that step() is given."""
    if isinstance(space, Discrete):
        return I32
    return Tuple((F32 if isinstance(space, Box) else I32,) * space.shape[0])  # type: ignore[index]


def _check_arguments(scope: Scope, role: str, count: int, declarations: Declarations) -> None:
    names = [a.arg for a in scope.node.args.args]
    who = ", i" if declarations.entity_agents else ", agent"
    taken = ROLES[role] + (who if role in BY_AGENT and declarations.num_agents > 1 else "")
    if role == "step" and declarations.entity_agents:
        taken = "s, p, key"
    form = f"def {role}({taken})" + (f" or def {role}({taken}, out)" if role in BY_AGENT else "")
    if names[:1] == ["self"]:
        scope.fail(scope.node, f"{role} has `self`", f"Environments are plain functions: write `{form}`")
    if len(names) != count:
        scope.fail(scope.node, f"{role} takes ({', '.join(names)})", f"Write `{form}`")


def _reached(helpers: list[Function], entries: list[Function]) -> tuple[Function, ...]:
    """Leave out helpers that only an earlier guess of kinds asked for."""
    kept: list[Function] = list(entries)
    for helper in reversed(helpers):  # a helper stands after those it calls
        names = {n.id for f in kept for n in ast.walk(f.node) if isinstance(n, ast.Name)}
        if helper.name in names:
            kept.insert(0, helper)
    return tuple(kept)


def _first_statement(functions: tuple[Function, ...], entries: int) -> Statement | None:
    found = []
    for order, function in enumerate(functions[-entries:] + functions[:-entries]):
        for node in ast.walk(function.node):
            if isinstance(node, BRANCHES):
                found.append((order, node.lineno, Statement(type(node).__name__.lower(), function.file, node.lineno)))
    return min(found, key=lambda item: item[:2])[2] if found else None
