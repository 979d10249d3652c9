"""Examine whether a policy computes what its classes define, before each call of a kernel in place of its modules.

A kernel reads a policy's parameters directly, and calls none of its modules. Hooks, replaced modules and functions
replaced on an object only take effect in plain torch. Frozen parameters and gradient hooks only take effect if autograd
computes the gradients. examine() detects all of these, and describes them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter, is_
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

from headrace.core.looking import is_noted, note
from headrace.core.packages import of_headrace
from headrace.core.value_text import own_attributes

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_SETTINGS = (bool, int, float, str, tuple, type(None), FunctionType, BuiltinFunctionType, MethodType)
HOOKED = "has a gradient hook"
DATA = (bool, int, float, str, tuple, list, dict, type(None))
CALLED = {"update_statistics", "__getattr__", "__getattribute__", "__setattr__"}  # which no class of Headrace has
# methods that programs are made of, or that trainings call only at the beginning and in evaluations
IN_PROGRAMS = {"act", "act_without_exploration", "forward", "value", "log_prob_entropy_value", "distribution"}
IN_PROGRAMS |= {"most_likely", "_value", "_distribution", "_explore", "config", "from_config", "__init__", "__doc__"}
IN_PROGRAMS |= {"__module__", "__annotations__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__"}
_requires_grad = attrgetter("requires_grad")


class Examination:
    """The state of a module and its submodules. There is a new Examination once any of their parameters, buffers,
    modules, functions and settings is replaced or moved, a parameter is frozen, or a hook is added or removed.

    altered: how calls of the modules differ from their classes' methods; None if they do not. own_gradients: the same
    for the gradients of the parameters. parameters: in the order of parameters(). kept: a place for callers to store
    what they made of the module in this state.
    """

    def __init__(self, module: nn.Module) -> None:
        self.parameters, self.kept = list(module.parameters()), dict[Any, Any]()
        parts = list(module.modules())
        self._attributes = [vars(part) for part in parts]
        self._tensors = [own[kind] for own in self._attributes for kind in ("_parameters", "_buffers")]
        self._members = self._tensors + [own["_modules"] for own in self._attributes]
        settings = [  # but for tensors, which are looked up where they count
            (vars(part), name, value)
            for part in parts
            for name, value in own_attributes(part)
            if not isinstance(value, Tensor)
        ]
        self._owners, self._names = [own for own, _, _ in settings], [name for _, name, _ in settings]
        self._settings = [value for _, _, value in settings]
        self._modules, self._kind = parts[1:], type(module)  # the module itself must not be held
        self._objects, self._sizes = [*_values(self._members)], [*map(len, self._attributes)]
        self._held = [x for x in _values(self._tensors) if x is not None]
        self._lie = self._places()
        self._handles = RemovableHandle.next_id
        self.altered, self.own_gradients = _alterations(module)
        # what goes away unseen; frozen parameters are among _places()
        self._hooked = bool(self.altered) or (self.own_gradients or "").endswith(HOOKED)

    def holds(self, module: nn.Module) -> bool:
        """Tell whether nothing has changed. Takes a few microseconds."""
        if type(module) is not self._kind or not self._same_objects() or self._places() != self._lie:
            return False
        if self._handles != RemovableHandle.next_id or self._hooked:
            self._handles = RemovableHandle.next_id  # the counter from which every new hook takes its number
            return _alterations(module) == (self.altered, self.own_gradients)
        return True

    def changed_numbers(self, later: Examination) -> list[tuple[dict[str, Any], str]] | None:
        """The attributes in which a later examination differs, each with its dict, if all are floats in both; None if
        anything else differs."""
        if self._facts() != later._facts() or self._objects_of() != later._objects_of():
            return None
        own = zip(self._owners, self._names, self._settings, later._settings, strict=True)
        found = [(space, name, before, after) for space, name, before, after in own if before is not after]
        if any(type(x) is not float for *_, before, after in found for x in (before, after)):
            return None
        return [(space, name) for space, name, *_ in found]

    def changed_attribute(self, later: Examination) -> tuple[dict[str, Any], str] | None:
        """The first attribute, with its dict, that is another object in a later examination; None if attributes are the
        same."""
        if len(self._settings) != len(later._settings):
            return None
        own = zip(self._owners, self._names, self._settings, later._settings, strict=True)
        return next(((space, name) for space, name, before, after in own if before is not after), None)

    def _facts(self) -> tuple[Any, ...]:
        return self._kind, self._names, self._sizes, self._lie, self.altered, self.own_gradients

    def _objects_of(self) -> list[int]:
        return [*map(id, chain(self._objects, self._owners, self._modules))]

    def _same_objects(self) -> bool:
        """Tell whether the modules' attributes are the same objects, in the same number."""
        objects = [*_values(self._members)]
        same = len(objects) == len(self._objects) and all(map(is_, objects, self._objects))
        same = same and all(map(is_, map(dict.get, self._owners, self._names), self._settings))
        return same and [*map(len, self._attributes)] == self._sizes

    def _places(self) -> tuple[list[Any], ...]:
        """Addresses of the tensors, whether they are learned, and the classes of the modules."""
        return [*map(Tensor.data_ptr, self._held)], [*map(_requires_grad, self._held)], [*map(type, self._modules)]


_examinations: WeakKeyDictionary[nn.Module, Examination] = WeakKeyDictionary()


def examine(module: nn.Module) -> Examination:
    """Examine a module. Returns the same object as before if nothing has changed."""
    found = _examinations.get(module)
    if found is None or not (is_noted(module) or found.holds(module)):
        found = _examinations[module] = Examination(module)
    note(module)
    return found


def of_users(kind: type) -> bool:
    """True for a class that is neither this package's, nor torch's, nor Python's."""
    package = kind.__module__.partition(".")[0]
    return not of_headrace(kind) and package != "torch" and package not in sys.stdlib_module_names


def called_by_training(kind: type) -> str | None:
    """Name a user's method of a policy's, module's or algorithm's class that a training calls directly, apart from code
    that programs are made of; None if there is none."""
    of_ours = [own for own in kind.__mro__ if not of_users(own)]
    called = {name for own in of_ours for name in vars(own)} | CALLED
    for own in filter(of_users, kind.__mro__):
        for name, value in vars(own).items():
            if name in called and not (name in IN_PROGRAMS or name.endswith("loss")) and not isinstance(value, DATA):
                return f"{own.__name__}.{name}()"
    return None


def modules_in(holder: object) -> list[nn.Module]:
    """The modules that an algorithm or a tuple of networks holds, without submodules."""
    parts = holder if isinstance(holder, tuple) else vars(holder).values()
    found = ([part] if isinstance(part, nn.Module) else modules_in(part) for part in parts if _may_hold(part))
    return list(dict.fromkeys(chain.from_iterable(found)))


def _may_hold(part: object) -> bool:
    return isinstance(part, nn.Module) or hasattr(part, "_fields")


def last_examined(module: nn.Module) -> Examination:
    """The result of the last examine(), without a new examination. A module that was never examined is examined now."""
    return _examinations.get(module) or examine(module)


def _values(dicts: list[dict[str, Any]]) -> Iterator[Any]:
    return chain.from_iterable(map(dict.values, dicts))


def _alterations(module: nn.Module) -> tuple[str | None, str | None]:
    """Compute Examination.altered and own_gradients."""
    if torch_module._has_any_global_hook():
        return "there are hooks on all modules", None
    altered = next(filter(None, (_altered(path, part) for path, part in module.named_modules())), None)
    return altered, next(filter(None, (_own_gradient(*named) for named in module.named_parameters())), None)


def _altered(path: str, module: nn.Module) -> str | None:
    attributes, kind = vars(module), type(module)
    name = path or f"the {kind.__name__}"
    if any(attributes[hooks] for hooks in _HOOKS):
        return f"{name} has a hook"
    replaced = [own for own in attributes if callable(getattr(kind, own, None))]
    return f"{name} has its own {replaced[0]}()" if replaced else None


def _own_gradient(path: str, parameter: nn.Parameter) -> str | None:
    if not parameter.requires_grad:
        return f"{path} is frozen"
    hooked = parameter._backward_hooks or parameter._post_accumulate_grad_hooks
    return f"{path} {HOOKED}" if hooked else None
