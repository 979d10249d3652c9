"""N worlds as batched tensors, on any device torch knows: the lowered code of an environment, run on columns of worlds.

Nothing here waits for the device, so that steps can be captured in a CUDA graph. Every step also draws the state that
a world would be reset to, since which worlds need it is known on the device alone.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from headrace.core.rng import MASK, Purpose
from headrace.data.rollout import Rollout
from headrace.kernels.language import kinds
from headrace.kernels.language.errors import EnvError
from headrace.kernels.language.ir import EnvIR, Function
from headrace.kernels.language.kinds import BOOL, U32
from headrace.kernels.targets.params import pack_params
from headrace.kernels.targets.tensor_state import DTYPES, TensorWorlds, put, read
from headrace.kernels.targets.torch.ops_torch import Key, Table, exact_namespace, namespace, select

FOREVER = 2**31 - 1  # no episode has this many steps
ENDINGS = ("reward", "terminated", "truncated", "episode_return", "episode_length")


class Cells:
    """An array field of all worlds, indexed as the array of one: entries are copies, rows are views.

    tensor: [*shape, N], or with `worlds` dimensions of worlds at its end in place of one.
    """

    def __init__(self, tensor: Tensor, worlds: int = 1) -> None:
        self.tensor, self.worlds = tensor, worlds

    def __getitem__(self, index: Any) -> Any:
        found = self.tensor[index]
        return found.clone() if found.dim() == self.worlds else Cells(found, self.worlds)

    def __setitem__(self, index: Any, value: Any) -> None:
        put(self.tensor[index], value)


class TorchWorlds(TensorWorlds):
    """N worlds as tensors. See headrace.kernels.targets.base for what each method owes.

    first_env: number of world 0, where these are a part of a larger set.
    Raises EnvError where the environment branches: an `if` or `while` statement, an index that differs between worlds.
    """

    def __init__(
        self,
        source: EnvIR,
        num_envs: int,
        params: Mapping[str, Any] | None = None,
        device: torch.device | str = "cpu",
        first_env: int = 0,
    ) -> None:
        device = torch.device(device)
        self._functions = batched(source, device)
        super().__init__(
            source,
            torch.zeros(len(source.floats) + source.num_agents, num_envs, device=device),
            torch.zeros(len(source.integers) + 2, num_envs, dtype=torch.int32, device=device),
            {
                f.name: torch.zeros(num_envs, *f.shape, dtype=DTYPES[f.dtype], device=device)  # type: ignore[misc]
                for f in source.arrays
            },
        )
        self._params = _params(source, params or {}, num_envs, self.device)
        self.first_env = first_env
        self._env = torch.arange(first_env, first_env + num_envs, device=device)
        self._artist = Artist(source, params or {}, num_envs, device) if source.frames else None

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Episode 0 of every world; writes observation[0] and valid[0]."""
        self.check(rollout)
        self.seed = seed & MASK
        self._totals.zero_()
        self.integers[-2:].zero_()
        arrays = self._cells(self.arrays)
        fresh = self._functions["env_reset"](self.fields(arrays), self._params, self._key(Purpose.RESET, 0, 0))
        self.keep(fresh)
        rollout.valid[0].fill_(True)
        self._observe(rollout, 0)

    def step(self, rollout: Rollout, t: int) -> None:
        """Every world from row t to row t + 1."""
        agents = self.source.num_agents
        alive = rollout.valid[t].view(agents, -1)[0]  # agents of a world end together
        length, episode = self.integers[-2], self.integers[-1]
        number = read(episode, U32)
        # Reset first, and on copies: a step changes arrays in place
        spare = {name: array.clone() for name, array in self.arrays.items()}
        key = self._key(Purpose.RESET, number + 1, 0)
        fresh = self._functions["env_reset"](self.fields(self._cells(spare)), self._params, key)
        key = self._key(Purpose.STEP, number, length.long())
        state, action = self.fields(self._cells(self.arrays)), self._action(rollout.action[t])
        new, gain, over = self._functions["env_step"](state, self._params, action, key)

        over = alive & over
        late = alive & (length + 1 >= (self.source.max_steps or FOREVER))  # maybe both, as in Gymnasium
        row = {name: getattr(rollout, name)[t].view(agents, -1) for name in ENDINGS}
        row["terminated"].copy_(over)
        row["truncated"].copy_(late)
        row["episode_length"].copy_(select(alive, 0, length))
        rollout.valid[t + 1].view(agents, -1).copy_(~(over | late))
        for agent, total in enumerate(self._totals):
            earned = gain if agents == 1 else gain[agent]
            put(row["reward"][agent], select(alive, earned, 0.0))
            row["episode_return"][agent].copy_(select(alive, 0.0, total))
            total.copy_(select(alive, total + earned, 0.0))
        length.copy_(select(alive, length + 1, 0))
        episode.add_(~alive)
        for name, array in self.arrays.items():
            array.copy_(torch.where(alive.view(-1, *[1] * (array.dim() - 1)), array, spare[name]))
        scalar = [f.shape is None for f in self.source.state]
        self.keep(tuple(select(alive, a, b) if kept else None for a, b, kept in zip(new, fresh, scalar, strict=True)))
        self._observe(rollout, t + 1)

    @property
    def _totals(self) -> Tensor:
        """The running return of each agent, [A, N]."""
        return self.floats[-self.source.num_agents :]

    def _key(self, purpose: Purpose, episode: Any, step: Any) -> Key:
        return Key((self.seed, int(purpose), self._env, episode, step))

    def _cells(self, arrays: Mapping[str, Tensor]) -> dict[str, Cells]:
        return {name: Cells(array.movedim(0, -1)) for name, array in arrays.items()}

    def _action(self, action: Tensor) -> Any:
        """What step() is given: [N], or a tuple of K such; a Box's clipped to its bounds. Of several agents a tuple of
        these."""
        if self.source.num_agents > 1:
            return tuple(self._action_of(part) for part in action.unflatten(0, (self.source.num_agents, -1)))
        return self._action_of(action)

    def _action_of(self, action: Tensor) -> Any:
        if self.source.action_size is None:
            return action
        entries = action.unbind(1)
        space = self.source.action_space
        if not isinstance(space, Box):
            return entries
        bounds = zip(np.ravel(space.low).tolist(), np.ravel(space.high).tolist(), strict=True)
        return tuple(entry.clamp(low, high) for entry, (low, high) in zip(entries, bounds, strict=True))

    def _observe(self, rollout: Rollout, t: int) -> None:
        if self._artist is not None:
            self._artist.draw(self.fields(self.arrays), rollout, t)
            return
        state = self.fields(self._cells(self.arrays))
        for agent, row in enumerate(rollout.observation[t].unflatten(0, (self.source.num_agents, -1))):  # [N, *shape]
            who = () if self.source.num_agents == 1 else (agent,)
            if self.source.observes_into:
                self._functions["env_observe"](state, self._params, *who, Cells(row.movedim(0, -1)))
                continue
            seen = self._functions["env_observe"](state, self._params, *who)
            for column, value in zip(row.unbind(1), seen, strict=True):
                put(column, value)


class Artist:
    """Draws the worlds of one EnvIR as batched tensors: all pixels of all worlds at once."""

    def __init__(self, source: EnvIR, params: Mapping[str, Any], num_envs: int, device: torch.device) -> None:
        self.source = source
        self._pixel = _defined(source.picture, source, device, exact_namespace(device))["env_pixel"]
        given = _params(source, params, num_envs, device)
        self._params = tuple(
            _over_pixels(_tensor(x, p.dtype, device)) for p, x in zip(source.params, given, strict=True)
        )
        height, width = source.observation_space.shape[-2:]
        self._row = torch.arange(height, dtype=torch.int32, device=device).view(-1, 1)
        self._column = torch.arange(width, dtype=torch.int32, device=device)

    def draw(self, fields: tuple[Tensor, ...], rollout: Rollout, t: int) -> None:
        """Row t of worlds whose State has these fields, [N] or [N, *shape]."""
        frame, target = self.frame(fields), rollout.observation[t]
        target = target.view(len(target), -1, *frame.shape[2:])
        channels = self.source.channels
        size = target.shape[1] - channels  # of the older frames, in channels
        target[:, size:].copy_(frame)
        if size:
            older = frame.repeat(1, self.source.frames - 1, 1, 1)
            if t:
                earlier = rollout.observation[t - 1][:, channels:]
                older = torch.where(rollout.valid[t - 1].view(-1, 1, 1, 1), earlier, older)
            target[:, :size].copy_(older)

    def frame(self, fields: tuple[Tensor, ...]) -> Tensor:
        """The pictures of these worlds, uint8 [N, channels, H, W]."""
        state = tuple(
            _over_pixels(x) if f.shape is None else Cells(x.movedim(0, -1)[..., None, None], 3)
            for f, x in zip(self.source.state, fields, strict=True)
        )
        greys = self._pixel(state, self._params, self._row, self._column)
        worlds, size = len(fields[0]), (len(self._row), len(self._column))
        bytes_ = [self._byte(grey).expand(worlds, *size) for grey in ((greys,) if self.source.channels == 1 else greys)]
        return torch.stack(bytes_, 1).to(torch.uint8)

    def _byte(self, grey: Tensor) -> Tensor:
        byte: Tensor = self._pixel.__globals__["_byte"](grey)
        return byte


def _over_pixels(value: Any) -> Any:
    """One value a world, [N] -> [N, 1, 1]; what all worlds share stays."""
    return value[:, None, None] if value.dim() else value


def _tensor(value: Any, dtype: str, device: torch.device) -> Tensor:
    return value if isinstance(value, Tensor) else torch.full((), value, dtype=DTYPES[dtype], device=device)


def batched(source: EnvIR, device: torch.device) -> dict[str, Any]:
    """The environment's functions by name, on tensors. Raises EnvError where they do not fit."""
    _defined(source.picture, source, device, exact_namespace(device))  # raises now rather than later
    return _defined(source.functions, source, device, namespace())


def _defined(
    functions: tuple[Function, ...], source: EnvIR, device: torch.device, scope: dict[str, Any]
) -> dict[str, Any]:
    scope |= {name: Table(array, device) for name, array in source.constants.items()}
    for function in functions:
        node = _Branchless(function, source).visit(copy.deepcopy(function.node))
        tree = ast.fix_missing_locations(ast.Module([node], []))
        exec(compile(tree, function.file, "exec"), scope)
    return scope


class _Branchless(ast.NodeTransformer):
    """`a if c else b`, `and`, `or` -> select, &, |; refuses what may differ between worlds: branches and indices.

    Loops over range() of constants stay: all worlds go through them alike.
    """

    def __init__(self, function: Function, source: EnvIR) -> None:
        self.function, self.source = function, source
        looped = {node.target.id for node in ast.walk(function.node) if isinstance(node, ast.For)}  # type: ignore[attr-defined]
        assigned = [
            t.id
            for n in ast.walk(function.node)
            if isinstance(n, ast.Assign)
            for t in n.targets
            if isinstance(t, ast.Name)
        ]
        self.alike = looped - set(assigned)  # names of numbers that are the same in every world
        if source.num_agents > 1 and function.name == "env_observe":
            self.alike |= {function.node.args.args[2].arg} - set(assigned)  # the agent

    def fail(self, node: ast.AST, wrong: str, instead: str) -> NoReturn:
        """Raise EnvError at a node."""
        line = node.lineno  # type: ignore[attr-defined]
        raise EnvError(
            self.function.file, line, f"{self.source.name} {wrong}", f'{instead}, or use backend="cpu" or "cuda"'
        )

    def visit_If(self, node: ast.If) -> NoReturn:
        """Refused."""
        wrong = "has an `if` statement, and batched tensors cannot branch world by world"
        self.fail(node, wrong, "Write `a if condition else b`")

    def visit_While(self, node: ast.While) -> NoReturn:
        """Refused."""
        wrong = "has a `while` statement, and batched tensors cannot branch world by world"
        self.fail(node, wrong, "Write `for i in range(n):` with a constant n")

    def visit_For(self, node: ast.For) -> ast.For:
        """Kept where its bounds are constant."""
        if not all(self._alike(bound) for bound in node.iter.args):  # type: ignore[attr-defined]
            wrong = "loops over a range() that may differ between worlds, and batched tensors cannot"
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
        """Indices that all worlds share, or any into a constant array."""
        self.generic_visit(node)
        table = isinstance(node.value, ast.Name) and node.value.id in self.source.constants
        if not table and not self._alike(node.slice):
            wrong = "indexes by a value that may differ between worlds, and batched tensors cannot"
            self.fail(node, wrong, "Index by constants")
        return node

    def _alike(self, node: ast.expr) -> bool:
        """Is this the same number in every world?"""
        if isinstance(node, ast.Name):
            return node.id in self.alike
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        if isinstance(node, ast.Call):
            parts = node.args if ast.unparse(node.func) in ("I32", "U32") else [node.func]
        return isinstance(node, ast.Constant) or (bool(parts) and all(self._alike(part) for part in parts))


def _params(source: EnvIR, params: Mapping[str, Any], num_envs: int, device: torch.device) -> tuple[Any, ...]:
    """p: numbers, or tensors [N] where some parameter has a value per world."""
    floats, integers, per_env = pack_params(source, params, num_envs)
    packs = {True: iter(floats), False: iter(integers)}
    values: list[Any] = []
    for param in source.params:
        value = next(packs[param.dtype == kinds.F32])
        if per_env:
            tensor = torch.from_numpy(np.ascontiguousarray(value)).to(device)
            values.append(read(tensor, param.dtype))
        else:
            number = value.item()
            values.append(bool(number) if param.dtype == BOOL else number & MASK if param.dtype == U32 else number)
    return tuple(values)
