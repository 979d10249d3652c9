"""N environments on the CPU: a generated Numba module, its arrays, and the rollout's columns it writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import Tensor

from headrace.core.rng import word
from headrace.core.terminal import tell
from headrace.data.rollout import Rollout
from headrace.kernels.language.errors import EnvError
from headrace.kernels.language.ir import EnvIR
from headrace.kernels.language.numba_errors import explained
from headrace.kernels.runtime import cache
from headrace.kernels.runtime.native import Argument, Call, Native
from headrace.kernels.runtime.thread_pool import CallInParts
from headrace.kernels.targets.cpu.codegen_cpu import cpu_module
from headrace.kernels.targets.cpu.codegen_entities_cpu import ACROSS, LANES, entity_module, faster_across, room_for
from headrace.kernels.targets.cpu.grid_text import scratch_size
from headrace.kernels.targets.cpu.pixels import CpuPixels
from headrace.kernels.targets.cpu.state_layout import envs_per_block, flat, from_blocks, to_blocks
from headrace.kernels.targets.params import ParamValues, pack_params, repacked
from headrace.kernels.targets.tensor_state import TensorEnvs, empty_packs, stored_dtype

WORTH_A_THREAD = 30e-6  # s; shorter calls gain nothing from a second thread
TRIALS = 8  # calls measured for each number of threads


class CpuEnvs(TensorEnvs):
    """N environments on the CPU; implements headrace.kernels.targets.base.CompiledTarget.

    num_envs: environments; with several agents each agent has a column per environment. threads: number of threads;
    None measures during the first calls whether several help. Results are the same bits. first_env: number of
    environment 0 in a larger set: environment i draws as environment first_env + i of the set. lanes: entities that are
    computed at once, 1, 2, 4, 8 or 16; None: as many as there are, up to 16. Results are the same bits. across: what is
    computed at once in SIMD lanes, "entities" of an environment or "environments", 16 of them; None: what was measured
    to be faster for so many of both. Where functions of the class cannot run for several environments at once,
    entities. Results are the same bits.
    """

    def __init__(
        self,
        ir: EnvIR,
        num_envs: int,
        params: ParamValues | None = None,
        device: torch.device | str = "cpu",
        threads: int | None = None,
        first_env: int = 0,
        lanes: int | None = None,
        across: str | None = None,
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}: give 1 or more, or None to measure")
        if lanes not in (None, *LANES):
            raise ValueError(f"lanes is {lanes}: give 1, 2, 4, 8 or 16, or None for as many as there are entities")
        if across not in (None, *ACROSS):
            raise ValueError(f"across is {across!r}: give {' or '.join(map(repr, ACROSS))}, or None for the faster one")
        self._per_block = envs_per_block(ir)
        floats, integers = (self._blocks(pack) for pack in empty_packs(ir, num_envs, "cpu"))
        self._stored = {f.name: torch.zeros(num_envs, *room_for(ir, f), dtype=stored_dtype(f)) for f in ir.arrays}
        arrays = {f.name: self._stored[f.name][:, : f.shape[0]] for f in ir.arrays}  # type: ignore[index]
        super().__init__(ir, num_envs, first_env, floats, integers, arrays)
        self.threads = threads
        *packs, per_env = pack_params(ir, params or {}, num_envs)
        self._lanes, self._across = lanes, across or faster_across(ir, num_envs)
        self._per_env = per_env  # whether there is a parameter with a number for each environment
        self._params = self._laid_out(packs)
        self._masked = np.zeros(num_envs * scratch_size(ir), np.int32)
        self._text = entity_module(ir, per_env, lanes, self._across) if ir.entities else cpu_module(ir, per_env)
        self._pixels = CpuPixels(ir, per_env) if ir.frames else None
        self._rollout: Rollout | None = None
        self._parts = threads or 1
        worth = num_envs > (1 if ir.frames else self._per_block)
        # while it is not known whether threads help: seconds that calls took without them, and with them
        self._trial: dict[bool, list[float]] = {False: [], True: []} if threads is None and worth else {}
        self._call: Call
        self._calls: list[tuple[Call, Callable[[], None]]]  # of a step, and what makes each on threads

    def _laid_out(self, packs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Parameters as the kernels read them."""
        return [(self._blocks(torch.from_numpy(x)).numpy() if self._per_env else x).ravel() for x in packs]

    def set_params(self, params: ParamValues) -> None:
        """Other parameters, where the kernels read them."""
        packs = repacked(self.ir, params, self.num_envs, self._per_env)
        for known, values in zip(self._params, self._laid_out(packs), strict=True):
            known[:] = values

    def reset(self, rollout: Rollout, seed: int) -> None:
        """Begin episode 0 of every environment. Writes observation[0] and valid[0]."""
        self.seed = word(seed)
        self._bind(rollout)
        self._entry("reset", (*self._shared, self.num_envs))(*self._shared, self.num_envs)
        if self._pixels is not None:
            self._pixels.draw(-1)

    def step(self, rollout: Rollout, t: int) -> None:
        """Step every environment from row t to row t + 1."""
        if rollout is not self._rollout:
            self._bind(rollout)
        if self._trial:
            self._try(t)
        else:
            self._step(t)

    def bound(self, rollout: Rollout) -> Call:
        """step() of this rollout as machine code. Its last three argument slots are the first environment, the
        last + 1, and t. The environments must be of one block (state_layout.envs_per_block), or whole blocks."""
        if rollout is not self._rollout:
            self._bind(rollout)
        return self._call

    def _bind(self, rollout: Rollout) -> None:
        """Keep the columns of a rollout as flat arrays: making them takes longer than a step of few environments."""
        self.check(rollout)
        columns, strides = flat_columns(self.ir, rollout)
        floats, integers = self.floats.numpy().ravel(), self.integers.numpy().ravel()
        state = (floats, integers, *self._params, self._masked, *(array.numpy() for array in self._stored.values()))
        self._shared: tuple[Argument, ...] = (*state, *columns, np.uint32(self.seed), self.first_env, *strides)
        arguments: tuple[Argument, ...] = (*self._shared, 0, self.num_envs, 0)
        self._call = Call(self._entry("step", arguments), arguments)
        if self._pixels is not None:
            self._pixels.bind(state, rollout)
        self._choose(self._parts)
        self._rollout = rollout

    def _choose(self, parts: int) -> None:
        """Use one thread or several from now on."""
        self._parts = parts
        calls = [(self._call, self._per_block)] + ([(self._pixels.call, 1)] if self._pixels else [])
        self._calls = [(call, call if parts == 1 else self._on_threads(call, parts, size)) for call, size in calls]

    def _on_threads(self, call: Call, parts: int, size: int) -> CallInParts:
        """Make a call for all environments in so many parts of whole blocks of a size."""
        blocks = -(-self.num_envs // size)
        return CallInParts(call, [min(blocks * part // parts * size, self.num_envs) for part in range(parts + 1)])

    def _step(self, t: int) -> None:
        for call, run in self._calls:
            call.slots[-1] = t
            run()

    def _try(self, t: int) -> None:
        """Take a timed step, first with one thread, then with all where that may help. The faster choice stays."""
        trial, parallel = self._trial, self._parts > 1
        start = time.perf_counter()
        self._step(t)
        trial[parallel].append(time.perf_counter() - start)
        if len(trial[parallel]) < TRIALS:
            return
        available = torch.get_num_threads()
        if parallel:
            self.threads = available if median(trial[True]) < 0.9 * median(trial[False]) else 1
        elif median(trial[False]) < WORTH_A_THREAD or available == 1:
            self.threads = 1
        else:
            self._choose(available)
            return
        self._trial = {}
        self._choose(self.threads)

    def _entry(self, function: str, arguments: tuple[Argument, ...]) -> Native:
        """A function of the module, compiled for these arguments or loaded."""
        announcement, name = self.ir.announcement("for the CPU"), self.ir.name
        try:
            return cache.entry(name, self._text, function, arguments, announcement, partial(explained, self.ir))
        except EnvError as error:
            if self.ir.entities and self._across == "environments":
                self._across = "entities"
                self._text = entity_module(self.ir, self._per_env, self._lanes, self._across)
                return self._entry(function, arguments)
            if not self.ir.entities or self._lanes == 1:
                raise
            tell(f"{name} is stepped one entity at a time, which is slower: several at once do not compile: {error}")
            self._lanes, self._text = 1, entity_module(self.ir, self._per_env, 1, self._across)
            return self._entry(function, arguments)

    def _blocks(self, pack: Tensor) -> Tensor:
        return to_blocks(pack, self._per_block)

    def packs(self) -> tuple[Tensor, Tensor]:
        """Copies as [rows, N]."""
        return from_blocks(self.floats, self.num_envs), from_blocks(self.integers, self.num_envs)

    def set_packs(self, floats: Tensor, integers: Tensor) -> None:
        """Copy floats and integers from [rows, N]."""
        super().set_packs(self._blocks(floats), self._blocks(integers))

    def pack_mask(self, which: Tensor) -> Tensor:
        return self._blocks(which.unsqueeze(0))

    def running_episodes(self, envs: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.floats[:, len(self.ir.floats)], self.integers[:, len(self.ir.integers)]
        returns, lengths = (row.reshape(-1)[envs] for row in rows)
        return returns, lengths

    def load_state_dict(self, state: Mapping[str, Tensor | int]) -> None:
        """Resume from state_dict(). Raises ValueError where it is of other environments."""
        super().load_state_dict(state)
        self._rollout = None  # the bound arguments hold the old seed


def flat_columns(ir: EnvIR, rollout: Rollout) -> tuple[tuple[np.ndarray, ...], tuple[int, ...]]:
    """The columns a kernel takes, flat, and its strides in entries: row, plane, action_plane, of several agents also
    agent_plane.

    Entry (t, n) of a column is at t * row + n, entry f of a vector a plane further. Observations of more dimensions
    stay [T + 1, N, ...]. Raises ValueError where a column's environments do not lie side by side.
    """
    scalars = [getattr(rollout, name) for name in COLUMNS]
    row = scalars[0].stride(0)
    for name, column in zip(COLUMNS, scalars, strict=True):
        if column.stride(0) != row:
            raise ValueError(
                f"column {name} has rows {column.stride(0)} entries apart, valid {row}: make one Rollout of all"
            )
    action, action_plane = rollout.action, 0
    if ir.action_size is not None:
        action_plane = action.stride(2)
    observation, plane = rollout.observation, 0
    seen = observation.numpy()
    if observation.dim() == 3:
        plane, seen = observation.stride(2), _flat(observation, "observation", row)
    flats = {name: _flat(column, name, row) for name, column in zip(COLUMNS, scalars, strict=True)}
    columns = (seen, flats["valid"], _flat(action, "action", row), *(flats[name] for name in COLUMNS[1:]))
    strides = (row, plane, action_plane)
    return columns, strides if ir.num_agents == 1 else (*strides, rollout.num_envs // ir.num_agents)


COLUMNS = ("valid", "reward", "terminated", "truncated", "episode_return", "episode_length")


def _flat(column: Tensor, name: str, row: int) -> np.ndarray:
    if (column.shape[1] > 1 and column.stride(1) != 1) or column.stride(0) != row:
        raise ValueError(
            f"column {name} has strides {column.stride()}: environments must lie side by side (feature-major)"
        )
    return flat(column)
