"""Run the functions of a KernelEnv in plain Python, with every action, to find errors that compiled code does not
check. These are an index out of range, which reads or writes other memory when compiled; a name without a value, which
has an arbitrary value then; and an endless loop, which does not return."""

from __future__ import annotations

import ctypes
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from headrace.checks.finding import Finding
from headrace.core.text import shortened, shown
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.envs.compiled.one_env import OneEnv
from headrace.kernels.language.errors import EnvError

LIMIT = 5.0  # s for all steps from one state: each takes about a millisecond, unless it does not return
MOST = 32  # largest number of actions tried at each state
ADVICE = "compiled code does not look at this: correct it before training. For a debugger there is headrace.single"


def check(cls: type[KernelEnv], steps: int, seconds: float, seed: int) -> Finding:
    """Play episodes with random actions, and try every action in each of their states, for `steps` states or `seconds`.

    For a space with more than MOST actions, its bounds and random actions are tried.
    """
    try:
        plain = OneEnv(cls, None, None)
    except EnvError as error:
        return Finding("kernel", "wrong", str(error))
    plain.seed = seed
    trials, until, states, over = _Trials(plain, seed), perf_counter() + seconds, 0, True
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # overflows, which compiled code has too
            while states < steps and (perf_counter() < until or not states):
                if over:
                    trials.begin()
                states, over = states + 1, trials.step()
    except Exception as error:
        return Finding("kernel", "wrong", trials.reported(error), ADVICE)
    found = f"in {trials.number:,} steps from {states:,} states every index is in range and every name has a value"
    return Finding("kernel", "ok", found)


class _Trials:
    """A KernelEnv in plain Python, and the actions to try. number: number of steps so far."""

    def __init__(self, plain: OneEnv, seed: int) -> None:
        self.plain, self.number = plain, 0
        self.action: Any = None
        space = deepcopy(plain.ir.action_space)
        space.seed(seed)
        self._space, self._each = space, _each(space)

    def begin(self) -> None:
        """Begin an episode."""
        self.action = None
        with _limited(LIMIT):
            self.plain.begin()
            self._observe()

    def step(self) -> bool:
        """Try every action from the present state. The last is random, and kept; returns whether it ended the
        episode."""
        state, length, over = self.plain.state, self.plain.length, False
        agents = range(self.plain.ir.num_agents)
        with _limited(LIMIT):
            for actions in [*([one] * len(agents) for one in self._each), [self._space.sample() for _ in agents]]:
                self.plain.state, self.plain.length = deepcopy(state), length
                self.action, self.number = actions, self.number + 1
                typed = tuple(map(self.plain.typed_action, actions))
                _, terminated, truncated = self.plain.advance(typed if len(typed) > 1 else typed[0])
                self._observe()
                over = terminated or truncated
        return over

    def _observe(self) -> None:
        for agent in range(self.plain.ir.num_agents):
            self.plain.observation(agent)

    def reported(self, error: Exception) -> str:
        """Describe an exception of the environment's code, and its position."""
        files = {function.file for function in (*self.plain.ir.functions, *self.plain.ir.pixel_functions)}
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
        where = f"{frames[-1].filename}:{frames[-1].lineno}: {frames[-1].name}() " if frames else ""
        endless = isinstance(error, _EndlessLoop)
        what = f"did not return within {LIMIT:g} s" if endless else f"raised {type(error).__name__}: {error}"
        actions = self.action if self.plain.ir.num_agents > 1 or self.action is None else self.action[0]
        fields = ", ".join(f"{name}={value}" for name, value in self.plain.state._asdict().items())
        after = "" if actions is None else f" (action {shown(actions, 60)}, state {shortened(fields, 120)})"
        return f"{where}{what}{after}"


def _each(space: Space) -> list[Any]:
    """The actions of a space, or its bounds and some random actions if there are too many."""
    if isinstance(space, Discrete) and space.n <= MOST:
        return list(range(int(space.start), int(space.start + space.n)))
    if isinstance(space, Discrete):
        ends = [space.start, space.start + space.n - 1]
    elif isinstance(space, Box):
        ends = [space.low, space.high]
    else:
        ends = [space.start, space.start + space.nvec - 1]  # type: ignore[attr-defined]
    return [*ends, *(space.sample() for _ in range(2))]


class _EndlessLoop(Exception):
    """Raised in code that does not return in time."""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise _EndlessLoop within this block, at any place in Python code, if it takes longer than `seconds`."""
    thread = ctypes.c_ulong(threading.get_ident())
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    timer = threading.Timer(seconds, raise_in, (thread, ctypes.py_object(_EndlessLoop)))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
