"""Common parts of sb3_tests.py and sb3_examples.py: counts by file, and their table in docs/from_sb3.md."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.common import ROOT, Neighbours, Row, finish, last_rows, parser, table
from benchmarks.tables import replace_table

PAGE = ROOT / "docs" / "from_sb3.md"
WRITTEN = 6  # columns of the table: the first


def main(
    program: str,
    about: str,
    columns: Sequence[str],
    files: Callable[[Path], Sequence[str]],
    counted: Callable[[Path, str], tuple[Row, Sequence[str]]],
) -> None:
    """Count each file of a folder, print it and append a row, or write the table of the last rows.

    files: their names in the folder. counted: the row of one, and what to print below it.
    """
    flags = parser(about)
    flags.formatter_class = argparse.RawDescriptionHelpFormatter
    flags.add_argument("folder", type=Path)
    flags.add_argument("--only", nargs="+", metavar="FILE", help="names of files; without it, all")
    flags.add_argument("--write", action="store_true", help="write the table of docs/from_sb3.md, and run nothing")
    options = flags.parse_args()
    if options.write:
        rows = last_rows(options.results / f"{program}.jsonl", "file")
        replace_table(f"pages/{program}", markdown(rows, columns[:WRITTEN]), PAGE)
        return
    names = options.only or files(options.folder)
    for name in names[:1] if options.quick else names:
        neighbours = Neighbours()
        row, below = counted(options.folder, name)
        print(table([row], columns), *below, sep="\n", flush=True)
        finish(program, [row], options, neighbours)


def markdown(rows: dict[str, Row], columns: Sequence[str]) -> str:
    """A line for each file, and one with their sums."""
    lines = [f"| {' | '.join(columns)} |", f"|---|{'--:|' * (len(columns) - 1)}"]
    total = {column: sum(row[column] for row in rows.values()) for column in columns[1:]}
    for row in (*(rows[name] for name in sorted(rows)), {columns[0]: "all", **total}):
        lines.append(f"| {' | '.join(str(row[column]).removesuffix('.py') for column in columns)} |")
    return "\n".join(lines)
