"""Whether a loss changes Python objects when it is called: its own calls would, and those of machine code would not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from headrace.core.closure import global_names
from headrace.kernels.rows.tracing.captured import plain_function, roots, space_of
from headrace.kernels.rows.tracing.inputs import Given


class Watch:
    """What a loss could change, as it is: variables of its closure and of its module, the lists, dicts and objects in
    them, and attributes of modules."""

    def __init__(self, function: Callable[..., object], found: Given) -> None:
        plain = plain_function(getattr(function, "func", function))
        code, closure = getattr(plain, "__code__", None), getattr(plain, "__closure__", None) or ()
        self._globals: dict[str, Any] = getattr(plain, "__globals__", {})
        names, free = (global_names(code), code.co_freevars) if code else ((), ())
        self._named = {name: self._globals[name] for name in names if name in self._globals}
        cells = [pair for pair in zip(free, closure, strict=True) if _is_full(pair[1])]
        self._cells = [(name, cell, cell.cell_contents) for name, cell in cells]
        held = [(name, value) for name, value, _ in roots(function) if not isinstance(value, nn.Module)]
        self._lists = [(name, value, list(value)) for name, value in held if type(value) is list]
        spaces = [(name, space_of(value)) for name, value in held]
        self._spaces = [(name, space, dict(space)) for name, space in spaces if space is not None]
        for label, module in found.modules:
            for path, part in module.named_modules():
                name = ".".join(filter(None, (label, path)))
                self._spaces.append((name, vars(part), dict(vars(part))))

    def restore(self) -> str | None:
        """Make all as it was. Returns the name of something that was not."""
        changed = list[str]()
        for name, cell, value in self._cells:
            if cell.cell_contents is not value:
                cell.cell_contents = value
                changed.append(name)
        for name, value in self._named.items():
            if self._globals.get(name) is not value:
                self._globals[name] = value
                changed.append(name)
        for name, items, before in self._lists:
            if len(items) != len(before) or any(a is not b for a, b in zip(items, before, strict=True)):
                items[:] = before
                changed.append(name)
        for name, space, own in self._spaces:
            labels = [key for key in {**own, **space} if key not in space or own.get(key, space) is not space[key]]
            for key in labels:
                if key in own:
                    space[key] = own[key]
                else:
                    del space[key]
            changed += [f"{name}.{key}" for key in labels]
        return changed[0] if changed else None


def _is_full(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
