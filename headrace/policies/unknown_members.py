"""Look up attributes that a policy or a part of it does not have under other libraries' names."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def look_up(part: nn.Module, name: str) -> Any:
    """Look up a parameter, buffer or module, or another library's name of a member: see other_libraries.member()."""
    try:
        return nn.Module.__getattr__(part, name)
    except AttributeError:
        from headrace.policies.other_libraries import member  # here, where no digest of a kernel reaches it

        return member(part, name)


def delete(part: nn.Module, name: str) -> None:
    """Delete an attribute. Raises AttributeError, which names the counterpart of another library's member."""
    try:
        nn.Module.__delattr__(part, name)
    except AttributeError as error:
        from headrace.policies.other_libraries import missing

        raise AttributeError(missing(part, name)) from error


def explains_members(kind: type[M]) -> type[M]:
    """Add look_up() and delete() to a class of modules."""
    kind.__getattr__ = look_up  # type: ignore[assignment,method-assign]
    kind.__delattr__ = delete  # type: ignore[method-assign]
    return kind
