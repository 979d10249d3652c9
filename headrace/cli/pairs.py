"""Settings that are names with values, `--params gravity=20 length=0.7`, and schedules, on the command line."""

from __future__ import annotations

import json
from typing import Any, get_origin

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from headrace.setting_schedules import Schedule


def registry() -> ConstructorRegistry:
    """Make rules for tyro.cli(), which then reads and shows fields whose type is a dict, or Schedule."""
    rules = ConstructorRegistry()

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
