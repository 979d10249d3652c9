"""Lowering of phases: functions for one entity, which run for all entities before any runs of the next phase."""

from __future__ import annotations

from collections.abc import Callable

from headrace.kernels.language.ir import Function, Over, Phase
from headrace.kernels.language.kinds import I32, KEY, PARAMS, STATE, Kind
from headrace.kernels.language.program import Program
from headrace.kernels.language.races import Races
from headrace.kernels.language.scope import Scope

# lowers a function: (its scope, its name in the lowered code, its arguments' kinds) -> it, and its reductions
LowerPhase = Callable[[Scope, str, tuple[Kind, ...]], tuple[Function, tuple[Over, ...]]]
FORM = "def {}(s, p, i, action, key), of which action and key may be left out"


def lower_phases(
    program: Program, names: tuple[str, ...], first: int, action: Kind | None, lower: LowerPhase
) -> list[tuple[Phase, Function]]:
    """Lower these functions of the class. first: number of the first one. action: kind of the action, if any."""
    made = []
    for number, name in enumerate(names, first):
        scope = Scope(getattr(program.cls, name), program.cls)
        takes = _takes(scope, name, action is not None)
        kinds: dict[str, Kind] = {"key": KEY} | ({} if action is None else {"action": action})
        given: tuple[Kind, ...] = (STATE, PARAMS, I32, *(kinds[what] for what in takes))
        function, over = lower(scope, f"env_{number}_{name}", given)
        made.append((Phase(function.name, takes, over), function))
    return made


def check_races(program: Program, phases: list[tuple[Phase, Function]]) -> None:
    """Raises EnvError at the line of a race between entities."""
    helpers = {made.function.name: made.function for made in program.made.values()}
    races = Races(program.state, helpers, program.declarations.entities)
    for phase, function in phases:
        races.check(function, phase.name.split("_", 2)[2], phase.over)


def _takes(scope: Scope, name: str, has_action: bool) -> tuple[str, ...]:
    """Names of the arguments of a phase after s, p and i."""
    given = [argument.arg for argument in scope.node.args.args]
    takes = tuple(given[3:])
    if given[:1] == ["self"]:
        scope.fail(scope.node, f"{name} has `self`", f"Environments are plain functions: write `{FORM.format(name)}`")
    if len(given) < 3 or takes not in ((), ("action",), ("key",), ("action", "key")):
        scope.fail(scope.node, f"{name} takes ({', '.join(given)})", f"Write `{FORM.format(name)}`")
    if "action" in takes and not has_action:
        scope.fail(scope.node, f"{name} takes an action, and a reset has none", "Leave it out")
    return takes
