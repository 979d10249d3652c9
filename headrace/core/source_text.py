"""The source of a function: as text, as text without comments, and as a syntax tree, which does not depend on how the
function is written down; and the modules that a function imports.

source_text() is ten times as fast as `inspect`, which runs a tokenizer to find the end.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import inspect
import linecache
import os
import re
import threading
from collections.abc import Iterator
from functools import lru_cache
from importlib.util import resolve_name
from itertools import chain
from types import CodeType, FunctionType
from typing import Any, TypeAlias

Span: TypeAlias = tuple[tuple[int, int], tuple[int, int]]  # line and column of the beginning, and of the end

_DOCSTRING = re.compile(r"""(?s)\s*[rRuU]?("{3}|'{3}|"|').*?\1[ ]*(?=\n|$)""")
_STRING = r'''"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*\''''
_COMMENT = re.compile(rf"(?s)({_STRING})|\s*#[^\n]*|\s+(?=\n)")  # or what is left of a line without one
_LAMBDA = "<lambda>"
_parsing = threading.RLock()
if hasattr(os, "register_at_fork"):  # not on Windows; a child has none of the threads that parse
    os.register_at_fork(before=_parsing.acquire, after_in_parent=_parsing.release, after_in_child=_parsing.release)
# fields of a tree that do not change what a function computes; some are of later versions of Python alone
_DROPPED = {"annotation", "returns", "type_comment", "type_params", "kind", "ctx"}


def parse(text: str | bytes) -> ast.Module:
    """The tree of a module's text.

    The package parses nowhere else, and one text at a time: Python 3.11 counts the depth of all threads' trees as if
    they were one, and raises SystemError where they disturb each other. Raises SyntaxError, ValueError.
    """
    with _parsing:
        return ast.parse(text)


def parse_expression(text: str | bytes) -> ast.expr:
    """The tree of an expression's text; see parse()."""
    with _parsing:
        return ast.parse(text, mode="eval").body


def source_text(function: FunctionType) -> str:
    """The same text as inspect.getsource(function): decorators and all lines of the function.

    Raises OSError where the source is not available.
    """
    code = function.__code__
    last = _last_line(code)
    lines = linecache.getlines(code.co_filename, function.__globals__)
    if last is None or not lines or (last == code.co_firstlineno and _span(code) is None):  # a docstring alone
        return inspect.getsource(function)
    if len(lines) < last:
        raise OSError(f"{code.co_filename} has been cut since {code.co_name}() was read from it")
    first = code.co_firstlineno - 1
    indent = _indent(lines[first])
    # a lone docstring, or a statement that compiles to nothing, stands after the last instruction
    while last < len(lines) and (not lines[last].strip() or _indent(lines[last]) > indent):
        last += 1
    return "".join(lines[first:last]).rstrip() + "\n"


def without_comments(text: str) -> str:
    """The source of a function without docstring, comments and blank lines. Not parsed, since each start of a training
    compares dozens of functions."""
    signature, colon, body = text.partition(":\n")
    docstring = _DOCSTRING.match(body)
    return _COMMENT.sub(r"\1", f"{signature}{colon}{body[docstring.end() :] if docstring else body}")


def bare_text(function: FunctionType) -> str:
    """The source of a function without_comments(); of a lambda, with its place among others of the same line.

    Raises OSError where the source is not available.
    """
    text = without_comments(source_text(function))
    code = function.__code__
    return f"{text}{_span(code) or code.co_consts}" if code.co_name == _LAMBDA else text


def tree_text(function: FunctionType) -> str:
    """The syntax tree of a function as text, the same in every version of Python.

    Comments, docstrings, annotations of arguments, results and variables, `pass`, quotes, parentheses and line breaks
    are not in it: they do not change what a function computes. Raises OSError where the source is not available, or is
    that of another function: a file may have been edited after the module was loaded.
    """
    code = function.__code__
    node = _lambda(function) if code.co_name == _LAMBDA else _definition(source_text(function), code)
    if node is None or not _takes_arguments_of(code, node.args):
        raise OSError(f"line {code.co_firstlineno} of {code.co_filename} is not where {code.co_name} is written")
    return _text(node)


def _definition(text: str, code: CodeType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The tree of a function with this text; None where it is another one's."""
    try:
        # a method is not dedented, which would change strings of several lines in it
        (first, *_) = parse(f"if 1:\n{text}" if text[:1].isspace() else text).body
    except (SyntaxError, ValueError):
        return None
    node = first.body[0] if isinstance(first, ast.If) else first
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    own = re.sub(r"^_\w*?__", "__", code.co_name)  # of a private name in a class
    return node if own in (node.name, re.sub(r"^_\w*?__", "__", node.name)) else None


def _takes_arguments_of(code: CodeType, arguments: ast.arguments) -> bool:
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return len(given) == len(names) and all(own.endswith(one.arg) for own, one in zip(names, given, strict=True))


def _lambda(function: FunctionType) -> ast.Lambda | None:
    """The tree of a lambda: that of its place, since one line may have several."""
    code = function.__code__
    found = _lambdas("".join(linecache.getlines(code.co_filename, function.__globals__)))
    found = [(body, node) for body, node in found if node.lineno == code.co_firstlineno]
    span = _span(code)
    if span is None:  # Python 3.12 keeps no place of a body that is a constant
        constants = [*map(constant_text, code.co_consts)]
        return next((x for _, x in found if _text(x.body) in constants and _takes_arguments_of(code, x.args)), None)
    around = [(body, node) for body, node in found if body[0] <= span[0] and span[1] <= body[1]]
    return max(around, key=lambda found: found[0][0], default=(None, None))[1]  # the innermost


@lru_cache(maxsize=64)
def _lambdas(text: str) -> list[tuple[Span, ast.Lambda]]:
    """The lambdas of a file, each after the place of its body."""
    try:
        nodes = [node for node in ast.walk(parse(text)) if isinstance(node, ast.Lambda)]
    except (SyntaxError, ValueError):
        return []
    return [
        (((x.lineno, x.col_offset), (x.end_lineno or 0, x.end_col_offset or 0)), node)
        for node, x in ((node, node.body) for node in nodes)
    ]


def _span(code: CodeType) -> Span | None:
    """Span of the text in which a function's instructions are written. None where Python keeps no columns."""
    starts, ends = [], []
    for line, end_line, column, end_column in code.co_positions():
        if line is None or end_line is None or column is None or end_column is None:
            continue
        if (line, column) < (end_line, end_column):  # the first instruction has no length
            starts.append((line, column))
            ends.append((end_line, end_column))
    return (min(starts), max(ends)) if starts else None


def _text(node: object) -> str:
    """A tree as text: the name of a node's class, and its fields."""
    if isinstance(node, list):
        return f"[{' '.join(map(_text, node))}]"
    if not isinstance(node, ast.AST):
        return ascii(node)
    if isinstance(node, ast.Constant):
        return constant_text(node.value)
    if isinstance(node, ast.JoinedStr):
        return _joined(node)
    fields = [getattr(node, name, None) for name in node._fields if name not in _DROPPED]
    of_class = isinstance(node, ast.ClassDef)
    parts = [_text([*_statements(x, of_class)] if isinstance(x, list) else x) for x in fields]
    return f"({type(node).__name__} {' '.join(parts)})"


def constant_text(value: object) -> str:
    """A constant of the language as text. int() may not be longer in decimal than Python allows."""
    return hex(value) if type(value) is int else ascii(value)


def _statements(nodes: list[Any], of_class: bool) -> Iterator[object]:
    """A list of nodes without statements that compile to nothing, and with `x: int = 1` as `x = 1`; but in a class,
    where annotations may make fields, these stay."""
    for one in nodes:
        if isinstance(one, ast.Pass) or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)):
            continue  # docstrings are among the latter
        if isinstance(one, ast.AnnAssign) and of_class:
            yield from (one, one.annotation)
        elif isinstance(one, ast.AnnAssign):
            yield from [] if one.value is None else [ast.Assign([one.target], one.value)]
        elif isinstance(one, ast.Delete):  # del (a, b) is del a, b
            yield from (ast.Delete([part]) for target in one.targets for part in getattr(target, "elts", [target]))
        else:
            yield one


def _joined(node: ast.JoinedStr) -> str:
    """An f-string as text. Constants between its expressions are joined: Python's versions divide them differently."""
    parts: list[str] = [""]
    for value in node.values:
        if isinstance(value, ast.Constant):
            parts[-1] += str(value.value)
        else:
            parts += [_text(value), ""]
    texts = [ascii(part) if k % 2 == 0 else part for k, part in enumerate(parts)]
    return texts[0] if len(texts) == 1 else f"(JoinedStr {' '.join(texts)})"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _last_line(code: CodeType) -> int | None:
    """The last line of a function's instructions; None where Python keeps no line numbers."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    ends = [position[1] for position in code.co_positions()] + [_last_line(other) for other in inner]
    known = [end for end in ends if end is not None]
    return max(known, default=None)


def imports(function: FunctionType) -> Iterator[str]:
    """The modules that a function imports when it is called, and functions within it."""
    package = str(function.__globals__.get("__package__") or "")
    for name, level in _import_statements(function.__code__):
        with contextlib.suppress(ImportError):
            yield resolve_name("." * level + name, package) if level else name


@lru_cache(maxsize=4096)
def _import_statements(code: CodeType) -> tuple[tuple[str, int], ...]:
    """The names in import statements, each with the number of its leading dots."""
    found, level = list[tuple[str, int]](), 0
    for one in dis.get_instructions(code):
        if one.opname.startswith("LOAD_") and type(one.argval) is int:
            level = one.argval  # pushed before the names that are imported
        elif one.opname == "IMPORT_NAME":
            found.append((one.argval, level))
    inner = (_import_statements(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return (*found, *chain.from_iterable(inner))


class Digest(str):
    """The digest of a core.closure.Reach, and another of its functions' text, which takes a third of the time to
    compute: where it is equal, nothing else has to be compared."""

    text: str

    def __new__(cls, tree: str, text: str = "") -> Digest:
        made = super().__new__(cls, tree)
        made.text = text
        return made
