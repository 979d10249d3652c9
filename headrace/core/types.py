"""Names of types that many modules share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field
from typing import Any, ClassVar, Protocol, TypeAlias

StateDict: TypeAlias = Mapping[str, Any]  # nested mappings and lists of tensors, numbers, strings and None
Settings: TypeAlias = Mapping[str, Any]  # names and values of settings, as a TOML file or keywords give them
Json: TypeAlias = dict[str, Any]  # what json.loads() gives of an object
EnvArgument: TypeAlias = Any  # an environment as users give it: see headrace.make, and Trainer for ready-made ones


class DataclassInstance(Protocol):
    """An instance of any dataclass, such as an algorithm's config."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
