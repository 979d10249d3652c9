"""Attributes of policies and their parts that are looked up where there is none of that name."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


def look_up(part: nn.Module, name: str) -> Any:
    """A parameter, buffer or module, or what another library names so: see other_libraries.member()."""
    try:
        return nn.Module.__getattr__(part, name)
    except AttributeError:
        from headrace.policies.other_libraries import member  # here, where no digest of a kernel reaches it

        return member(part, name)


def delete(part: nn.Module, name: str) -> None:
    """Delete an attribute. Raises AttributeError that says what another library's member of that name is here."""
    try:
        nn.Module.__delattr__(part, name)
    except AttributeError as error:
        from headrace.policies.other_libraries import missing

        raise AttributeError(missing(part, name)) from error


def explains_members(kind: type[M]) -> type[M]:
    """Give a class of modules look_up() and delete()."""
    kind.__getattr__ = look_up  # type: ignore[assignment,method-assign]
    kind.__delattr__ = delete  # type: ignore[method-assign]
    return kind
