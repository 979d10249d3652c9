"""Reductions over entities (headrace.kernels.language.ops_over) as text that Numba compiles, one entity at a time."""

from __future__ import annotations

from headrace.kernels.language.ir import Over
from headrace.kernels.language.ops_over import PARTS

START = {
    "sum": {"f32": "F32(0.0)", "i32": "I32(0)"},
    "min": {"f32": "F32(np.inf)", "i32": f"I32({2**31 - 1})"},
    "max": {"f32": "F32(-np.inf)", "i32": f"I32({-(2**31)})"},
}
COMBINE = {"sum": "{convert}(a + b)", "min": "select(b < a, b, a)", "max": "select(b > a, b, a)"}
PART = """\
{decorator}
def _{op}_{kind}(a, b):
    return {combine}


{decorator}
def _{op}_part_{kind}(values, part):
    result = {start}
    for k in range(np.uint64(part), np.uint64(values.shape[0]), np.uint64({parts})):
        result = _{op}_{kind}(result, {convert}(values[k]))
    return result
"""
WHOLE = """\
{decorator}
def {op}_over_{kind}(values):
    return {tree}
"""
FIRST = """\
{decorator}
def arg{op}_over_{kind}(values):
    wanted = {op}_over_{kind}(values)
    for k in range(values.shape[0]):
        if {convert}(values[k]) == wanted:
            return I32(k)
    return I32(0)
"""
ANY = """\
{decorator}
def any_over_{kind}(values):
    found = False
    for k in range(np.uint64(values.shape[0])):
        found = found | ({convert}(values[k]) != {convert}(0))
    return found
"""


def reductions(decorator: str) -> str:
    """The reductions as functions of a field, each under a decorator: OP_over_f32, and OP_over_i32 of other fields."""
    made = []
    for kind, convert in (("f32", "F32"), ("i32", "I32")):
        for op, starts in START.items():
            combine = COMBINE[op].format(convert=convert)
            names = {"decorator": decorator, "op": op, "kind": kind, "convert": convert, "start": starts[kind]}
            made.append(PART.format(**names, combine=combine, parts=PARTS))
            parts = [f"_{op}_part_{kind}(values, {part})" for part in range(PARTS)]
            made.append(WHOLE.format(**names, tree=combined(f"_{op}_{kind}", parts)))
            if op != "sum":
                made.append(FIRST.format(**names))
        made.append(ANY.format(decorator=decorator, kind=kind, convert=convert))
    return "\n\n".join(made)


def combined(name: str, parts: list[str]) -> str:
    """Partial results combined, halves of them at a time, by calls of a function."""
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [f"{name}({a}, {b})" for a, b in zip(parts[:half], parts[half:], strict=True)]
    return parts[0]


def reduced(over: Over, state: str) -> str:
    """A reduction of a field of the state."""
    return f"{over.op}({state}[{over.field}])"
