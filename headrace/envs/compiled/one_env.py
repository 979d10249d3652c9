"""One environment of a KernelEnv: the common part of its gymnasium.Env and pettingzoo.ParallelEnv. It is stepped in
plain Python, for debuggers, or by its kernels, for videos."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from headrace.core.rng import Purpose
from headrace.core.types import Json, Settings
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language import kinds
from headrace.kernels.language.ir import ENTITY_BITS, PHASE_BITS, EnvIR, Phase
from headrace.kernels.language.read import read
from headrace.kernels.targets.params import pack_params
from headrace.kernels.targets.random_actions import no_action
from headrace.kernels.targets.torch.pixels_plain import PlainPixels

if TYPE_CHECKING:
    from headrace.envs.compiled.kernel_steps import KernelSteps


class OneEnv:
    """One environment. `state` is its State, `p` its parameters; both may be set, for tests and debuggers.

    compiled: whether its kernels for the CPU step it, which take parameters from `params`, not from `p`. The states are
    the same up to rounding. Raises EnvError if the class cannot be compiled, ValueError for unknown parameters or an
    unknown render_mode.
    """

    _kernel: KernelSteps | None = None

    def __init__(
        self, cls: type[KernelEnv], params: Settings | None, render_mode: str | None, compiled: bool = False
    ) -> None:
        self.ir: EnvIR = read(cls, prints=True)
        self.cls: Any = cls  # its functions are those of a subclass
        draws = hasattr(cls, "render") or self.ir.frames > 0
        modes = ["rgb_array"] if draws else []
        self.metadata: Json = {"render_modes": modes, "render_fps": cls.render_fps}
        if render_mode is not None and render_mode not in modes:
            has = "rgb_array alone" if draws else "none: give it a render(s, p), an RGB array uint8 [H, W, 3]"
            raise ValueError(f"there is no render_mode {render_mode!r}; {cls.__name__} has {has}")
        self.render_mode = render_mode
        self.params = params or {}
        self._state = _empty(self.ir)
        self.seed, self.episode, self.length = 0, -1, 0
        self._seen = np.zeros(self.ir.observation_space.shape, np.uint8)
        if compiled:
            from headrace.envs.compiled.kernel_steps import KernelSteps

            self._kernel = KernelSteps(self.ir, self._params)

    @property
    def params(self) -> Settings:
        """The given parameters, by name. Setting them sets `p`; others get their defaults."""
        return self._params

    @params.setter
    def params(self, values: Settings) -> None:
        self._params, self.p = dict(values), _params(self.ir, values)
        self._pixels = PlainPixels(self.ir, values) if self.ir.frames else None
        if self._kernel is not None:
            self._kernel.target.set_params(self._params)

    def set_params(self, **params: Any) -> None:
        """Change these parameters, from the next step on. Raises ValueError as the constructor."""
        self.params = {**self._params, **params}

    @property
    def state(self) -> Any:
        """The State; a copy if the environment is compiled."""
        if self._kernel is None:
            return self._state
        fields = self._kernel.fields()
        return self._typed([fields[f.name].astype(kinds.STORAGE[f.dtype]).view(_Cells) for f in self.ir.state])

    @state.setter
    def state(self, state: Any) -> None:
        if self._kernel is None:
            self._state = state
        else:
            self._kernel.set_fields(dict(zip((f.name for f in self.ir.state), state, strict=True)))

    def begin(self) -> None:
        """Begin the next episode."""
        self.episode, self.length = self.episode + 1, 0
        if self._kernel is not None:
            self._kernel.begin(self.seed, self.episode)
            return
        self.state = self._typed(self.cls.reset(self.state, self.p, self._key(Purpose.RESET)))
        self._run(self.cls.reset_phases, self.ir.reset_phases, Purpose.RESET, None)
        if self._pixels is not None:
            self._seen = self._pixels.stacked(self.state, None)

    def advance(self, action: Any) -> tuple[Any, bool, bool]:
        """Take a step. Returns reward (a tuple of rewards for several agents), terminated, truncated.

        action: a tuple of actions for several agents. Raises RuntimeError before the first reset.
        """
        if self.episode < 0:
            raise RuntimeError("step() before reset(): call reset() first")
        if self._kernel is not None:
            self.length += 1
            return self._kernel.advance(action)
        self._run(self.cls.phases, self.ir.phases, Purpose.STEP, action)
        given = () if self.ir.entity_agents else (action,)
        state, reward, terminated = self.cls.step(self.state, self.p, *given, self._key(Purpose.STEP))
        if self.ir.entity_agents:
            reward = tuple(reward[: self.ir.num_agents])
        self.state, self.length = self._typed(state), self.length + 1
        if self._pixels is not None:
            self._seen = self._pixels.stacked(self.state, self._seen)
        late = self.ir.max_steps is not None and self.length >= self.ir.max_steps
        return reward, bool(terminated), late

    def _run(self, functions: Any, phases: tuple[Phase, ...], purpose: Purpose, action: Any) -> None:
        """Run each phase for all entities, one after another. action: a tuple of actions for several agents."""
        for number, (function, phase) in enumerate(zip(functions, phases, strict=True)):
            for i in range(self.ir.entities):
                key = self._key(purpose | (number + 1) << PHASE_BITS | i << ENTITY_BITS)
                own = self._action_of(i, action) if self.ir.entity_agents else action
                known = {"action": own, "key": key}
                # by name, because a subclass may have its own
                getattr(self.cls, function.__name__)(self.state, self.p, np.int32(i), *(known[x] for x in phase.takes))

    def _action_of(self, i: int, actions: Any) -> Any:
        """An entity's action; a neutral one, such as 0, if it is not an agent."""
        if actions is None or i < self.ir.num_agents:
            return actions and actions[i]
        return self.typed_action(no_action(self.ir.action_space))

    def observation(self, agent: int = 0) -> np.ndarray:
        """An agent's observation of the current state. Images are rendered by steps and resets."""
        if self._kernel is not None:
            return self._kernel.observation(agent)
        if self._pixels is not None:
            return self._seen.copy()
        out = np.zeros(self.ir.observation_space.shape, np.float32)
        who = () if self.ir.num_agents == 1 else (np.int32(agent),)
        seen = out
        if self.ir.masked:
            seen, mask = np.split(out, [self.ir.observation_space.features])  # type: ignore[attr-defined]
            self._fill(self.cls.action_mask, mask, who)
        self._fill(self.cls.observe, seen, who)
        return out

    def _fill(self, function: Any, out: np.ndarray, who: tuple[np.int32, ...]) -> None:
        """Write the result of the class's observe() or action_mask()."""
        if len(inspect.signature(function).parameters) == 3 + len(who):
            function(self.state, self.p, *who, out)
        else:
            out[...] = function(self.state, self.p, *who)

    def render(self) -> np.ndarray | None:
        """The class's render() of the state, uint8 [H, W, 3], or the image observation; None without a render mode."""
        if not self.render_mode:
            return None
        if hasattr(self.cls, "render"):
            return self.cls.render(self.state, self.p)
        seen = self.observation()
        newest = seen.reshape(-1, *seen.shape[-2:])[-self.ir.channels :]
        return np.repeat(newest[-1:], 3, 0).transpose(1, 2, 0) if len(newest) != 3 else newest.transpose(1, 2, 0)

    def typed_action(self, action: np.ndarray | int) -> np.int32 | tuple:
        """Convert an agent's action to the form in which kernels pass it to step()."""
        space: Any = self.ir.action_space
        if isinstance(space, Discrete):
            return np.int32(action)
        if isinstance(space, Box):
            return tuple(np.clip(np.asarray(action, np.float32), space.low, space.high).astype(np.float32))
        return tuple(np.asarray(action, np.int32))

    def _key(self, purpose: int) -> tuple[np.uint32, ...]:
        """The key (seed, purpose, env, episode, step), as in the kernels."""
        words = (self.seed, purpose, 0, self.episode, self.length)
        return tuple(np.uint32(word & 0xFFFFFFFF) for word in words)

    def _typed(self, state: Any) -> Any:
        """Convert each field of a state to its declared type."""
        return self.cls.State(
            *(_as(f.dtype, value) if f.shape is None else value for f, value in zip(self.ir.state, state, strict=True))
        )


def _as(dtype: str, value: Any) -> Any:
    return kinds.STORAGE[{kinds.F32: kinds.F32, kinds.BOOL: kinds.BOOL, kinds.U32: kinds.U32}.get(dtype, kinds.I32)](
        value
    )


class _Cells(np.ndarray):
    """An array field whose entries are read as in the kernels: narrow integers as int32."""

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return found if isinstance(found, np.ndarray) else _as(kinds.NAMES[self.dtype.name], found)


def _empty(ir: EnvIR) -> Any:
    fields = [
        _as(f.dtype, 0) if f.shape is None else np.zeros(f.shape, kinds.STORAGE[f.dtype]).view(_Cells) for f in ir.state
    ]
    return ir.cls.State(*fields)  # type: ignore[attr-defined]


def _params(ir: EnvIR, params: Settings) -> Any:
    floats, integers, _ = pack_params(ir, params, 1)
    packs = {True: iter(floats), False: iter(integers)}
    values = [_as(p.dtype, next(packs[p.dtype == kinds.F32])) for p in ir.params]
    return ir.cls.Params(*values)  # type: ignore[attr-defined]
