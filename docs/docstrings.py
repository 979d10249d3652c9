"""Docstrings as the site shows them: a paragraph for each argument, and for what is returned or raised."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

ARGUMENT = re.compile(r"^(\w+(?:, \w+)*): (?=\S)", re.MULTILINE)
ENDING = re.compile(r"(?<=[.;:]) ?\n(?=Raises |Returns )")


class Paragraphs(Extension):
    """Begins a paragraph at each `name: ` that starts a line or follows a sentence."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring and not obj.is_module:
            obj.docstring.value = paragraphs(obj.docstring.value, names(obj))


def names(obj: Any) -> set[str]:
    """The arguments of a function, or of a class's constructor."""
    parameters = getattr(obj, "parameters", None) or []
    return {parameter.name.lstrip("*") for parameter in parameters}


def paragraphs(text: str, arguments: set[str]) -> str:
    """The text with a paragraph for each argument."""
    if arguments:
        known = "|".join(map(re.escape, sorted(arguments)))
        text = re.sub(rf"(?:^|(?<=[.)]) |\n)((?:{known})(?:, \w+)*): ", r"\n\n**\1**: ", text)
    text = ARGUMENT.sub(r"\n**\1**: ", text)
    return ENDING.sub("\n\n", text)
