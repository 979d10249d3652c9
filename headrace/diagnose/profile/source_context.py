"""Facts from the source around a place: whether it is the user's code, and the functions called there."""

from __future__ import annotations

import ast
import linecache
import re
import sysconfig
from functools import cache
from pathlib import Path

from headrace.core.source_text import parse, parse_expression
from headrace.diagnose.profile.spool import Place

Function = ast.FunctionDef | ast.AsyncFunctionDef
LARGEST = 2_000_000  # characters of a source file that is parsed
PACKAGES = re.compile(r"[/\\](site|dist)-packages[/\\]")  # whole folders: a user's may have such words in their names
STANDARD = re.compile(r"/lib(64)?/python3\.\d+t?/")  # of whichever Python runs the script
STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"].replace("\\", "/") + "/"
HEADRACE = Path(__file__).parents[2].as_posix() + "/"
GENERATED = ("<frozen", "<string>", "<eval_with_key>", "<__array_func")
CELL = "<ipython-input"  # begins the name that IPython gives a cell in a terminal


@cache
def is_own(file: str) -> bool:
    """Tell whether a file is the user's rather than an installed library's, Headrace's or Python's."""
    plain = file.replace("\\", "/")
    if plain.startswith(CELL):
        return True
    generated = plain.startswith("<") or any(part in plain for part in GENERATED)
    installed = plain.startswith((STANDARD_LIBRARY, HEADRACE)) or PACKAGES.search(plain) or STANDARD.search(plain)
    return not (generated or installed)


@cache
def call_at(place: Place) -> str:
    """The name of the function called at a place: "item" for `loss.mean().item()`; "" if unknown or not a call."""
    if None in (place.end_line, place.column, place.end_column):
        return ""
    lines = linecache.getlines(place.code.file)[place.line - 1 : place.end_line]
    if not lines:
        return ""
    text = [line.encode() for line in lines]
    text[-1] = text[-1][: place.end_column]
    text[0] = text[0][place.column :]
    try:
        tree = parse_expression(b"(" + b"".join(text) + b")")
    except (SyntaxError, ValueError):
        return ""
    name = call_name(tree) if isinstance(tree, ast.Call) else ""
    return dict(place.code.other_names + place.other_names).get(name, name)


@cache
def calls_in(file: str) -> list[ast.Call]:
    """All calls in a file."""
    return [node for node in ast.walk(syntax_tree(file)) if isinstance(node, ast.Call)]


def text_at(file: str, line: int) -> str:
    """A line of a file, without indentation; "" if it cannot be read."""
    return linecache.getline(file, line).strip()


@cache
def syntax_tree(file: str) -> ast.Module:
    """A file's syntax tree; an empty one if the file is too large or not Python."""
    text = "".join(linecache.getlines(file))
    try:
        return parse(text if len(text) < LARGEST else "")
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def call_name(call: ast.Call) -> str:
    """The name of the called function, without the object whose attribute it is; "" for a function without a name."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
