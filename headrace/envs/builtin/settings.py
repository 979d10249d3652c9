"""Register the environments of settings.toml with their settings."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import TypeAlias

from headrace.envs.registry import register, register_family

Value: TypeAlias = bool | int | float | str | tuple[int, ...] | None


def register_all() -> None:
    """Register every name in settings.toml."""
    table = tomllib.loads((files(__package__) / "settings.toml").read_text(encoding="utf-8"))
    for name, about in table.items():
        settings = table[about.get("settings_of", name)]
        defaults = {
            algorithm: {setting: _value(value) for setting, value in values.items()}
            for algorithm, values in settings.items()
            if isinstance(values, dict)
        }
        if "*" in name:
            register_family(name, defaults, about["published"])
        else:
            register(name, about["entry"], defaults, about.get("listed", True), settings.get("published", ""))


def _value(value: bool | int | float | str | list[int]) -> Value:
    """Convert a setting to Python's types, since TOML has neither None nor tuples."""
    if isinstance(value, list):
        return tuple(value)
    return None if value == "none" else value


register_all()
