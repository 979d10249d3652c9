"""The code change of each remedy, written for the library that a script uses: the texts of snippets.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

from headrace.diagnose.profile.profile import Site
from headrace.diagnose.verdict.profile_facts import Facts

TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def snippet(facts: Facts, name: str, **values: str | int) -> str:
    """A text of snippets.toml with its {values} filled in."""
    texts: dict[str, str] = TEXTS[name]
    text = next((text for library, text in texts.items() if facts.runs(library)), texts["otherwise"])
    return text.format(**values)


def instead(site: Site | None, code: str) -> str:
    """The code to write, after a comment with the line that it replaces, if that line is known."""
    return (f"# found at {site.file}:{site.line}: {site.text}\n" if site else "") + code


def without(site: Site | None, otherwise: str) -> str:
    """Remove a line."""
    return f"- {site.text}   # {site.file}:{site.line}" if site and site.text else f"# {otherwise}"
