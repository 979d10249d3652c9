"""Values of flags: numbers, names with values such as `--params gravity=20 length=0.7`, and schedules."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from headrace.setting_schedules import Schedule


def cli(kind: Any, verb: str, description: str, **options: Any) -> Any:
    """Parse the flags of a verb as a dataclass: tyro.cli() with the rules for values."""
    return tyro.cli(kind, prog=f"headrace {verb}", description=description, registry=_registry(), **options)


def _registry() -> ConstructorRegistry:
    """Make rules for tyro.cli(), which then reads and shows fields whose type is a number, a dict, or Schedule."""
    rules = ConstructorRegistry()

    @rules.primitive_rule
    def number(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
        if kind.type not in (int, float):
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar=kind.type.__name__.upper(),
            instance_from_str=lambda words: number_of(words[0], kind.type is int),
            is_instance=lambda value: isinstance(value, int | kind.type),
            str_from_instance=lambda value: [str(value)],
        )

    @rules.primitive_rule
    def schedule(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
        if kind.type != Schedule:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="SCHEDULE",
            instance_from_str=lambda words: words[0],
            is_instance=lambda value: isinstance(value, str) or callable(value),
            str_from_instance=lambda value: [str(value)],
        )

    @rules.primitive_rule
    def pairs(kind: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
        if get_origin(kind.type) is not dict:
            return None
        return PrimitiveConstructorSpec(
            nargs="*",
            metavar="NAME=VALUE",
            instance_from_str=parsed,
            is_instance=lambda value: isinstance(value, dict),
            str_from_instance=lambda value: [f"{name}={_shown(x)}" for name, x in value.items()],
        )

    return rules


def number_of(text: str, whole: bool) -> float:
    """Read a number; 1e6 and 8.0 are whole, too. Raises ValueError for another text, or where it has to be whole."""
    with suppress(ValueError):
        return int(text) if whole else float(text)
    with suppress(ValueError):
        if (number := float(text)).is_integer():
            return int(number)
    raise ValueError(f"a {'whole ' if whole else ''}number such as {'8' if whole else '0.5'} is expected, got {text!r}")


def parsed(words: list[str]) -> dict[str, Any]:
    """Names and values; a value is JSON (20, 0.5, true, [1, 2]), or else a text. Raises ValueError without "="."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not (equals and name.isidentifier()):
            raise ValueError(f"expected NAME=VALUE, such as gravity=20, got {word!r}")
        try:
            found[name] = json.loads(text.lower() if text in ("True", "False") else text)
        except ValueError:
            found[name] = text
    return found


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
