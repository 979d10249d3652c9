"""Tables that programs write into pages, each between two comments that mark its place."""

from __future__ import annotations

from pathlib import Path


def replace_table(program: str, text: str, page: Path) -> None:
    """Write the table of a program, such as "speed/cluster", in place of the one that the page has, and print it."""
    begin, end = f"<!-- table: benchmarks/{program}.py -->", "<!-- end of the table -->"
    before, rest = page.read_text().split(begin)
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}")
    print(text)
