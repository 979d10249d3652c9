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
    """What a module, or a package without one, has on its top level."""
    if module.is_dir():
        return {path.stem for path in module.iterdir()} | (names(file) if (file := module / "__init__.py").exists() else set())
    body = ast.parse(module.with_suffix(".py").read_text()).body
    targets = [x for node in body if isinstance(node, ast.Assign | ast.AnnAssign) for x in ast.walk(node)]
    found = {x.id for x in targets if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)}
    found |= {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return found | {alias.asname or alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}


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
