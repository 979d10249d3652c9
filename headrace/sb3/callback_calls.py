"""Call callbacks written for Stable-Baselines3 during a training, without needing Stable-Baselines3."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Sequence
from typing import Any

# callbacks of Stable-Baselines3 whose _on_step() acts at a multiple of their frequency, by class name
FREQUENCIES = {"EvalCallback": "eval_freq", "CheckpointCallback": "save_freq"}
PROGRESS_BAR = "ProgressBarCallback"  # its _on_step() counts the steps of one call
COST = (
    "{names}: _on_step() is called after each step of {num_envs} environment{s}, with one call each from Python, "
    "instead of one for a rollout; use _on_rollout_end() where that is often enough"
)


class Locals(dict[str, Any]):
    """The locals of callbacks, which say what is there where a name is missing."""

    def __missing__(self, name: str) -> Any:
        raise KeyError(
            f"locals have no {name!r}, but {', '.join(self)}: values of a step come with the first call of an "
            "_on_step() that does more than return True"
        )


class Callbacks:
    """The callbacks of one learn(): None, a function of (locals, globals), a callback, or a list of them.

    A callback has the methods of stable_baselines3.common.callbacks.BaseCallback. _on_step() is called after each step
    of the environments only if its class defines it to do something. EvalCallback and CheckpointCallback, recognised by
    name, are called at the end of the rollout, with the count of the step at which their frequency was reached, since
    the policy has not changed after that step. model: a headrace.sb3.model.Model.
    """

    def __init__(self, given: Any, model: Any) -> None:
        self.model = model
        items = given if isinstance(given, list | tuple) else [given]
        self.all = [_as_callback(item) for item in items if item is not None]
        for callback in self.all:
            callback.init_callback(model)
        leaves = [leaf for callback in self.all for leaf in _leaves(callback)]
        self.each_step = [callback for callback in self.all if any(map(_needs_steps, _leaves(callback)))]
        self.each_rollout = [callback for callback in self.all if callback not in self.each_step]
        self.names = ", ".join(type(leaf).__name__ for leaf in leaves if _needs_steps(leaf))

    def start(self, locals_: dict[str, Any]) -> None:
        """Call the callbacks at the beginning of training."""
        for callback in self.all:
            callback.on_training_start(Locals(locals_), globals())

    def rollout_start(self) -> None:
        """Call the callbacks at the beginning of a rollout."""
        for callback in self.all:
            callback.on_rollout_start()

    def step(self, locals_: dict[str, Any]) -> bool:
        """Call the callbacks after a step of all environments. Returns whether to go on."""
        goes_on = True
        for callback in self.each_step:
            callback.update_locals(locals_)
            goes_on = _true(callback.on_step()) and goes_on
        return goes_on

    def rollout_end(self, counts: Sequence[int]) -> bool:
        """Call the callbacks after a rollout. Returns whether to go on. counts: the model's step count after each step
        of the rollout."""
        goes_on = not self.each_rollout or self._calls(counts)
        for callback in self.all if goes_on else ():
            callback.on_rollout_end()
        return goes_on

    def _calls(self, counts: Sequence[int]) -> bool:
        """Count the steps of a rollout, and make the calls due after some of them. Returns whether to go on."""
        leaves = [leaf for callback in self.each_rollout for leaf in _leaves(callback)]
        before = [leaf.n_calls for leaf in leaves]
        due = sorted(
            (call - start, index)
            for index, (leaf, start) in enumerate(zip(leaves, before, strict=True))
            for call in _due(leaf, start, start + len(counts))
        )
        last, goes_on = len(counts), True
        for number, index in due:
            if number > last:
                break
            leaf, steps = leaves[index], counts[number - 1]
            leaf.n_calls = before[index] + number
            self.model.num_timesteps = leaf.num_timesteps = steps
            if not _true(leaf._on_step()):
                goes_on, last = False, number  # the others are called after this step, too
        if last:
            self.model.num_timesteps = counts[last - 1]
        for leaf, start in zip(leaves, before, strict=True):
            leaf.n_calls, leaf.num_timesteps = start + last, self.model.num_timesteps
        return goes_on

    def end(self) -> None:
        """Call the callbacks at the end of training."""
        for callback in self.all:
            callback.on_training_end()


class FunctionCallback:
    """A callback that calls a function of (locals, globals). Training stops if it returns False."""

    def __init__(self, function: Callable[[dict, dict], bool | None]) -> None:
        self.function, self.n_calls, self.num_timesteps = function, 0, 0
        self.locals: dict[str, Any] = {}

    def init_callback(self, model: Any) -> None:
        """Do nothing."""

    def on_training_start(self, locals_: dict[str, Any], globals_: dict[str, Any]) -> None:
        """Keep the function's arguments."""
        self.locals, self.globals = locals_, globals_

    def update_locals(self, locals_: dict[str, Any]) -> None:
        """Keep the newest step."""
        self.locals.update(locals_)

    def on_step(self) -> bool | None:
        """Call the function."""
        self.n_calls += 1
        return self.function(self.locals, self.globals)

    def _on_step(self) -> bool | None:
        return self.on_step()

    def on_rollout_start(self) -> None:
        """Do nothing: a function has only one call."""

    on_rollout_end = on_training_end = on_rollout_start


def _as_callback(item: Any) -> Any:
    if hasattr(item, "on_step") and hasattr(item, "init_callback"):
        return item
    if callable(item):
        return FunctionCallback(item)
    raise TypeError(f"callback must be a function, a BaseCallback or a list of them, got {item!r}")


def _true(answer: Any) -> bool:
    """Tell whether a callback's result means to go on. None does, too."""
    return answer is None or bool(answer)


def _leaves(callback: Any) -> Iterable[Any]:
    """Iterate over a callback, or over those of a CallbackList."""
    if type(callback).__name__ == "CallbackList":
        return [leaf for member in callback.callbacks for leaf in _leaves(member)]
    return [callback]


def _due(callback: Any, before: int, after: int) -> range:
    """Numbers of the calls of _on_step() that have an effect, above `before` and up to `after`."""
    if type(callback).__name__ == PROGRESS_BAR:
        return range(before + 1, after + 1)
    frequency = int(getattr(callback, FREQUENCIES.get(type(callback).__name__, ""), 0))
    return range((before // frequency + 1) * frequency, after + 1, frequency) if frequency > 0 else range(0)


def _needs_steps(callback: Any) -> bool:
    """Tell whether _on_step() has to be called after each step. Callbacks recognised by name, and those that only
    return True, do not need it."""
    name = type(callback).__name__
    known = name in FREQUENCIES or name == PROGRESS_BAR
    return not known and not returns_true(getattr(type(callback), "_on_step", None))


def returns_true(function: Any) -> bool:
    """Tell whether a function does nothing but `return True`."""
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    ignored = {"RESUME", "NOP", "CACHE", "COPY_FREE_VARS"}
    steps = [step for step in dis.get_instructions(code) if step.opname not in ignored]
    values = [step.argval for step in steps if step.opname in ("LOAD_CONST", "RETURN_CONST")]
    return values == [True] and {step.opname for step in steps} <= {"LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}
