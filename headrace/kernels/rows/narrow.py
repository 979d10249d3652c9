"""Gathering only those numbers of a column that a program reads. Of a recurrent network's states it reads only the
states at the first step of each sequence."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, replace
from typing import Any

from headrace.kernels.rows.row_program import Input, Program, View


def narrowed(program: Program) -> Program:
    """Narrow the program's columns, so that each begins with the first number that is read, and ends with the last. The
    program's values are changed in place."""
    values, views = program.values(), defaultdict[Any, list[View]](list)
    for view in (*(v for value in values for v in value.operands), *(output.view for output in program.outputs)):
        views[view.value].append(view)
    for column in program.columns:
        read = views[column]
        if read:
            column.first, end = min(v.offset for v in read), max(v.offset + v.span for v in read)
            if end - column.first < column.size:
                column.shape = (end - column.first,)
    for value in values:
        for name in (field.name for field in fields(value)):
            part = getattr(value, name)
            if isinstance(part, View):
                setattr(value, name, _moved(part))
            elif isinstance(part, tuple) and any(isinstance(x, View) for x in part):
                setattr(value, name, tuple(map(_moved, part)))
    return replace(program, outputs=tuple(replace(o, view=_moved(o.view)) for o in program.outputs))


def _moved(view: View) -> View:
    first = view.value.first if isinstance(view.value, Input) else 0
    return replace(view, offset=view.offset - first) if first else view
