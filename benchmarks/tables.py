"""Tables that programs write into pages, each between two comments that mark its place."""

from __future__ import annotations

import argparse
from pathlib import Path


def replace_table(program: str, text: str, page: Path) -> None:
    """Write the table of a program, such as "speed/cluster", in place of the one that the page has, and print it."""
    begin, end = f"<!-- table: benchmarks/{program}.py -->", "<!-- end of the table -->"
    before, rest = page.read_text().split(begin)
    page.write_text(f"{before}{begin}\n{text}\n{end}{rest.split(end, 1)[1]}")
    print(text)


def print_table(description: str | None, program: str, text: str, page: Path) -> None:
    """Print the table of a program, or with --write put it into its page."""
    flags = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--write", action="store_true", help=f"replace the table in docs/{page.name}")
    if flags.parse_args().write:
        replace_table(program, text, page)
    else:
        print(text)
