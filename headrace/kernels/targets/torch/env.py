"""N environments as batched tensors, on any device of torch: an environment's lowered functions, run on tensors [N].

Nothing here waits for the device, so that steps can be captured in a CUDA graph. Every step also computes the state to
which each environment would be reset, because only the device knows which of them need it.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from types import FunctionType
from typing import NoReturn

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from headrace.core.device import Device
from headrace.core.rng import MASK, Purpose, word
from headrace.data.rollout import Rollout
from headrace.kernels.language import kinds
from headrace.kernels.language.errors import EnvError
from headrace.kernels.language.ir import EnvIR, Function
from headrace.kernels.language.kinds import BOOL, U32
from headrace.kernels.targets.params import ParamValues, pack_params
from headrace.kernels.targets.tensor_state import DTYPES, TensorEnvs, empty_packs, put, read
from headrace.kernels.targets.torch.cells import Cells
from headrace.kernels.targets.torch.entities import REDUCTIONS, Action, Entities
from headrace.kernels.targets.torch.ops_torch import (
    Key,
    Namespace,
    Number,
    Table,
    Word,
    exact_namespace,
    namespace,
    select,
)

FOREVER = 2**31 - 1  # no episode has this many steps
ENDINGS = ("reward", "terminated", "truncated", "episode_return", "episode_length")


class TorchEnvs(TensorEnvs):
    """N environments as tensors; implements headrace.kernels.targets.base.CompiledTarget.

    first_env: number of environment 0, where these are a part of a larger set.
    Raises EnvError for an `if` or `while` statement, or an index that differs between environments.
    """

    def __init__(
        self, ir: EnvIR, num_envs: int, params: ParamValues | None = None, device: Device = "cpu", first_env: int = 0
    ) -> None:
        device = torch.device(device)
        self._functions = batched(ir, device)
        shapes = {f.name: ((num_envs, *f.shape), DTYPES[f.dtype]) for f in ir.arrays}  # type: ignore[misc]
        arrays = {name: torch.zeros(shape, dtype=kind, device=device) for name, (shape, kind) in shapes.items()}
        super().__init__(ir, num_envs, first_env, *empty_packs(ir, num_envs, device), arrays)
        self._params = _params(ir, params or {}, num_envs, self.device)
        self._env = torch.arange(first_env, first_env + num_envs, device=device)
        self._renderer = Renderer(ir, params or {}, num_envs, device) if ir.frames else None
        self._entities = Entities(ir, self._functions, num_envs, device) if ir.entities else None

    def set_params(self, params: ParamValues) -> None:
        """Other parameters. Raises ValueError on a GPU, where a captured graph has the old ones in it."""
        if self.device.type == "cuda":
            raise ValueError("parameters of the torch backend cannot change on a GPU: use the cuda backend")
        self._params = _params(self.ir, params, self.num_envs, self.device)
        if self._renderer is not None:
            self._renderer.set_params(params)

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Episode 0 of every environment; writes observation[0] and valid[0]."""
        self.check(rollout)
        self.seed = word(seed)
        self._totals.zero_()
        self.integers[-2:].zero_()
        arrays = self._cells(self.arrays)
        fresh = self._functions["env_reset"](self.fields(arrays), self._params, self._key(Purpose.RESET, 0, 0))
        self._run_phases(Purpose.RESET, fresh, 0, 0)
        self.keep(fresh)
        rollout.valid[0].fill_(True)
        self._observe(rollout, 0)

    def step(self, rollout: Rollout, t: int) -> None:
        """Every environment from row t to row t + 1."""
        agents = self.ir.num_agents
        is_valid = rollout.valid[t].view(agents, -1)[0]  # agents of an environment end together
        length, episode = self.integers[-2], self.integers[-1]
        number = read(episode, U32)
        # Reset first, and on copies: a step changes arrays in place
        reset_arrays = {name: array.clone() for name, array in self.arrays.items()}
        key = self._key(Purpose.RESET, number + 1, 0)
        reset_state = self._functions["env_reset"](self.fields(self._cells(reset_arrays)), self._params, key)
        self._run_phases(Purpose.RESET, reset_state, number + 1, 0)
        key = self._key(Purpose.STEP, number, length.long())
        state, action = self.fields(self._cells(self.arrays)), self._action(rollout.action[t])
        self._run_phases(Purpose.STEP, state, number, length.long(), action)  # type: ignore[arg-type]
        given = () if self.ir.entity_agents else (action,)
        next_state, reward, is_terminated = self._functions["env_step"](state, self._params, *given, key)
        rewards = reward.tensor[:agents] if self.ir.entity_agents else (reward,) if agents == 1 else reward

        is_terminated = is_valid & is_terminated
        is_truncated = is_valid & (length + 1 >= (self.ir.max_steps or FOREVER))  # maybe both, as in Gymnasium
        row = {name: getattr(rollout, name)[t].view(agents, -1) for name in ENDINGS}
        row["terminated"].copy_(is_terminated)
        row["truncated"].copy_(is_truncated)
        row["episode_length"].copy_(select(is_valid, 0, length))
        rollout.valid[t + 1].view(agents, -1).copy_(~(is_terminated | is_truncated))
        for agent, so_far in enumerate(self._totals):
            earned = rewards[agent]
            put(row["reward"][agent], select(is_valid, earned, 0.0))
            row["episode_return"][agent].copy_(select(is_valid, 0.0, so_far))
            so_far.copy_(select(is_valid, so_far + earned, 0.0))
        put(length, select(is_valid, length + 1, 0))
        episode.add_(~is_valid)
        for name, array in self.arrays.items():
            array.copy_(torch.where(is_valid.view(-1, *[1] * (array.dim() - 1)), array, reset_arrays[name]))
        scalar = [f.shape is None for f in self.ir.state]
        fields = zip(next_state, reset_state, scalar, strict=True)
        self.keep(tuple(select(is_valid, a, b) if kept else None for a, b, kept in fields))
        self._observe(rollout, t + 1)

    @property
    def _totals(self) -> Tensor:
        """The running return of each agent, [A, N]."""
        return self.floats[-self.ir.num_agents :]

    def _run_phases(
        self,
        purpose: Purpose,
        state: tuple[Tensor | Cells, ...],
        episode: Word,
        step: Word,
        action: Action | None = None,
    ) -> None:
        """The phases of a step or of a reset, if there are any. A state's scalars may be numbers."""
        if self._entities is not None:
            phases = self.ir.phases if purpose == Purpose.STEP else self.ir.reset_phases
            self._entities.run(phases, state, self._params, purpose, (self.seed, self._env, episode, step), action)

    def _key(self, purpose: Purpose, episode: Word, step: Word) -> Key:
        return Key((self.seed, int(purpose), self._env, episode, step))

    def _cells(self, arrays: Mapping[str, Tensor]) -> dict[str, Cells]:
        return {name: Cells(array.movedim(0, -1)) for name, array in arrays.items()}

    def _action(self, action: Tensor) -> Action | tuple[Action, ...]:
        """The argument of step(): [N], or a tuple of K of these, a Box's clipped to its bounds. With several agents
        it is a tuple of these."""
        if self.ir.num_agents > 1:
            actions = tuple(self._action_of(part) for part in action.unflatten(0, (self.ir.num_agents, -1)))
            return actions if self._entities is None else self._entities.actions(actions)
        return self._action_of(action)

    def _action_of(self, action: Tensor) -> Action:
        if self.ir.action_size is None:
            return action
        entries = action.unbind(1)
        space = self.ir.action_space
        if not isinstance(space, Box):
            return entries
        bounds = zip(np.ravel(space.low).tolist(), np.ravel(space.high).tolist(), strict=True)
        return tuple(entry.clamp(low, high) for entry, (low, high) in zip(entries, bounds, strict=True))

    def _observe(self, rollout: Rollout, t: int) -> None:
        if self._renderer is not None:
            self._renderer.draw(self.fields(self.arrays), rollout, t)
            return
        state = self.fields(self._cells(self.arrays))
        if self._entities is not None and self.ir.entity_agents:
            self._observe_entities(self._entities, state, rollout.observation[t].unflatten(0, (self.ir.num_agents, -1)))
            return
        for agent, row in enumerate(rollout.observation[t].unflatten(0, (self.ir.num_agents, -1))):  # [N, *shape]
            who = () if self.ir.num_agents == 1 else (agent,)
            if self.ir.observes_into:
                self._functions["env_observe"](state, self._params, *who, Cells(row.movedim(0, -1)))
                continue
            seen = self._functions["env_observe"](state, self._params, *who)
            for column, value in zip(row.unbind(1), seen, strict=True):
                put(column, value)

    def _observe_entities(self, entities: Entities, state: tuple[Tensor | Cells, ...], rows: Tensor) -> None:
        """Fill rows [A, N, *shape] with the observations of the entities that are agents."""
        observe, over = self._functions["env_observe"], entities.reduced(self.ir.observe_over, state)
        if self.ir.observes_into:
            out = Cells(rows.movedim((0, 1), (-2, -1)), 2)
            observe(state, self._params, entities.agents, out, *over)
            return
        for column, value in zip(rows.unbind(2), observe(state, self._params, entities.agents, *over), strict=True):
            put(column, value)


class Renderer:
    """Draws the environments of one EnvIR as batched tensors: all pixels of all environments at once."""

    def __init__(self, ir: EnvIR, params: ParamValues, num_envs: int, device: torch.device) -> None:
        self.ir, self.num_envs, self.device = ir, num_envs, device
        self._pixel = _defined(ir.pixel_functions, ir, device, exact_namespace(device))["env_pixel"]
        self.set_params(params)
        height, width = ir.observation_space.shape[-2:]
        self._row = torch.arange(height, dtype=torch.int32, device=device).view(-1, 1)
        self._column = torch.arange(width, dtype=torch.int32, device=device)

    def set_params(self, params: ParamValues) -> None:
        """Draw with these parameters."""
        given = zip(self.ir.params, _params(self.ir, params, self.num_envs, self.device), strict=True)
        self._params = tuple(_over_pixels(_tensor(value, param.dtype, self.device)) for param, value in given)

    def draw(self, fields: tuple[Tensor, ...], rollout: Rollout, t: int) -> None:
        """Draw row t of environments whose State has these fields, [N] or [N, *shape]."""
        frame, target = self.frame(fields), rollout.observation[t]
        target = target.view(len(target), -1, *frame.shape[2:])
        channels = self.ir.channels
        size = target.shape[1] - channels  # of the older frames, in channels
        target[:, size:].copy_(frame)
        if size:
            older = frame.repeat(1, self.ir.frames - 1, 1, 1)
            if t:
                earlier = rollout.observation[t - 1][:, channels:]
                older = torch.where(rollout.valid[t - 1].view(-1, 1, 1, 1), earlier, older)
            target[:, :size].copy_(older)

    def frame(self, fields: tuple[Tensor, ...]) -> Tensor:
        """A frame of each of these environments, uint8 [N, channels, H, W]."""
        state = tuple(
            _over_pixels(x) if f.shape is None else Cells(x.movedim(0, -1)[..., None, None], 3)
            for f, x in zip(self.ir.state, fields, strict=True)
        )
        gray_levels = self._pixel(state, self._params, self._row, self._column)
        envs, size = len(fields[0]), (len(self._row), len(self._column))
        bytes_ = [
            self._byte(gray).expand(envs, *size) for gray in ((gray_levels,) if self.ir.channels == 1 else gray_levels)
        ]
        return torch.stack(bytes_, 1).to(torch.uint8)

    def _byte(self, gray: Tensor) -> Tensor:
        byte: Tensor = self._pixel.__globals__["_byte"](gray)
        return byte


def _over_pixels(value: Tensor) -> Tensor:
    """One value per environment, [N] -> [N, 1, 1]; shared values stay."""
    return value[:, None, None] if value.dim() else value


def _tensor(value: Number, dtype: str, device: torch.device) -> Tensor:
    return value if isinstance(value, Tensor) else torch.full((), value, dtype=DTYPES[dtype], device=device)


def batched(ir: EnvIR, device: torch.device) -> dict[str, FunctionType]:
    """The environment's functions by name, on tensors. Raises EnvError where they cannot be batched."""
    _defined(ir.pixel_functions, ir, device, exact_namespace(device))  # raises now rather than later
    return _defined(ir.functions, ir, device, namespace() | REDUCTIONS)


def _defined(
    functions: tuple[Function, ...], ir: EnvIR, device: torch.device, scope: Namespace
) -> dict[str, FunctionType]:
    scope |= {name: Table(array, device) for name, array in ir.constants.items()}
    for function in functions:
        node = _Branchless(function, ir).visit(copy.deepcopy(function.node))
        tree = ast.fix_missing_locations(ast.Module([node], []))
        exec(compile(tree, function.file, "exec"), scope)
    return {function.name: scope[function.name] for function in functions}  # type: ignore[misc]


class _Branchless(ast.NodeTransformer):
    """`a if c else b`, `and`, `or` -> select, &, |; refuses branches and indices that may differ between environments.

    Loops over range() of constants stay: they are the same for all environments.
    """

    def __init__(self, function: Function, ir: EnvIR) -> None:
        self.function, self.ir = function, ir
        looped = {node.target.id for node in ast.walk(function.node) if isinstance(node, ast.For)}  # type: ignore[attr-defined]
        targets = [t for n in ast.walk(function.node) if isinstance(n, ast.Assign) for t in n.targets]
        assigned = {t.id for t in targets if isinstance(t, ast.Name)}
        self.shared = looped - assigned  # numbers that are the same in every environment
        if ir.num_agents > 1 and function.name in ("env_observe", "env_unmasked", "env_action_mask"):
            self.shared |= {function.node.args.args[2].arg} - assigned  # the agent
        phases = {phase.name for phase in (*ir.phases, *ir.reset_phases)}
        entity = function.name in phases or (ir.entity_agents and function.name == "env_observe")
        self.entity = function.node.args.args[2].arg if entity else ""
        self.shared -= {self.entity}

    def fail(self, node: ast.AST, wrong: str, instead: str) -> NoReturn:
        """Raise EnvError at a node."""
        line = node.lineno  # type: ignore[attr-defined]
        wrong = f"{self.ir.name} {wrong}"
        raise EnvError(self.function.file, line, wrong, f'{instead}, or use backend="cpu" or "cuda"')

    def visit_If(self, node: ast.If) -> NoReturn:
        """Refused."""
        wrong = "has an `if` statement, but batched tensors cannot branch per environment"
        self.fail(node, wrong, "Write `a if condition else b`")

    def visit_While(self, node: ast.While) -> NoReturn:
        """Refused."""
        wrong = "has a `while` statement, but batched tensors cannot branch per environment"
        self.fail(node, wrong, "Write `for i in range(n):` with a constant n")

    def visit_For(self, node: ast.For) -> ast.For:
        """Kept where its bounds are constant."""
        if not all(self._is_shared(bound) for bound in node.iter.args):  # type: ignore[attr-defined]
            wrong = "loops over a range() that may differ between environments, which batched tensors cannot do"
            self.fail(node, wrong, "Loop over a constant range()")
        self.generic_visit(node)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """select(c, a, b)"""
        self.generic_visit(node)
        chosen = ast.Call(ast.Name("select", ast.Load()), [node.test, node.body, node.orelse], [])
        return ast.copy_location(chosen, node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """a & b, a | b"""
        self.generic_visit(node)
        operator: ast.operator = ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr()
        result = node.values[0]
        for value in node.values[1:]:
            result = ast.copy_location(ast.BinOp(result, operator, value), node)
        return result

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Accepts indices that all environments share, and any index into a constant array."""
        self.generic_visit(node)
        table = isinstance(node.value, ast.Name) and node.value.id in self.ir.constants
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if isinstance(parts[0], ast.Name) and parts[0].id == self.entity:
            parts = parts[1:]  # one more axis
        if not table and not all(self._is_shared(part) for part in parts):
            wrong = "indexes by a value that may differ between environments, which batched tensors cannot do"
            self.fail(node, wrong, "Use a constant index")
        return node

    def _is_shared(self, node: ast.expr) -> bool:
        """Tell whether an expression is the same number in every environment."""
        if isinstance(node, ast.Name):
            return node.id in self.shared
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        if isinstance(node, ast.Call):
            parts = node.args if ast.unparse(node.func) in ("I32", "U32") else [node.func]
        return isinstance(node, ast.Constant) or (bool(parts) and all(self._is_shared(part) for part in parts))


def _params(ir: EnvIR, params: ParamValues, num_envs: int, device: torch.device) -> tuple[Number, ...]:
    """p: numbers, or tensors [N] where some parameter has a value per environment."""
    floats, integers, per_env = pack_params(ir, params, num_envs)
    packs = {True: iter(floats), False: iter(integers)}
    values: list[Number] = []
    for param in ir.params:
        value = next(packs[param.dtype == kinds.F32])
        if per_env:
            tensor = torch.from_numpy(np.ascontiguousarray(value)).to(device)
            values.append(read(tensor, param.dtype))
        else:
            number = value.item()
            values.append(bool(number) if param.dtype == BOOL else number & MASK if param.dtype == U32 else number)
    return tuple(values)
