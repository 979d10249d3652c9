"""Programs of benchmarks find one another: modules and names that they import, and programs that they start."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from helpers.benchmark import ROOT

FOLDER = ROOT / "benchmarks"
PROGRAMS = [path for path in FOLDER.rglob("*.py") if "verdicts" not in path.relative_to(FOLDER).parts]


@cache
def names(module: Path) -> set[str]:
    """Names on a module's top level; for a folder, also the modules in it."""
    found = set[str]()
    file = module.with_suffix(".py")
    if not file.exists():
        found, file = {path.stem for path in module.iterdir()}, module / "__init__.py"
    for node in ast.parse(file.read_text()).body if file.exists() else []:
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        else:
            found |= {x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    return found


def test_what_they_import_of_each_other_exists():
    missing = []
    for path in PROGRAMS:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "benchmarks":
                there = names(ROOT / (node.module or "").replace(".", "/"))
                missing += [f"{path}: {node.module}.{alias.name}" for alias in node.names if alias.name not in there]
    assert not missing


def test_programs_that_they_start_exist():
    started = {name for path in PROGRAMS for name in re.findall(r'"((?:\w+/)+\w+\.py)"', path.read_text())}
    assert len(started) > 20
    assert not [name for name in started if not (FOLDER / name).exists()]
