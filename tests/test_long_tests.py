"""The list of tests that `make test` leaves out names tests that there are."""

import ast
from functools import cache
from pathlib import Path

from conftest import LONG, TESTS


def test_each_line_is_a_test():
    lines = [line for line in LONG.read_text().splitlines() if not line.startswith("#")]
    assert lines == sorted({*lines})
    for line in lines:
        file, name = line.split("::")
        assert name in functions(TESTS / file), line


@cache
def functions(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}
