"""The table "Where it is" of ARCHITECTURE.md names files, functions and classes that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from helpers.documents import ROOT


def places() -> Iterator[tuple[Path, str]]:
    """Each file or folder of the table, with "" and with each name that follows it in its cell."""
    section = (ROOT / "ARCHITECTURE.md").read_text().split("## Where it is\n")[1].split("\n## ")[0]
    for row in section.splitlines():
        if row.startswith("| "):
            path = ROOT
            for text in re.findall("`([^`]+)`", row.split("|")[2]):
                path = ROOT / text if "/" in text else path
                yield path, "" if "/" in text else text


def has(path: Path, name: str) -> bool:
    """Tell whether a file defines a function, or a class with a method, of this dotted name."""
    nodes: list[ast.stmt] = ast.parse(path.read_text()).body
    for part in name.split("."):
        found = [node for node in nodes if getattr(node, "name", None) == part]
        if not found:
            return False
        nodes = getattr(found[0], "body", [])
    return True


def test_every_place_of_the_table_exists():
    found = list(places())
    assert len(found) > 80
    missing = [f"{path.relative_to(ROOT)}: {name}" for path, name in found if not path.exists()]
    missing += [f"{path.relative_to(ROOT)}: {name}" for path, name in found if name and not has(path, name)]
    assert not missing
